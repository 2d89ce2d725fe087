"""What is a rule?  weights(row) = map(scale(row) · logits(row)).

A *scale* says what multiplies a row's logits (a temperature, a function of the row's length or entropy); a *map*
turns the scaled logits into weights (softmax, entmax, sigmoid, …). Any scale goes with any map. Both are
``torch.nn.Module``: tensors in them move with ``.to()``, ``nn.Parameter`` in them are learned.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from undilute.errors import InvalidValue
from undilute.rules import masked
from undilute.rules.forms import SoftmaxForm, SparseForm
from undilute.rules.parameters import Parametrised, as_it_is, count

Hide = Callable[[float], object]
Divisor = Tensor | float
LOWEST = -1e30  # below any logit that ``hide`` meets: e^LOWEST is 0, and 0 · LOWEST is 0 too


def forward_of(module: nn.Module) -> type | None:
    """The class whose ``forward`` a scale, map or rule runs: what a fast route may know it by.

    A rule's ``scaled`` is part of its ``forward``, and so is a ``__call__`` around it. None if the object has any of
    these, or hooks, of its own, which only a call of it can honour.

    Examples
    --------
    >>> import undilute as ud
    >>> class Half(ud.rules.Softmax):
    ...     def forward(self, logits, visible):
    ...         return super().forward(logits, visible) / 2
    >>> forward_of(ud.rules.LearnableSink(2)).__name__, forward_of(Half()).__name__
    ('Sink', 'Half')
    """
    if "forward" in vars(module) or "scaled" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
        return None
    return _definer(module, "forward", "scaled", "__call__")


def fits_forward(module: nn.Module, name: str, base: type) -> bool:
    """Does a scale or map have the method ``name``, made for the ``forward`` that it runs?

    A class that overrides ``forward`` and nothing more inherits what was said of something else; a method that was put
    into one object says nothing of its class. ``base`` is the class that has the method in name only.
    """
    forward, definer = forward_of(module), _definer(module, name)
    return forward is not None and name not in vars(module) and definer is not base and issubclass(definer, forward)


def softmax_form(map: Map) -> SoftmaxForm | None:
    """What the map declares by ``as_softmax``, if that was written for the ``forward`` it runs."""
    return map.as_softmax() if fits_forward(map, "as_softmax", Map) else None


def sparse_form(map: Map) -> SparseForm | None:
    """What the map declares by ``as_sparse``, if that was written for the ``forward`` it runs."""
    return map.as_sparse() if fits_forward(map, "as_sparse", Map) else None


def entropy_form(scale: Scale) -> Callable[[Tensor], Tensor] | None:
    """What the scale declares by ``as_entropy``, if that was written for the ``forward`` it runs."""
    return scale.as_entropy() if fits_forward(scale, "as_entropy", Scale) else None


def _definer(module: nn.Module, *names: str) -> type:
    """The class that defines one of the names, the nearest to the module's own."""
    return next(kind for kind in type(module).__mro__ if any(name in vars(kind) for name in names))


class Scale(Parametrised):
    """A factor on the logits of a row. Subclasses write ``bound`` and either ``at_length`` or ``forward``."""

    def at_length(self, n: Tensor) -> Tensor | float:
        """The factor for rows of n visible keys, if that is all it depends on.

        Such a scale can be folded into the queries, so that it costs nothing on a fast route.

        Parameters
        ----------
        n : (..., 1) floating-point, at least 1

        Returns
        -------
        A number, or a tensor that broadcasts to (..., 1).
        """
        raise TypeError(f"{type(self).__name__} must define at_length(n) or forward(logits, visible)")

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor | float:
        """The factor for each row; overridden by scales that read the logits.

        Parameters
        ----------
        logits : (..., keys), finite; hidden keys hold 0
        visible : (..., keys) bool, True where the row sees the key

        Returns
        -------
        A number, or a tensor that broadcasts to (..., 1).
        """
        return self.at_length(masked.count_visible(visible, logits.dtype))

    def multiply_(self, logits: Tensor, spare: Tensor, hide: Hide) -> None:
        """The same for a scale that reads the logits, in place and without gradient: an optional short cut for speed.

        Parameters
        ----------
        logits : (..., rows, keys), finite, to be multiplied; hidden keys may end as anything finite
        spare, hide : as in ``Map.weigh_``
        """
        raise TypeError(f"{type(self).__name__} has no in-place form")

    def as_entropy(self) -> Callable[[Tensor], Tensor] | None:
        """H (..., 1) → the factor (..., 1), if the entropy H of the row's softmax is all that it depends on.

        Declaring it lets a scale that reads the logits run on the fast routes; ``OfEntropy`` does.
        """
        return None

    @property
    def is_foldable(self) -> bool:
        """Does the factor depend on n alone?"""
        return forward_of(self) is Scale

    def bound(self, n: int) -> float:
        """The largest |factor| a row of n visible keys can get."""
        raise TypeError(f"{type(self).__name__} must define bound(n)")

    def lipschitz(self, map: Map, n: int) -> float:
        """Lipschitz constant of logits → map(scale · logits) on rows of n keys; right for any scale that does not
        itself depend on the logits."""
        factors = self.bound(n), map.lipschitz(n)
        return 0.0 if 0.0 in factors else factors[0] * factors[1]

    def on(self, x: Tensor) -> Scale:
        """This scale for the layer input ``x`` (batch, queries, embed); only content-dependent scales differ."""
        return self


