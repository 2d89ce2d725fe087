"""Every rule the tests run: all presets, every variant of every map, and a few compositions of our own."""

from __future__ import annotations

import torch

from undilute import rules
from undilute.rules import Rule

RULES: dict[str, Rule] = {
    **{name: rules.get(name) for name in rules.names()},
    "temperature 0.3": rules.get("temperature", T=0.3),
    "ssmax with bias": rules.get("ssmax", s=0.2, b=0.7),
    "logn from 4": rules.get("logn", train_length=4),
    "llama4 from 3": rules.get("llama4", beta=0.5, floor_length=3),
    "as-entmax falling": rules.get("as-entmax", beta=1.5, gamma=-0.7),
    "sink -1.5": rules.get("sink", s=-1.5),
    "entmax 0.5": rules.get("entmax", alpha=0.5),
    "entmax 1.01": rules.get("entmax", alpha=1.01),
    "entmax 1.2": rules.get("entmax", alpha=1.2),
    "entmax 1.8": rules.get("entmax", alpha=1.8),
    "entmax 3": rules.get("entmax", alpha=3.0),
    "sigmoid bias": rules.get("sigmoid", bias=-0.3),
    "sa-softmax V0": rules.get("sa-softmax", variant="V0"),
    "sa-softmax V1": rules.get("sa-softmax", variant="V1"),
    "sa-softmax V2": rules.get("sa-softmax", variant="V2"),
    "softpick 0.1": rules.get("softpick", epsilon=0.1),
    "top-k 2": rules.get("top-k", k=2),
    "top-k 30%": rules.get("top-k", fraction=0.3),
    "normmax 1.3": rules.get("normmax", alpha=1.3),
    "budget 3.5": rules.get("budget", budget=3.5),
    "focus 2": rules.get("focus", k=2, s_max=20.0),
    "focus 3, sparsemax": rules.get("focus", k=3, alpha=2.0, s_min=0.2, s_max=3.0),
    "focus growing": rules.get("focus", k=1, alpha=1.3, s_max=4.0, power=0.5),
    "adaptive sparsemax": Rule(rules.EntropyAdaptive(), rules.Entmax(2.0)),
    "length-scaled top-k": Rule(rules.LogLength(0.5), rules.TopK(3)),
    "length-scaled sigmoid": Rule(rules.LogLength(0.5, 0.5), rules.Sigmoid()),
    "adaptive sink": Rule(rules.EntropyAdaptive(), rules.Sink(0.5)),
}


def rows(*shape: int, seed: int = 0, spread: float = 2.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Random logits."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * spread).to(dtype)


def some_mask(*shape: int, seed: int = 0, visible: float = 0.6) -> torch.Tensor:
    """A random boolean mask in which every row sees at least one key."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(*shape, generator=generator) < visible
    mask[..., -1] |= ~mask.any(-1)
    return mask
