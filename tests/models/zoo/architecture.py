"""What is one line of the table of architectures?  A tiny random model, what it reads, and what it is good for.

The outcomes are written by hand, never computed: ``tests/models/test_zoo.py`` holds the library to them, and
``docs/architectures.md`` prints them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import transformers
from torch import Tensor

from tests.models.attending import SIZES, tokens

CAUSAL, HYBRID, ENCODER, SHARED = "causal", "hybrid", "encoder", "shared layers"
BOTH, VISION, AUDIO, OWN, NONE = "encoder-decoder", "vision", "audio", "own attention code", "no attention"
KINDS = (CAUSAL, HYBRID, ENCODER, SHARED, BOTH, VISION, AUDIO, OWN, NONE)

JOBS = ("implementation", "apply", "capture", "diagnose", "cache", "padding")
YES, REFUSED, ABSENT = "yes", "refused", "—"

BATCH, LENGTH, DECODED, PADDING = 2, 14, 11, 5
IMAGE, SPECTRUM = 16, (8, 32)
SHAPES = {
    "image": ("pixel_values", (3, IMAGE, IMAGE)),
    "sound": ("input_values", (80,)),
    "speech": ("input_values", (4000,)),
    "spectrum": ("input_features", SPECTRUM),
}
BASE = {**SIZES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
UNGROUPED = {name: value for name, value in BASE.items() if name != "num_key_value_heads"}


@dataclass(frozen=True)
class Architecture:
    """One architecture.

    Attributes
    ----------
    model : the class in transformers
    kind : one of ``KINDS``
    sizes : what its configuration is given
    outcomes : a word for each of ``JOBS``: "yes", "refused", or "—" where it is not checked
    reads : "text", or one of ``SHAPES``
    rule : a rule that is no softmax; one that is, with a scale of its own, where no other can be had
    pieces : the passes over a text with a cache
    takes_cache : whether the cache must be given, because the model returns none
    note : what else to know
    """

    model: str
    kind: str
    sizes: dict[str, Any] = field(repr=False)
    outcomes: str = field(repr=False)
    reads: str = "text"
    rule: str = "entmax15"
    pieces: tuple[int, ...] = (7, 1, 1, 3, 2)
    takes_cache: bool = False
    note: str = field(default="", repr=False)

    def outcome(self, job: str) -> str:
        """What becomes of one of ``JOBS``."""
        return dict(zip(JOBS, self.outcomes.split(), strict=True))[job]

    @property
    def is_causal(self) -> bool:
        """Whether its output at a token of a text depends on no later one."""
        return self.kind in (CAUSAL, HYBRID, BOTH)

    @cached_property
    def text(self) -> str:
        """The argument that is read token by token."""
        return "decoder_input_ids" if self.kind == BOTH else "input_ids"

    def build(self, implementation: str | None = None) -> Any:
        """The model with the same weights every time; with the implementation that transformers gives it, or this."""
        kind = getattr(transformers, self.model)
        torch.manual_seed(0)
        chosen = {} if implementation is None else {"attn_implementation": implementation}
        return kind._from_config(kind.config_class(**self.sizes), **chosen).eval()

    def inputs(self) -> dict[str, Tensor]:
        """A batch to read."""
        if self.reads == "text":
            given = {"input_ids": tokens(BATCH, LENGTH)}
        else:
            name, shape = SHAPES[self.reads]
            given = {name: torch.randn(BATCH, *shape, generator=torch.Generator().manual_seed(0))}
        return given | ({"decoder_input_ids": tokens(BATCH, DECODED, seed=1)} if self.kind == BOTH else {})