class Map(Parametrised):
    """Scaled logits → weights. Subclasses write ``forward`` and ``lipschitz`` and state their facts.

    Attributes
    ----------
    sums_to_one : do the weights of a row that sees at least one key sum to 1?
    is_sparse : can it give exactly 0 to all but a few visible keys?
    is_shift_invariant : does adding a constant to a row leave its weights unchanged?
    is_monotone : does a larger scaled logit never get less weight than a smaller one in its row?
    is_continuous : do small changes of the logits change the weights little?  False if a key's weight can jump: the
        fast routes then make sure that rounding does not separate equal logits
    """

    sums_to_one: ClassVar[bool] = True
    is_sparse: bool = False
    is_shift_invariant: bool = True
    is_monotone: bool = True
    is_continuous: bool = True

    def forward(self, logits: Tensor, visible: Tensor) -> Tensor:
        """Weights of each row.

        Parameters
        ----------
        logits : (..., keys), finite; hidden keys hold 0
        visible : (..., keys) bool, True where the row sees the key

        Returns
        -------
        (..., keys), exactly 0 where hidden.
        """
        raise TypeError(f"{type(self).__name__} must define forward(logits, visible)")

    def weigh_(self, logits: Tensor, spare: Tensor, n: Tensor, hide: Hide) -> Divisor | None:
        """The same weights, without gradient and written over ``logits``: an optional short cut for speed.

        Parameters
        ----------
        logits : (..., rows, keys), finite; becomes the weights, still to be divided, and exactly 0 where hidden
        spare : memory of the same shape, free to use
        n : (..., rows, 1), visible keys of each row
        hide : ``hide(x)`` puts x in the hidden keys of ``logits``, be x 0, −inf or below any logit; until then they
            hold anything finite, and they must hold something finite before ``hide(0.0)``

        Returns
        -------
        The divisor of the weights, (..., rows, 1) or a number: dividing the output costs less than dividing the
        weights. None if the map has no such form for these logits, which may be overwritten by then.
        """
        return None

    def as_softmax(self) -> SoftmaxForm | None:
        """How this map is softmax, perhaps with a sink: what the flash and sdpa routes need."""
        return None

    def as_sparse(self) -> SparseForm | None:
        """How the support of this map is found: what the sparse route needs."""
        return None

    def at_length(self, n: Tensor) -> Map | None:
        """This map for rows that count as n keys long, however many they see; None if it cannot be told.

        A map that never asks for n returns itself. One that is softmax by its form need not say so.

        Parameters
        ----------
        n : (..., 1) floating-point, at least 1
        """
        return None

    def lipschitz(self, n: int) -> float:
        """Smallest known L with ‖w(z) − w(z')‖₂ ≤ L‖z − z'‖₂ on rows of n keys; ``math.inf`` if there is none."""
        raise TypeError(f"{type(self).__name__} must define lipschitz(n)")


class _Given(Scale):
    """A factor that is known already."""

    def __init__(self, factor: Tensor | float) -> None:
        super().__init__()
        self._factor = (factor,)  # no parameter of this module, but of what it was computed from

    def at_length(self, n: Tensor) -> Tensor | float:
        return self._factor[0]


