"""How does ``attn_implementation="undilute:ssmax"`` come to mean something?

Every rule of the registry is made known to transformers under that name, together with torch's mask function (a name
that has none silently loses its causal mask). Models whose attention is code of their own refuse it
(``own_attention.py``). transformers is heavy, and importing undilute must not import it: if it is not there yet, the
names are registered as soon as somebody else has imported it. That takes a hook on ``sys.meta_path``: transformers has
no entry point, nor any other place where a package could announce its attention functions.

``torch.compile`` calls these functions but does not look into them: a compiled model runs its own code compiled and its
rules as they are. Traced, they would be many small graphs for each layer, compiled again for each length.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from undilute.models.attention_call import IMPLEMENTATION
from undilute.models.head_rules import attention
from undilute.models.own_attention import guarded, stand_guard
from undilute.rules import registry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HOME = "transformers.modeling_utils"  # where AttentionInterface is


def name_in_transformers(rule: str) -> str:
    """What to give as ``attn_implementation``.

    Examples
    --------
    >>> name_in_transformers("ssmax")
    'undilute:ssmax'
    """
    return IMPLEMENTATION + rule


def register_with_transformers(*then: Callable[[type[PreTrainedModel]], None]) -> None:
    """Make every rule, and every later one, known to transformers: now, or when it is imported.

    Parameters
    ----------
    then : what else to do with transformers' ``PreTrainedModel`` once it is there
    """

    def register() -> None:
        from transformers import PreTrainedModel

        stand_guard(PreTrainedModel, IMPLEMENTATION)
        registry.on_register(_register)
        for each in then:
            each(PreTrainedModel)

    if HOME in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _WhenImported(register))


def _register(rule: str) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    name = name_in_transformers(rule)
    AttentionInterface.register(name, torch.compiler.disable(attention(name)))
    AttentionMaskInterface.register(name, guarded(sdpa_mask, name))


class _WhenImported(importlib.abc.MetaPathFinder):
    """Lets the usual finders find transformers' module, and calls ``then`` once it has run; then it is gone."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != HOME:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((each for each in specs if each is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                sys.meta_path.remove(self)
                self.then()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
