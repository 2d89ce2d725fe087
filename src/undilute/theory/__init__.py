"""What is true about attention dilution: bounds, exact norms and expectations, in closed form or in time linear in n.

| module | answers |
|---|---|
| dispersion | how thin does a weight get as n grows, and what would hold it? |
| sparse | why do sparse rules escape that? |
| focus | can one rule be sparse, length-adaptive and gradient-stable? |
| jacobian | how much do the weights move when the logits move? |
| adaptive | from where to where does adaptive temperature act? |

What is true of one paper's own quantities is in ``undilute_papers.theory``.

Everything is float64, takes torch tensors, NumPy arrays or lists, and works on many rows at once.

>>> from undilute import theory
>>> theory.dispersion.weight_bounds(n=1024, spread=5.69).upper
tensor(0.2243, dtype=torch.float64)
"""

from typing import TYPE_CHECKING

from undilute.theory import adaptive, dispersion, focus, jacobian, sparse

__all__ = ["adaptive", "dispersion", "focus", "jacobian", "sparse"]

_MOVED = ("capacity", "distance", "separability")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _MOVED:
            raise AttributeError(f"undilute.theory.{name} has moved to undilute_papers.theory.{name}.")
        raise AttributeError(f"module 'undilute.theory' has no attribute {name!r}")
