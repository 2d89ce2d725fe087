"""How far do the weights of every head move for a step of ε in its logits, in a random and in the worst direction?

    g(T, ε) = ‖softmax((l + εv)/T) − softmax(l/T)‖₂ / ε,   ‖v‖₂ = 1,
row by row, and ‖J‖₂, the exact norm of the Jacobian (``undilute.theory.jacobian``), all in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from undilute.report.result import Row
from undilute.theory.jacobian import worst_direction
from undilute_papers.reproduction.attended import Layer, blocks
from undilute_papers.theory.finite_steps import largest_sensitivity, sensitivity_cap, small_change

BLOCK = 2**16  # logits at a time: what a core's cache holds


def printed_bound(temperature: float) -> float:
    """Corollary 3 as printed: min{1/(4T), √2}.

    Examples
    --------
    >>> printed_bound(1.0)
    0.25
    """
    return min(1 / (4 * temperature), math.sqrt(2))


def random_directions(visible: Tensor, generator: torch.Generator) -> Tensor:
    """Unit directions uniform over the keys that each row sees: (..., keys) bool → (..., keys); 0 where hidden."""
    drawn = torch.randn(visible.shape, generator=generator, dtype=torch.float64)
    unit: Tensor = torch.nn.functional.normalize(drawn.masked_fill_(~visible, 0.0), dim=-1)
    return unit


def moved(scaled: Tensor, weights: Tensor, direction: Tensor, ratio: float) -> Tensor:
    """‖softmax(z + ratio·v) − softmax(z)‖₂: ``undilute_papers.theory.finite_steps.sensitivity`` times ε, unchecked.

    Parameters
    ----------
    scaled : (..., keys), z = l/T, −∞ where hidden
    weights : (..., keys), softmax of ``scaled``
    direction : (..., keys), unit vectors v, 0 where hidden
    ratio : ε/T

    Examples
    --------
    >>> z = torch.zeros(2, dtype=torch.float64)
    >>> moved(z, z.softmax(-1), torch.tensor([1.0, -1.0], dtype=torch.float64) / 2**0.5, 1e-9) / 1e-9
    tensor(0.5000, dtype=torch.float64)
    """
    x = direction * ratio
    change = x.add_(scaled).softmax(-1).sub_(weights) if ratio > 1 else small_change(weights, x)
    length: Tensor = torch.linalg.vector_norm(change, dim=-1)
    return length


def moved_at_once(weights: Tensor, direction: Tensor) -> Tensor:
    """‖(diag(p) − ppᵀ)v‖₂, the limit of ``moved``/ratio for small steps; for the worst direction, T·‖J‖₂ itself."""
    change = weights * (direction - (weights * direction).sum(-1, keepdim=True))
    length: Tensor = torch.linalg.vector_norm(change, dim=-1)
    return length


class TopTwo:
    """The two largest logits of each row, moved against each other by ε/√2 each, and what that does to the weights.

    Parameters
    ----------
    scaled : (..., keys), z = l/T, −∞ where hidden
    weights : (..., keys), softmax of ``scaled``
    places : (..., 2), where the two largest are; a row of one key moves nowhere
    """

    def __init__(self, scaled: Tensor, weights: Tensor, places: Tensor) -> None:
        others = weights.scatter(-1, places, 0.0)
        self.logs = scaled.gather(-1, places) - scaled.logsumexp(-1, keepdim=True)
        self.rest = others.sum(-1, keepdim=True).log()
        self.length = torch.linalg.vector_norm(others, dim=-1)
        self.alone = self.logs[..., 1].isneginf()

    def moved(self, ratio: float) -> Tensor:
        """(...,): the distance the weights move; ``ratio`` is ε/T."""
        half = torch.tensor([-ratio, ratio], dtype=torch.float64) / math.sqrt(2)
        after = self.logs + half
        total = torch.cat([after, self.rest], -1).logsumexp(-1, keepdim=True)
        two = ((after - total).exp() - self.logs.exp()).square().sum(-1)
        others = ((self.length.log() - total.squeeze(-1)).exp() - self.length).square()
        length: Tensor = (two + others).sqrt()
        return length.masked_fill(self.alone, 0.0)


class Steps:
    """Every head's g(T, ε) in a random and in the worst direction, and its ‖J‖₂, over its rows."""

    def __init__(self, temperatures: Sequence[float], epsilons: Sequence[float], directions: int, seed: int) -> None:
        self.temperatures, self.epsilons, self.directions = temperatures, epsilons, directions
        self.names: list[tuple[int, int]] = []
        self.rows = 0
        self._generator = torch.Generator().manual_seed(seed)
        self._printed = torch.tensor([printed_bound(T) for T in temperatures], dtype=torch.float64)[:, None, None]
        self._kept: dict[str, list[Tensor]] = {}

    def add(self, layer: Layer) -> None:
        """Measure one layer."""
        v = random_directions(layer.visible.expand(self.directions, *layer.logits.shape), self._generator)
        steps, norms, start = [], [], 0
        for piece in blocks(layer, BLOCK):
            _, rows, keys = piece.logits.shape
            step, norm = self._block(piece.logits.double(), v[:, :, start : start + rows, :keys])
            steps.append(step)
            norms.append(norm)
            start += rows
        self.names += [(layer.index, head) for head in range(len(layer.logits))]
        self.rows = start
        self._keep(torch.cat(steps, -1), torch.cat(norms, -1))

    def _block(self, logits: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """g in a random and in the worst direction, (2, temperatures, epsilons, heads, rows), and ‖J‖₂."""
        places = logits.topk(2, dim=-1).indices
        steps = torch.empty(2, len(self.temperatures), len(self.epsilons), *logits.shape[:2], dtype=torch.float64)
        norms = torch.empty(len(self.temperatures), *logits.shape[:2], dtype=torch.float64)
        for t, temperature in enumerate(self.temperatures):
            z = logits / temperature
            p = z.softmax(-1)
            back = -worst_direction(p)  # the top weight falls: towards a tie, where the Jacobian is largest
            norms[t] = moved_at_once(p, back) / temperature
            two = TopTwo(z, p, places)
            for e, epsilon in enumerate(self.epsilons):
                ratio = epsilon / temperature
                steps[0, t, e] = torch.stack([moved(z, p, v, ratio) for v in directions]).mean(0) / epsilon
                steps[1, t, e] = torch.maximum(moved(z, p, back, ratio), two.moved(ratio)) / epsilon
        return steps, norms

    def _keep(self, steps: Tensor, norms: Tensor) -> None:
        kept = {  # (temperatures, epsilons, heads) three times, then (temperatures, heads)
            "random": steps[0].mean(-1),
            "worst": steps[1].mean(-1),
            "worst_row": steps[1].amax(-1),
            "norm": norms.mean(-1),
            "norm_row": norms.amax(-1),
            "broken": (norms > self._printed * (1 + 1e-12)).sum(-1).double(),
        }
        for name, values in kept.items():
            self._kept.setdefault(name, []).append(values)

    def heads(self, name: str) -> Tensor:
        """(temperatures, epsilons, heads) of "random", "worst" and "worst_row"; (temperatures, heads) of the others."""
        return torch.cat(self._kept[name], -1)

    def lines(self) -> list[Row]:
        """One line for each T and ε."""
        random, worst, worst_row = (self.heads(name) for name in ("random", "worst", "worst_row"))
        ratio = (worst / random.clamp(min=1e-300)).nan_to_num(0.0)
        return [
            {
                "temperature": T,
                "epsilon": epsilon,
                "published": float(random[t, e].max()),
                "published_median_head": float(random[t, e].median()),
                "worst_mean": float(worst[t, e].max()),
                "worst_row": float(worst_row[t, e].max()),
                "worst_over_random_median_head": float(ratio[t, e].median()),
                "supremum": float(largest_sensitivity(epsilon, T)),
                "bound": float(sensitivity_cap(epsilon, T)),
                "printed_bound": printed_bound(T),
            }
            for t, T in enumerate(self.temperatures)
            for e, epsilon in enumerate(self.epsilons)
        ]

    def norm_lines(self) -> list[Row]:
        """One line for each T: the exact norm of the Jacobian against both bounds."""
        norm, norm_row, broken = (self.heads(name) for name in ("norm", "norm_row", "broken"))
        return [
            {
                "temperature": T,
                "norm_median_head": float(norm[t].median()),
                "norm_highest_head": float(norm[t].max()),
                "norm_highest_row": float(norm_row[t].max()),
                "printed_bound": printed_bound(T),
                "bound": 1 / (2 * T),
                "rows_above_printed": int(broken[t].sum()),
                "rows": self.rows * len(self.names),
                "heads_with_a_row_above_printed": int((broken[t] > 0).sum()),
                "heads_with_mean_above_printed": int((norm[t] > printed_bound(T)).sum()),
                "heads": len(self.names),
            }
            for t, T in enumerate(self.temperatures)
        ]

    def head_lines(self) -> list[Row]:
        """One line for each head: ‖J‖₂ and the published estimate at the temperature nearest to 1."""
        t = min(range(len(self.temperatures)), key=lambda at: abs(math.log(self.temperatures[at])))
        norm, norm_row, broken = (self.heads(name)[t].tolist() for name in ("norm", "norm_row", "broken"))
        random, worst = self.heads("random")[t], self.heads("worst")[t]
        return [
            {
                "layer": layer,
                "head": head,
                "temperature": self.temperatures[t],
                "norm_mean": norm[at],
                "norm_highest_row": norm_row[at],
                "rows_above_printed": int(broken[at]),
                **{f"published, epsilon={epsilon:g}": float(random[e, at]) for e, epsilon in enumerate(self.epsilons)},
                **{f"worst, epsilon={epsilon:g}": float(worst[e, at]) for e, epsilon in enumerate(self.epsilons)},
            }
            for at, (layer, head) in enumerate(self.names)
        ]