class Rule(Parametrised):
    """A scale and a map, called on rows of logits.

    Parameters
    ----------
    scale : Scale, default 1
    map : Map, default softmax

    Examples
    --------
    >>> import torch, undilute as ud
    >>> rule = ud.rules.Rule(scale=ud.rules.LogLength(0.43), map=ud.rules.Entmax(1.5))
    >>> rule(torch.tensor([[4.0, 0.0, 0.0, -1.0]]))
    tensor([[1., 0., 0., 0.]])
    >>> rule.sums_to_one, rule.is_sparse
    (True, True)
    """

    def __init__(self, scale: Scale | None = None, map: Map | None = None) -> None:
        from undilute.rules.maps.softmax import Softmax
        from undilute.rules.scales.temperature import Temperature

        super().__init__()
        for name, part, kind in (("scale", scale, Scale), ("map", map, Map)):
            if part is not None and not isinstance(part, kind):
                raise InvalidValue(f"{name} = {part!r}: must be a {kind.__name__}; write Rule(scale=…, map=…).")
        self.scale: Scale = Temperature(1.0) if scale is None else scale
        self.map: Map = Softmax() if map is None else map

    def forward(self, logits: Tensor, mask: Tensor | None = None) -> Tensor:
        """Weights of each row of ``logits``.

        Parameters
        ----------
        logits : (..., keys) in any floating dtype. −inf hides a key, +inf counts as the largest finite number.
        mask : bool, broadcastable to ``logits``; True = visible

        Returns
        -------
        (..., keys) in the dtype of ``logits``; a row that sees nothing is all zeros.
        """
        masked.check(logits, mask)
        if logits.shape[-1] == 0:
            return logits.clone()
        weights: Tensor = self.map(*self.scaled(logits, mask))
        return weights.to(logits.dtype)

    def scaled(self, logits: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What the map is given: scaled logits (..., keys), finite and 0 where hidden, and which keys are visible."""
        visible = masked.visible_keys(logits, mask)
        z = masked.bounded(logits.to(masked.working_dtype(logits.dtype)).masked_fill(~visible, 0.0))
        return masked.bounded(self.scale(z, visible) * z), visible

    def lipschitz(self, n: int) -> float:
        """Lipschitz constant (ℓ₂ → ℓ₂) of logits → weights on rows of n visible keys; ``math.inf`` if there is none."""
        return self.scale.lipschitz(self.map, count("n", n))

    def on(self, x: Tensor) -> Self:
        """This rule for the layer input ``x`` (batch, queries, embed); differs only if the scale reads the input."""
        scale = self.scale.on(x)
        return self._with_parts(scale, self.map)

    def for_rows(self, rows: slice, length: int) -> Self:
        """This rule for some of ``length`` rows; differs only if a parameter is given per row."""
        return self._with_parts(self.scale.for_rows(rows, length), self.map.for_rows(rows, length))

    def for_heads(self, heads: slice | list[int], total: int) -> Self:
        """This rule for some of ``total`` heads; differs only if a parameter is given per head."""
        return self._with_parts(self.scale.for_heads(heads, total), self.map.for_heads(heads, total))

    def rows(self, rows: slice, length: int) -> Self:
        """Deprecated: ``for_rows``."""
        warnings.warn("Rule.rows is now called Rule.for_rows.", DeprecationWarning, stacklevel=2)
        return self.for_rows(rows, length)

    def heads(self, heads: slice | list[int], total: int) -> Self:
        """Deprecated: ``for_heads``."""
        warnings.warn("Rule.heads is now called Rule.for_heads.", DeprecationWarning, stacklevel=2)
        return self.for_heads(heads, total)

    def at_length(self, n: Tensor) -> Self:
        """This rule, if it has no ``deaf_part``, for rows that count as n keys long, however many they see.

        Parameters
        ----------
        n : (..., 1) floating-point, at least 1
        """
        map = self._map_at_length(n)
        assert map is not None
        return self._with_parts(_Given(self.scale.at_length(n)), map)

    def deaf_part(self) -> Rule | Scale | Map | None:
        """What of this rule cannot be told n, because it reads all it needs off the visible keys; or None."""
        if forward_of(self) is not Rule:
            return self
        if not self.scale.is_foldable:
            return self.scale
        return self.map if self._map_at_length(torch.ones(1, 1)) is None else None

    def _map_at_length(self, n: Tensor) -> Map | None:
        if softmax_form(self.map) is not None:
            return self.map
        return self.map.at_length(n) if fits_forward(self.map, "at_length", Map) else None

    def _with_parts(self, scale: Scale, map: Map) -> Self:
        """This rule, of its own class, with another scale and map."""
        if scale is self.scale and map is self.map:
            return self
        twin = as_it_is(self)
        twin._modules |= {"scale": scale, "map": map}
        return twin

    @property
    def sums_to_one(self) -> bool:
        return self.map.sums_to_one

    @property
    def is_sparse(self) -> bool:
        return self.map.is_sparse

    @property
    def is_shift_invariant(self) -> bool:
        return self.map.is_shift_invariant

    @property
    def is_monotone(self) -> bool:
        return self.map.is_monotone
