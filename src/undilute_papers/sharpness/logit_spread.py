"""How far apart are the logits of a row, and how much can one key hold with that?  δ = max − min over visible keys.

The table of Gemma's logit spreads in the summary of Veličković et al., arXiv:2410.01104, for any list of models.
Softmax gives no key among n more than
    1/(1 + (n − 1)e^(−δ)),
so a spread that stayed as it is would be a ceiling on the top weight at any length. The ceiling is sharp for one key
that leads n − 1 equal ones, and says little for a wide spread: the smallest logit, which decides δ, is rarely near the
rest.

The printed table does not say what its range and mean are taken over. Here both are given: over every row, and over
heads, each with the mean of its rows. Logits are those that the model uses, scaled, capped and biased. Rows of a causal
model see 1, 2, 3, … keys; those with fewer than ``fewest`` are left out. All rows of an encoder see the whole input, so
it is also run on shorter beginnings of the text to see how δ depends on n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from undilute.diagnosis.diagnose import encoder_lengths
from undilute.errors import InvalidValue
from undilute.models.limits import maximum_length
from undilute.models.texts import SHORTEST_LENGTH
from undilute.progress import Progress, quiet
from undilute.report.result import Chart, Comparison, Result, Row, Series
from undilute.rules.parameters import count
from undilute.theory.dispersion import logit_spread, weight_bounds
from undilute_papers.reproduction.attended import Layer, each_layer, evenly, loaded
from undilute_papers.reproduction.experiment import Experiment, option
from undilute_papers.reproduction.quartiles import QUARTILES, quartiles

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LENGTHS = (1024, 8192, 131_072)  # for the ceiling
CURVE = tuple(2**power for power in range(4, 21))
FLOAT32_UNDERFLOW = 150 * math.log(2)  # a weight this far below the top one is 0 in float32


class Printed(NamedTuple):
    """A line of the printed table."""

    model: str
    lowest: float
    highest: float
    mean: float
    std: float


PRINTED = (Printed("Gemma 2B", 2.28, 14.78, 5.69, 2.05), Printed("Gemma 7B", 0.09, 32.74, 5.82, 2.61))


@dataclass(frozen=True)
class LogitSpread(Experiment):
    """The logit spread of every head of some models, and the ceiling on the top weight that it implies."""

    id: ClassVar[str] = "logit-spread"
    source: ClassVar[str] = "arXiv:2410.01104, logit spread of Gemma (as quoted in the summary)"
    shows: ClassVar[str] = "how far apart the logits of a row are, and the most that one key can hold with that"
    quick_minutes: ClassVar[float] = 0.3
    full_minutes: ClassVar[float] = 0.3
    quick: ClassVar[dict[str, Any]] = {}

    models: tuple[str, ...] = option(("smollm2", "minilm"), "Names, folders, .gguf files or hub ids.")
    text: tuple[str, ...] = option((), "Text files to read; by default what CPython ships.")
    length: int = option(1024, "Tokens to read; a model that reads fewer gets as many as it can.")
    rows: int = option(128, "Rows of each head, evenly spaced; 0 for all.")
    fewest: int = option(16, "Rows that see fewer keys are left out.")

    def run(self, progress: Progress = quiet) -> Result:
        """Measure every head of every model, in one forward pass each (an encoder: one for each length)."""
        if not self.models:
            raise InvalidValue("--models is empty: must name at least one model.")
        evenly(count("--length", self.length), self.rows)
        if not 1 <= count("--fewest", self.fewest) <= self.length or self.length < SHORTEST_LENGTH:
            raise InvalidValue(
                f"--fewest = {self.fewest}, --length = {self.length}: rows see from 1 to {self.length} keys, and at "
                f"least {SHORTEST_LENGTH} tokens are needed."
            )
        found = []
        for place, name in enumerate(self.models):
            progress(place / len(self.models), name)
            found.append(self._measured(name))
        return self.result(
            _findings(found, self.length),
            _comparisons(found),
            {
                "spread": [line for spreads in found for line in spreads.lines()] + _printed_lines(),
                "by_keys": [line for spreads in found for line in spreads.key_lines()],
                "layers": [line for spreads in found for line in spreads.layer_lines()],
                "heads": [line for spreads in found for line in spreads.head_lines()],
            },
            [_layer_chart(found), _ceiling_chart(found), _key_chart(found)],
        )

    def _measured(self, name: str) -> Spreads:
        model, _ = loaded(name, self.text, SHORTEST_LENGTH)
        length = readable(model, self.length)
        _, ids = loaded(name, self.text, length)
        spreads = Spreads(name, length, self.fewest)
        each_layer(model, ids, spreads.add, rows=evenly(length, self.rows))
        if spreads.looks_ahead:
            for shorter in encoder_lengths(length)[:-1]:
                each_layer(model, ids[:shorter], spreads.add_shorter, rows=evenly(shorter, min(self.rows, shorter)))
        return spreads


def readable(model: PreTrainedModel, length: int) -> int:
    """``length``, or what the model can read if that is less."""
    limit = maximum_length(model)
    return length if limit is None else min(length, limit)


@dataclass
class Spreads:
    """δ of the rows of every head of one model.

    Attributes
    ----------
    model : its name
    length : tokens read
    fewest : rows that see fewer keys do not count
    looks_ahead : whether rows see later keys: an encoder
    """

    model: str
    length: int
    fewest: int
    looks_ahead: bool = False
    _layers: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)  # keys, δ, top weight: (heads, rows)
    _shorter: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # keys, δ, of an encoder's shorter inputs

    def add(self, layer: Layer) -> None:
        """Take in one layer."""
        keys, spread = _spread(layer)
        self.looks_ahead |= bool((keys > layer.rows + 1).any())
        kept = (keys >= self.fewest).all(0)
        if not kept.any():
            most = int(keys.amax(-1).min())
            because = f"it reads {most} tokens" if most >= self.length else f"a sliding window in {layer.name}"
            raise InvalidValue(
                f"--fewest = {self.fewest}: a token of {self.model} sees at most {most} keys ({because}); --fewest "
                f"must be at most {most}."
            )
        self._layers.append((keys[:, kept], spread[:, kept], layer.weights.amax(-1).double()[:, kept]))

    def add_shorter(self, layer: Layer) -> None:
        """Take in one layer of an encoder that reads a shorter input."""
        self._shorter.append(_spread(layer))

    @property
    def per_row(self) -> Tensor:
        """δ of every row that counts, flat."""
        return torch.cat([spread.flatten() for _, spread, _ in self._layers])

    @property
    def per_head(self) -> Tensor:
        """(heads,): means over rows."""
        return torch.cat([spread.mean(-1) for _, spread, _ in self._layers])

    @property
    def own(self) -> tuple[Tensor, Tensor]:
        """The ceiling of every row at its own δ and number of keys, and the top weight it has: flat, both."""
        keys = torch.cat([keys.flatten() for keys, _, _ in self._layers])
        tops = torch.cat([top.flatten() for _, _, top in self._layers])
        return weight_bounds(keys, self.per_row).upper, tops

    def lines(self) -> list[Row]:
        """Two lines of the table: over rows and over heads."""
        over = {"rows": self.per_row, "heads, mean over rows": self.per_head}
        return [_summary(self.model, name, self.length, *_moments(values)) for name, values in over.items()]

    def key_lines(self) -> list[Row]:
        """δ for each octave of keys, around a power of two."""
        pairs = [(keys, spread) for keys, spread, _ in self._layers] + self._shorter
        keys = torch.cat([each.flatten() for each, _ in pairs])
        spread = torch.cat([each.flatten() for _, each in pairs])
        octave = keys.double().log2().round()
        lines: list[Row] = []
        for each in octave.unique().tolist():
            of = spread[octave == each]
            figures = {"rows": len(of), "mean": float(of.mean()), **quartiles(of)}
            lines.append({"model": self.model, "keys": int(2**each), **figures})
        return lines

    def layer_lines(self) -> list[Row]:
        """Quartiles over the heads of each layer of the means over rows."""
        return [
            {"model": self.model, "layer": place, **quartiles(spread.mean(-1))}
            for place, (_, spread, _) in enumerate(self._layers)
        ]

    def head_lines(self) -> list[Row]:
        """One line for each head."""
        return [
            {
                "model": self.model,
                "layer": place,
                "head": head,
                "mean": float(rows.mean()),
                "lowest": float(rows.min()),
                "highest": float(rows.max()),
            }
            for place, (_, spread, _) in enumerate(self._layers)
            for head, rows in enumerate(spread)
        ]


def _spread(layer: Layer) -> tuple[Tensor, Tensor]:
    """How many keys each row sees, and its δ: (heads, rows) both."""
    return layer.seen, logit_spread(layer.logits, layer.visible.expand(layer.logits.shape))


def _moments(values: Tensor) -> tuple[float, float, float, float]:
    """Lowest, highest, mean, standard deviation."""
    spread = float(values.std()) if len(values) > 1 else 0.0
    return float(values.min()), float(values.max()), float(values.mean()), spread


def ceiling(keys: int, spread: float) -> float:
    """The most that one of ``keys`` keys can hold when logits differ by at most ``spread``.

    Examples
    --------
    >>> round(ceiling(1024, 5.69), 3)
    0.224
    """
    return float(weight_bounds(keys, spread).upper)


def _summary(
    model: str, over: str, tokens: int | None, lowest: float, highest: float, mean: float, std: float
) -> dict[str, float | int | str | None]:
    return {
        "model": model,
        "over": over,
        "tokens": tokens,
        "lowest": lowest,
        "highest": highest,
        "mean": mean,
        "std": std,
        **{f"ceiling of the mean, n={n}": ceiling(n, mean) for n in LENGTHS},
        **{f"ceiling of the lowest, n={n}": ceiling(n, lowest) for n in LENGTHS},
        **{f"ceiling of the highest, n={n}": ceiling(n, highest) for n in LENGTHS},
    }


def _printed_lines() -> list[Row]:
    return [_summary(each.model, "as printed", None, *each[1:]) for each in PRINTED]


# What came out


def _findings(found: Sequence[Spreads], length: int) -> list[str]:
    sentences = []
    for spreads in found:
        lowest, highest, mean, std = _moments(spreads.per_head)
        low, high, row_mean, row_std = _moments(spreads.per_row)
        held = ", ".join(f"{ceiling(n, mean):.3g} at {n:,}" for n in LENGTHS)
        most = ", ".join(f"{ceiling(n, highest):.3g} at {n:,}" for n in LENGTHS)
        limits, tops = spreads.own
        sentences += [
            f"{spreads.model}: δ of a head is {lowest:.2f} to {highest:.2f}, mean {mean:.2f} ± {std:.2f}, over "
            f"{len(spreads.per_head)} heads, each the mean of its rows; over rows {low:.2f} to {high:.2f}, mean "
            f"{row_mean:.2f} ± {row_std:.2f}.",
            f"{spreads.model}: with its mean δ no key can hold more than {held} keys; with its widest head {most}. A "
            f"row's own ceiling is {float(limits.mean()):.2f} on average and above one half in "
            f"{100 * float((limits > 0.5).double().mean()):.0f} % of rows, while its top weight is "
            f"{float(tops.mean()):.2f}: the wider the spread, the less the ceiling says.",
        ]
        sentences += _growth(spreads)
    cut = [f"{spreads.model} {spreads.length:,}" for spreads in found if spreads.length < length]
    if cut:
        sentences.append(f"Asked for {length:,} tokens, some models read fewer: {', '.join(cut)}.")
    return [*sentences, _about_printed(found)]


def _growth(spreads: Spreads) -> list[str]:
    lines = spreads.key_lines()
    first, last = lines[0], lines[-1]
    octaves = math.log2(float(last["keys"] or 1) / float(first["keys"] or 1))
    if not octaves:
        return []
    rise = float(last["mean"] or 0.0) - float(first["mean"] or 0.0)
    told = (
        "so a ceiling from a short text is too low for a longer one" if rise > 0 else "so it does not widen with n here"
    )
    return [
        f"{spreads.model}: δ depends on how many keys a row sees: {float(first['mean'] or 0):.2f} on average near "
        f"{first['keys']:,} keys, {float(last['mean'] or 0):.2f} near {last['keys']:,} ({rise / octaves:+.2f} for each "
        f"doubling), {told}."
    ]


def _models(found: Sequence[Spreads]) -> str:
    return ", ".join(spreads.model for spreads in found)


def _about_printed(found: Sequence[Spreads]) -> str:
    lines = "; ".join(f"{p.model} [{p.lowest:g}, {p.highest:g}], {p.mean:g} ± {p.std:g}" for p in PRINTED)
    held = ", ".join(f"{ceiling(n, PRINTED[0].mean):.3g} at {n:,}" for n in LENGTHS)
    return (
        f"Printed: {lines}. The printed mean of {PRINTED[0].model} implies at most {held} keys. The table does not say "
        "what it is over, nor how many keys the rows saw, and was found in the summary only; run here: "
        f"{_models(found)}."
    )


def _comparisons(found: Sequence[Spreads]) -> list[Comparison]:
    first = found[0]
    lowest, highest, mean, std = _moments(first.per_head)
    widest = max(float(spreads.per_row.max()) for spreads in found)
    note = f"Computed for {first.model}: another model and text, heads as means over rows."
    rows = []
    for each in PRINTED:
        for what, printed, computed in (
            ("lowest δ", each.lowest, lowest),
            ("highest δ", each.highest, highest),
            ("mean δ", each.mean, mean),
            ("standard deviation of δ", each.std, std),
        ):
            rows.append(Comparison(f"{what}, {each.model}", printed, computed, "other set-up", note=note))
    rows.append(
        Comparison(
            "δ beside what floating-point numbers allow",
            "far smaller",
            f"at most {widest:.1f}, of {FLOAT32_UNDERFLOW:.0f} at which a float32 weight becomes 0",
            "other set-up",
            note=f"Over every row of {_models(found)}; the claim is about Gemma and the authors' text.",
        )
    )
    return rows


# Charts


def _values(lines: Sequence[Row], name: str) -> list[float]:
    return [float(line[name] or 0.0) for line in lines]


def _layer_chart(found: Sequence[Spreads]) -> Chart:
    series = []
    for spreads in found:
        lines = spreads.layer_lines()
        boxes = [[float(line[name] or 0.0) for name in QUARTILES] for line in lines]
        series.append(Series(spreads.model, _values(lines, "layer"), _values(lines, "median"), boxes=boxes))
    return Chart(
        "layers",
        "Logit spread of the heads in each layer",
        "layer",
        "δ, mean over rows of a head",
        series,
        note="Boxes over the heads of a layer.",
    )


def _ceiling_chart(found: Sequence[Spreads]) -> Chart:
    series = []
    for spreads in found:
        lowest, highest, mean, _ = _moments(spreads.per_head)
        at, low, high = ([ceiling(n, spread) for n in CURVE] for spread in (mean, lowest, highest))
        series.append(Series(f"{spreads.model}, δ = {mean:.2f}", CURVE, at, low=low, high=high))
    for each in PRINTED:
        at = [ceiling(n, each.mean) for n in CURVE]
        series.append(Series(f"{each.model}, δ = {each.mean:.2f} (printed)", CURVE, at, printed=True))
    return Chart(
        "ceiling",
        "The most that one key can hold if the spread stays as it is",
        "n, keys",
        "largest possible weight",
        series,
        x_log=2,
        y_log=10,
        note="At the mean δ; shaded from the lowest to the highest head that was measured.",
    )


def _key_chart(found: Sequence[Spreads]) -> Chart:
    series = []
    for spreads in found:
        lines = spreads.key_lines()
        low, high = _values(lines, "first_quartile"), _values(lines, "third_quartile")
        series.append(Series(spreads.model, _values(lines, "keys"), _values(lines, "mean"), low=low, high=high))
    return Chart(
        "keys",
        "The spread depends on how many keys a row sees",
        "n, keys that a row sees",
        "δ of a row",
        series,
        x_log=2,
        note="Mean over rows and heads, shaded between the quartiles.",
    )
