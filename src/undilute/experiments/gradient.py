"""How far do attention weights move when the logits move a little?  g(T, ε) over the temperature.

Figure 4 of Mudarisov et al., arXiv:2508.17821 (v1):
    g(T, ε) = ‖softmax((l + εv)/T) − softmax(l/T)‖₂ / ε,   ‖v‖₂ = 1.
As published (Algorithm 5): v is a random direction for each row, over the keys that it sees; mean over rows, largest
over heads. That cannot test a bound on the norm of the Jacobian: for small ε a random direction gives ‖J‖_F/√n on
average, while the norm is what the worst direction gives. So beside it, for the same rows:
    ‖J‖₂, exact (``undilute.theory.jacobian``): the limit of the worst direction for small ε;
    g along the worse of two directions: against the top eigenvector of J, and with the two largest logits moved against
    each other. Another direction may be worse still, but none passes the proven supremum (√2/ε)·tanh(ε/(2√2·T)).
Bounds: as printed, min{1/(4T), √2} (Corollary 3: the quarter is that of the largest entry, the √2 that of a difference
of weights, before it is divided by ε); true, min{1/(2T), √2/ε}.

The same random directions serve every T and ε, so that curves differ by T and ε only. T divides the logits as the model
uses them, q·k/√d; the publication does not say, and ``scaled = False`` makes it divide q·k. Differences are taken as
p·(e^x − 1 − m)/(1 + m), x = εv/T, m = Σp(e^x − 1), in float64, so that nothing cancels for small ε.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.experiments.attended import Layer, each_layer, loaded
from undilute.experiments.experiment import Experiment, Progress, option, quiet
from undilute.experiments.result import Chart, Comparison, Result, Row, Series
from undilute.models.capture import sampled
from undilute.rules.parameters import count
from undilute.theory.inputs import numbers
from undilute.theory.jacobian import largest_sensitivity, sensitivity_cap, worst_direction

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCK = 2**16  # logits at a time: what a core's cache holds
SMALL = 0.1  # "for T < 0.1"


def evenly(length: int, rows: int) -> Tensor:
    """Positions of ``rows`` evenly spaced rows of ``length``, the first and the last among them; all for 0.

    Examples
    --------
    >>> evenly(101, 3)
    tensor([  0,  50, 100])
    """
    if rows < 0:
        raise InvalidValue(f"rows = {rows}: must be a number of rows, or 0 for all of them.")
    return sampled(torch.arange(length), rows or length, evenly=True)


def layer_count(model: PreTrainedModel) -> int:
    """How many layers a model says it has: for progress only."""
    config = model.config.get_text_config()
    return int(getattr(config, "num_hidden_layers", None) or 1)


def blocks(layer: Layer, logits: int) -> Iterator[Layer]:
    """The layer a few rows at a time, about ``logits`` of them, without the keys that none of these rows sees."""
    heads, rows, keys = layer.logits.shape
    seen = (layer.visible * torch.arange(1, keys + 1)).amax(-1)
    stops: list[int] = (seen.amax(0) if seen.ndim == 2 else seen).clamp(min=min(2, keys)).tolist()
    start = 0
    for end in range(1, rows + 1):
        if end == rows or heads * (end + 1 - start) * max(stops[start : end + 1]) > logits:
            last, of = max(stops[start:end]), slice(start, end)
            yield replace(
                layer,
                logits=layer.logits[:, of, :last],
                visible=layer.visible[..., of, :last],
                x=layer.x[:, :last],
                rows=layer.rows[of],
            )
            start = end


@dataclass(frozen=True)
class Gradient(Experiment):
    """Figure 4: how much the weights of every head move for a step of ε in the logits, over the temperature."""

    id: ClassVar[str] = "gradient"
    source: ClassVar[str] = "arXiv:2508.17821v1, Fig. 4"
    shows: ClassVar[str] = "how far weights move when logits move: random and worst direction, false and true bound"
    quick_minutes: ClassVar[float] = 0.5
    full_minutes: ClassVar[float] = 0.5
    quick: ClassVar[dict[str, Any]] = {"rows": 32}

    model: str = option("smollm2", "A name, a folder, a .gguf file or a hub id.")
    text: tuple[str, ...] = option((), "Text files to read; by default what CPython ships.")
    length: int = option(1024, "Tokens to read.")
    epsilons: tuple[float, ...] = option((1e-3, 0.1, 10.0), "Lengths of the step in the logits.")
    temperatures: tuple[float, ...] = option(
        (1e-3, 3e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 3.0, 10.0, 30.0, 100.0), "What the logits are divided by."
    )
    scaled: bool = option(True, "The temperature divides q·k/√d; without it, q·k.")
    rows: int = option(64, "Rows of each head, evenly spaced; 0 for all.")
    directions: int = option(1, "Random directions for each row.")
    seed: int = option(0, "Of the random directions.")

    def run(self, progress: Progress = quiet) -> Result:
        """Move the logits of every head, in one forward pass of the model."""
        temperatures = _positive("temperatures", self.temperatures)
        epsilons = _positive("epsilons", self.epsilons)
        rows = evenly(count("length", self.length), self.rows)
        steps = Steps(temperatures, epsilons, count("directions", self.directions), self.seed)
        model, ids = loaded(self.model, self.text, self.length)
        factor, layers = 1.0 if self.scaled else math.sqrt(_head_features(model)), layer_count(model)

        def use(layer: Layer) -> None:
            steps.add(replace(layer, logits=layer.logits * factor))
            progress(min(1.0, (layer.index + 1) / layers), f"layer {layer.index + 1}")

        each_layer(model, ids, use, rows=rows)
        lines, norms = steps.lines(), steps.norm_lines()
        return self.result(
            _findings(lines, norms, steps),
            _comparisons(lines, norms),
            {"steps": lines, "jacobian": norms, "heads": steps.head_lines()},
            [_published_chart(lines), _worst_chart(lines), _norm_chart(norms, lines)],
        )


def _positive(name: str, values: Sequence[float]) -> list[float]:
    if not len(values):
        raise InvalidValue(f"{name} is empty: must be at least one number above 0.")
    listed: list[float] = numbers(name, list(values), above=0.0).tolist()
    return sorted(listed)


def _head_features(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


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
    """‖softmax(z + ratio·v) − softmax(z)‖₂: :func:`undilute.theory.jacobian.sensitivity` without its checks, times ε.

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
    if ratio > 1:
        change = x.add_(scaled).softmax(-1).sub_(weights)
    else:
        grown = x.expm1_()
        mean = (weights * grown).sum(-1, keepdim=True)
        change = grown.sub_(mean).mul_(weights).div_(1 + mean)
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


