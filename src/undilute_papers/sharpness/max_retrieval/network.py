"""One attention head between two small networks, as in arXiv:2410.01104, with any rule in place of softmax.

    e_i = ⟨Q ψ_q(q), K ψ_x(x_i)⟩ / √128,   z = Σ_i rule(e)_i V ψ_x(x_i),   answer = φ(z)

ψ and φ are linear → GELU → linear. So keys, values and the last layer of ψ_x are linear in the hidden features of an
item, and none of them has to be applied to every item: the first two fold into the query, the others act once, on the
average. That is the same function with a tenth of the work; ``plainly`` is the definition that tests hold it against.

Such a network is so small that the calls cost more than the work, so several of them, each with a seed of its own, are
computed at once: every tensor has a leading axis for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from undilute.rules.base import Rule
from undilute.rules.registry import learnable
from undilute_papers.sharpness.max_retrieval.task import CLASSES, ITEM

WIDTH = 128
NORMAL_WITHIN_TWO = 0.87962566103423978  # deviation of a standard normal variable that is cut off at ±2


class Projection(nn.Module):
    """A matrix for each seed: (seeds, rows, inputs) → (seeds, rows, outputs).

    Starts as in Flax, since the paper's code is in JAX: normal entries of variance 1 / inputs, cut off at two
    deviations.
    """

    def __init__(self, inputs: int, outputs: int, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        deviation = inputs**-0.5 / NORMAL_WITHIN_TWO
        self.weight = nn.Parameter(torch.empty(len(generators), inputs, outputs))
        for weight, generator in zip(self.weight.data, generators, strict=True):
            nn.init.trunc_normal_(weight, 0.0, deviation, -2 * deviation, 2 * deviation, generator)

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm(x, self.weight)


class Linear(Projection):
    """The same with a bias, which starts at 0."""

    def __init__(self, inputs: int, outputs: int, generators: Sequence[torch.Generator]) -> None:
        super().__init__(inputs, outputs, generators)
        self.bias = nn.Parameter(torch.zeros(len(generators), 1, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class _Scores(torch.autograd.Function):
    """⟨hidden_i, query⟩ for every item of a set: hidden (sets, items, d), query (sets, d) → (sets, items).

    Its gradient is where that of ``_Pooled`` in the same hidden features is added, in one pass over them instead of
    four: the backward pass comes here last, since weights depend on scores.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, query: Tensor, of_pooled: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.save_for_backward(hidden, query)
        ctx.of_pooled = of_pooled
        return torch.bmm(query.unsqueeze(-2), hidden.mT).squeeze(-2)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        hidden, query = ctx.saved_tensors
        weights, of_average = ctx.of_pooled.pop()  # not kept: the weights lead back here, and nothing would free them
        of_hidden = torch.bmm(torch.stack((upstream, weights), -1), torch.stack((query, of_average), -2))
        return of_hidden, torch.bmm(upstream.unsqueeze(-2), hidden).squeeze(-2), None


