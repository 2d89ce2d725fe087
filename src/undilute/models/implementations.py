"""How does ``attn_implementation="undilute:ssmax"`` come to mean something?

Every rule of the registry is made known to transformers under that name, with torch's mask function beside it (a name
that has none silently loses its causal mask). Models whose attention is code of their own refuse it
(``own_attention.py``). transformers is heavy, and importing undilute must not import it: if it is not there yet, the
names are registered as soon as somebody else has imported it.

``torch.compile`` calls these functions but does not look into them: a compiled model runs its own code compiled and its
rules as they are. Traced, they would be many small graphs for each layer, compiled again for each length.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from undilute.models.attention_call import IMPLEMENTATION
from undilute.models.head_rules import attention
from undilute.models.own_attention import guarded, stand_guard
from undilute.rules import registry

HOME = "transformers.modeling_utils"  # where AttentionInterface is


def name_in_transformers(rule: str) -> str:
    """What to give as ``attn_implementation``.

    Examples
    --------
    >>> name_in_transformers("ssmax")
    'undilute:ssmax'
    """
    return IMPLEMENTATION + rule


def register_with_transformers() -> None:
    """Make every rule, and every later one, known to transformers: now, or when it is imported."""
    if HOME in sys.modules:
        _begin()
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


def _begin() -> None:
    from transformers import PreTrainedModel

    from undilute.treatment.saved import keep_rules

    keep_rules(PreTrainedModel)
    stand_guard(PreTrainedModel, IMPLEMENTATION)
    registry.on_register(_register)


def _register(rule: str) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    name = name_in_transformers(rule)
    AttentionInterface.register(name, torch.compiler.disable(attention(name)))
    AttentionMaskInterface.register(name, guarded(sdpa_mask, name))


class _WhenImported(importlib.abc.MetaPathFinder):
    """Lets the usual finders find transformers' module, and registers once it has run; then it is gone."""

    is_asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != HOME or self.is_asking:
            return None
        self.is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.is_asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader, self)
        return spec


class _ThenRegister(importlib.abc.Loader):
    """A loader, and what comes after it."""

    def __init__(self, loader: importlib.abc.Loader, finder: _WhenImported) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        sys.meta_path.remove(self.finder)
        _begin()

    def __getattr__(self, name: str) -> Any:  # inspect asks a loader for the source
        return getattr(self.loader, name)