# What came out


def slope(temperatures: Sequence[float], values: Sequence[float]) -> float | None:
    """Exponent of T by least squares in logarithms; None for fewer than two positive values.

    Examples
    --------
    >>> slope([0.01, 0.1], [5.0, 0.5])
    -1.0
    """
    points = [(math.log(T), math.log(y)) for T, y in zip(temperatures, values, strict=True) if y > 0]
    if len(points) < 2:
        return None
    mean_x, mean_y = (sum(each) / len(points) for each in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return round(sum((x - mean_x) * (y - mean_y) for x, y in points) / spread, 9) if spread else None


def _of(lines: Sequence[Row], **fixed: float) -> list[Row]:
    return [line for line in lines if all(line[name] == value for name, value in fixed.items())]


def _column(lines: Sequence[Row], name: str) -> list[float]:
    return [float(line[name] or 0.0) for line in lines]


def _epsilons(lines: Sequence[Row]) -> list[float]:
    return sorted(set(_column(lines, "epsilon")))


def _small(lines: Sequence[Row]) -> list[Row]:
    return [line for line, T in zip(lines, _column(lines, "temperature"), strict=True) if T < SMALL]


def _findings(lines: Sequence[Row], norms: Sequence[Row], steps: Steps) -> list[str]:
    broken, cases = sum(map(int, _column(norms, "rows_above_printed"))), sum(map(int, _column(norms, "rows")))
    heads = int((steps.heads("broken").sum(0) > 0).sum())
    excess = max(row / bound for row, bound in _pairs(norms, "norm_highest_row", "printed_bound"))
    closest = max(row / bound for row, bound in _pairs(norms, "norm_highest_row", "bound"))
    step = max(row / top for row, top in _pairs(lines, "worst_row", "supremum"))
    smallest = _of(lines, epsilon=_epsilons(lines)[0])
    ratio = [worst / max(random, 1e-300) for worst, random in _pairs(smallest, "worst_mean", "published")]
    median = _column(smallest, "worst_over_random_median_head")
    found = [
        f"The printed bound min{{1/(4T), √2}} on ‖J‖₂ is exceeded in {broken:,} of {cases:,} cases (a row, a T), in "
        f"{heads} of {len(steps.names)} heads at some T; the largest ‖J‖₂ is {excess:.3g} times the bound. The true "
        f"bound 1/(2T) is reached to {100 * closest:.2f} %, the supremum of a finite step to {100 * step:.2f} %.",
        f"A random direction, as published, misses the worst one: with ε = {_epsilons(lines)[0]:g} the worst direction "
        f"moves the largest head {min(ratio):.3g} to {max(ratio):.3g} times as far, over T, and the median head "
        f"{min(median):.3g} to {max(median):.3g} times. So the published estimate cannot test a bound on ‖J‖₂.",
    ]
    return [*found, *_slope_findings(lines, norms), *_cap_findings(lines)]


def _pairs(lines: Sequence[Row], first: str, second: str) -> list[tuple[float, float]]:
    return list(zip(_column(lines, first), _column(lines, second), strict=True))


def _slope_findings(lines: Sequence[Row], norms: Sequence[Row]) -> list[str]:
    def fitted(rows: Sequence[Row], name: str) -> float | None:
        return slope(_column(rows, "temperature"), _column(rows, name))

    small, low = _small(lines), _small(norms)
    slopes = {epsilon: fitted(_of(small, epsilon=epsilon), "published") for epsilon in _epsilons(lines)}
    told = ", ".join(f"T^{value:.2f} at ε = {epsilon:g}" for epsilon, value in slopes.items() if value is not None)
    highest, mean = fitted(low, "norm_highest_row"), fitted(low, "norm_highest_head")
    if not told or highest is None or mean is None:
        return []
    return [
        f"Below T = {SMALL:g} the published estimate goes as {told}. The largest ‖J‖₂ of any row goes as "
        f"T^{highest:.2f}, the mean over rows of the largest head as T^{mean:.2f}. 1/T is the envelope: only rows "
        "whose two largest logits are tied to within about T come near it, and the lower T, the fewer they are."
    ]


def _cap_findings(lines: Sequence[Row]) -> list[str]:
    largest = _epsilons(lines)[-1]
    capped = [line for line in _small(lines) if line["epsilon"] == largest]
    if not capped:
        return []
    share = [value * largest / math.sqrt(2) for value in _column(capped, "published")]
    worst = [value * largest / math.sqrt(2) for value in _column(capped, "worst_mean")]
    return [
        f"No difference of weights is longer than √2, so g ≤ √2/ε: at ε = {largest:g} at most "
        f"{math.sqrt(2) / largest:.3g}, of which the published estimate reaches {100 * min(share):.3g} to "
        f"{100 * max(share):.3g} % below T = {SMALL:g}, the worst direction {100 * min(worst):.3g} to "
        f"{100 * max(worst):.3g} %. That is why a smaller ε can give larger values, however sharp the logits are."
    ]


def _comparisons(lines: Sequence[Row], norms: Sequence[Row]) -> list[Comparison]:
    broken, cases = sum(map(int, _column(norms, "rows_above_printed"))), sum(map(int, _column(norms, "rows")))
    found = [
        Comparison(
            "bound on ‖J‖₂ of softmax",
            "min{1/(4T), √2}",
            f"exceeded in {broken:,} of {cases:,} cases",
            "differs" if broken else "agrees",
            note="Exact norm of every row's Jacobian at every T; the true bound is 1/(2T).",
        )
    ]
    small = _small(lines)
    for epsilon in _epsilons(small):
        of = _of(small, epsilon=epsilon)
        value = slope(_column(of, "temperature"), _column(of, "published"))
        if value is not None:
            found.append(
                Comparison(
                    f"exponent of T below {SMALL:g}, ε = {epsilon:g}",
                    -1.0,
                    value,
                    "agrees" if abs(value + 1) <= 0.15 else "differs",
                    note="Random direction, mean over rows, largest head.",
                )
            )
    return [*found, *_level_comparisons(lines), *_order_comparisons(small)]


def _level_comparisons(lines: Sequence[Row]) -> list[Comparison]:
    found = []
    temperatures = sorted(set(_column(lines, "temperature")))
    low, high = [T for T in temperatures if T < SMALL], [T for T in temperatures if T >= 1]
    if low and high:
        drops = {
            epsilon: max(_column(_of(_small(lines), epsilon=epsilon), "published"))
            / max(_column(_of(lines, epsilon=epsilon, temperature=high[0]), "published")[0], 1e-300)
            for epsilon in _epsilons(lines)
        }
        found.append(
            Comparison(
                f"drop from the highest value below T = {SMALL:g} to T = {high[0]:g}",
                "two orders of magnitude, all curves",
                ", ".join(f"{drop:.3g} times at ε = {epsilon:g}" for epsilon, drop in drops.items()),
                "agrees" if all(30 <= drop <= 300 for drop in drops.values()) else "differs",
                note="Agreement: every curve between 30 and 300 times.",
            )
        )
    if low:
        smallest = _of(_small(lines), epsilon=_epsilons(lines)[0])
        near = [value / bound for value, bound in _pairs(smallest, "published", "printed_bound")]
        found.append(
            Comparison(
                f"published estimate over the printed bound, T < {SMALL:g}, ε = {_epsilons(lines)[0]:g}",
                "GPT-2 operates close to the theoretical limit",
                f"{min(near):.2g} to {max(near):.2g} of it",
                "agrees" if min(near) >= 0.5 and max(near) <= 1 else "differs",
                note="Agreement: between 0.5 and 1 at every such T. Below T = 0.177 that bound is √2, which is flat: "
                "no curve follows 1/T there and stays close to it.",
            )
        )
    return found


def _order_comparisons(small: Sequence[Row]) -> list[Comparison]:
    if not small or len(_epsilons(small)) < 2:
        return []
    first, last = _epsilons(small)[0], _epsilons(small)[-1]
    few, many = (_column(_of(small, epsilon=epsilon), "published") for epsilon in (first, last))
    larger = sum(a > b for a, b in zip(few, many, strict=True))
    cap = [100 * value * last / math.sqrt(2) for value in _column(_of(small, epsilon=last), "worst_mean")]
    return [
        Comparison(
            f"smaller ε gives larger values, T < {SMALL:g}",
            "yes, because the sharpest logits dominate",
            f"ε = {first:g} above ε = {last:g} at {larger} of {len(few)} temperatures",
            "agrees" if larger == len(few) else "differs",
            note=f"The reason is another: g ≤ √2/ε whatever the logits, and in the worst direction ε = {last:g} gets "
            f"{max(cap):.0f} % of that.",
        )
    ]


# Charts


def _curves(lines: Sequence[Row], name: str, label: str, bound: bool = False) -> list[Series]:
    return [
        Series(f"{label}, ε = {epsilon:g}", _column(of, "temperature"), _column(of, name), bound=bound)
        for epsilon in _epsilons(lines)
        if (of := _of(lines, epsilon=epsilon))
    ]


def _printed_series(lines: Sequence[Row]) -> Series:
    temperatures = sorted(set(_column(lines, "temperature")))
    bounds = [printed_bound(T) for T in temperatures]
    return Series("bound as printed, min{1/(4T), √2}", temperatures, bounds, bound=True)


def _published_chart(lines: Sequence[Row]) -> Chart:
    return Chart(
        "random",
        "As published, a random direction for each row, beside both bounds",
        "temperature T",
        "g(T, ε), largest head, mean over rows",
        [*_curves(lines, "published", "random"), _printed_series(lines), *_curves(lines, "bound", "true bound", True)],
        x_log=10,
        y_log=10,
        note="True bound: min{1/(2T), √2/ε}.",
    )


def _worst_chart(lines: Sequence[Row]) -> Chart:
    return Chart(
        "worst",
        "The worst direction, beside its supremum and the printed bound",
        "temperature T",
        "g(T, ε), largest row of any head",
        [*_curves(lines, "worst_row", "worst"), _printed_series(lines), *_curves(lines, "supremum", "supremum", True)],
        x_log=10,
        y_log=10,
        note="Worst of two directions: the Jacobian's top eigenvector, and the two largest logits against each other. "
        "Supremum: (√2/ε)·tanh(ε/(2√2·T)).",
    )


def _norm_chart(norms: Sequence[Row], lines: Sequence[Row]) -> Chart:
    temperatures = _column(norms, "temperature")
    epsilon = _epsilons(lines)[0]
    random = _column(_of(lines, epsilon=epsilon), "published")
    return Chart(
        "jacobian",
        "Exact norm of the Jacobian, beside the printed and the true bound",
        "temperature T",
        "‖J‖₂",
        [
            Series("largest row of any head", temperatures, _column(norms, "norm_highest_row")),
            Series("largest head, mean over rows", temperatures, _column(norms, "norm_highest_head")),
            Series("median head, mean over rows", temperatures, _column(norms, "norm_median_head")),
            Series(f"as published: random direction, ε = {epsilon:g}", temperatures, random),
            _printed_series(lines),
            Series("true bound, 1/(2T)", temperatures, _column(norms, "bound"), bound=True),
        ],
        x_log=10,
        y_log=10,
    )