class _Pooled(torch.autograd.Function):
    """Σ_i weights_i · hidden_i; the gradient in the hidden features is left to ``_Scores``."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weights: Tensor, of_pooled: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.save_for_backward(hidden, weights)
        ctx.of_pooled = of_pooled
        return torch.bmm(weights.unsqueeze(-2), hidden).squeeze(-2)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, Tensor, None]:
        hidden, weights = ctx.saved_tensors
        ctx.of_pooled.append((weights, upstream))
        return None, torch.bmm(upstream.unsqueeze(-2), hidden.mT).squeeze(-2), None


class Attended(NamedTuple):
    """What the heads saw.

    Attributes
    ----------
    hidden : (seeds · sets, items, features), the hidden features of the items
    logits : (seeds, sets, items), before the rule's own scale
    query : (seeds, sets, 128), what a rule that reads its token is given
    of_pooled : the gradient of the average waits here for that of the logits
    """

    hidden: Tensor
    logits: Tensor
    query: Tensor
    of_pooled: list[tuple[Tensor, Tensor]]


class Network(nn.Module):
    """The network of the task, once for each seed.

    Parameters
    ----------
    rule : name of a rule, which learns what its paper learns; or a function that makes one
    seeds : of the weights
    scaled : divide the logits by √128
    """

    def __init__(self, rule: str | Callable[[], Rule], seeds: Sequence[int], scaled: bool = True) -> None:
        super().__init__()
        self.seeds = tuple(seeds)
        drawn = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.item_first, self.item_last = Linear(ITEM, WIDTH, drawn), Linear(WIDTH, WIDTH, drawn)
        self.query = nn.Sequential(Linear(1, WIDTH, drawn), nn.GELU(), Linear(WIDTH, WIDTH, drawn))
        self.Q, self.K, self.V = (Projection(WIDTH, WIDTH, drawn) for _ in range(3))
        self.answer = nn.Sequential(Linear(WIDTH, WIDTH, drawn), nn.GELU(), Linear(WIDTH, CLASSES, drawn))
        self.rules = nn.ModuleList(_seeded(rule, seed) for seed in seeds)
        self.scale = WIDTH**-0.5 if scaled else 1.0

    def forward(self, x: Tensor, query: Tensor) -> Tensor:
        """Scores of the classes.

        Parameters
        ----------
        x : (seeds, sets, items, 11)
        query : (seeds, sets, 1)

        Returns
        -------
        (seeds, sets, 10)
        """
        seen = self.attend(x, query)
        return self.read(seen, self.weigh(seen))

    def features(self, x: Tensor) -> Tensor:
        """What ψ_x is linear in: items (seeds, rows, 11) → (seeds, rows, features)."""
        return F.gelu(self.item_first(x))

    def of_features(self) -> Tensor:
        """The matrix (seeds, features, 128) that makes ψ_x of its features, but for the bias."""
        weight: Tensor = self.item_last.weight
        return weight

    def attend(self, x: Tensor, query: Tensor) -> Attended:
        """Hidden features and logits of every item."""
        seeds, sets, items, _ = x.shape
        hidden = self.features(x.flatten(1, 2)).view(seeds * sets, items, -1)
        encoded = self.query(query)
        folded = torch.bmm(self.Q(encoded), self.K.weight.mT)  # ⟨Qψ, K·⟩ = ⟨KᵀQψ, ·⟩
        asked = torch.bmm(folded, self.of_features().mT).flatten(0, 1)
        of_pooled: list[tuple[Tensor, Tensor]] = []
        inner: Tensor = _Scores.apply(hidden, asked, of_pooled)  # type: ignore[no-untyped-call]
        constant = (folded * self.item_last.bias).sum(-1, keepdim=True)
        logits = (inner.view(seeds, sets, items) + constant) * self.scale
        return Attended(hidden, logits, encoded, of_pooled)

    def weigh(self, seen: Attended, rule: nn.Module | None = None) -> Tensor:
        """Weights (seeds, sets, items) by the networks' own rules, or by another on the same logits."""
        if rule is None and any(True for _ in self.rules.parameters()):  # each seed learns something of its own
            return self._by_own_rules(seen.logits, seen.query)
        return _weights(self.rules[0] if rule is None else rule, seen.logits.flatten(0, 1)).view(seen.logits.shape)

    def _by_own_rules(self, logits: Tensor, queries: Tensor) -> Tensor:
        parts = zip(cast("list[Rule]", list(self.rules)), logits, queries, strict=True)
        return torch.stack([_weights(rule.on(query.unsqueeze(-2)), rows) for rule, rows, query in parts])

    def read(self, seen: Attended, weights: Tensor) -> Tensor:
        """Scores of the classes from the average of what was attended to."""
        flat = weights.flatten(0, 1)
        pooled: Tensor = _Pooled.apply(seen.hidden, flat, seen.of_pooled)  # type: ignore[no-untyped-call]
        # Weights need not sum to 1, so neither does what the bias is multiplied by.
        by_weight = weights.sum(-1, keepdim=True) * self.item_last.bias
        average = torch.bmm(pooled.view(*weights.shape[:2], -1), self.of_features()) + by_weight
        scores: Tensor = self.answer(self.V(average))
        return scores

    def plainly(self, x: Tensor, query: Tensor) -> Tensor:
        """``forward`` as the paper defines it, with keys and values of every item."""
        items = self.encoded_plainly(x.flatten(1, 2))
        keys, values = (each(items).view(*x.shape[:3], WIDTH) for each in (self.K, self.V))
        encoded = self.query(query)
        logits = torch.einsum("ksd,ksnd->ksn", self.Q(encoded), keys) * self.scale
        weights = self._by_own_rules(logits, encoded)
        scores: Tensor = self.answer(torch.einsum("ksn,ksnd->ksd", weights, values))
        return scores

    def encoded_plainly(self, x: Tensor) -> Tensor:
        """ψ_x of items (seeds, rows, 11), as the paper defines it: (seeds, rows, 128)."""
        encoded: Tensor = self.item_last(F.gelu(self.item_first(x)))
        return encoded


def _seeded(rule: str | Callable[[], Rule], seed: int) -> Rule:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return learnable(rule, WIDTH, num_heads=1) if isinstance(rule, str) else rule()


def _weights(rule: nn.Module, logits: Tensor) -> Tensor:
    """The rule on (rows, items), which it sees as (batch, heads, queries, keys)."""
    weights: Tensor = rule(logits[:, None, None, :])
    return weights[:, 0, 0]
