"""From the sampled rows of some windows to a verdict on each head on plain text: fits, law, kind."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undilute.diagnosis import fit
from undilute.diagnosis.factor import factor_to_hold
from undilute.diagnosis.fit import DRAWS, Array, Lines
from undilute.diagnosis.heads import Head
from undilute.diagnosis.kinds import KINDS, Evidence, Kind, Thresholds, kind
from undilute.models.capture import LayerSample

NEEDED = (
    "top_weight_without_sink",
    "top_weight_doubled_without_sink",
    "top_weight_quadrupled_without_sink",
    "n_eff_without_sink",
    "logit_spread",
    "sink_share",
    "recent_share_without_sink",
)
EFFECTIVE_SHORT, EFFECTIVE_LONG = "n_eff_share_short", "n_eff_share_long"
OWN = (EFFECTIVE_SHORT, EFFECTIVE_LONG)  # medians that a verdict needs and does not keep


@dataclass(frozen=True)
class Question:
    """What verdicts are about.

    Attributes
    ----------
    length, target : tokens measured and tokens cared about
    sinks : how many of the first keys are left out as sink
    recent : how many of the last keys count as recent
    thresholds : between the kinds
    seed : of the resampling
    """

    length: int
    target: int
    sinks: int = 1
    recent: int = 64
    thresholds: Thresholds = field(default_factory=Thresholds)
    seed: int = 0

    def others(self, n: NDArray[Any] | int) -> Array:
        """How many keys compete with the top one when a row sees n: all but it and the sink; at least 1."""
        return np.asarray(np.maximum(np.asarray(n, dtype=float) - self.sinks - 1, 1.0))


@dataclass(frozen=True, eq=False)
class Reading:
    """What was sampled in one window.

    Attributes
    ----------
    text : which text the window is of
    layers : the sampled rows of each layer, with the measures in ``NEEDED``
    """

    text: int
    layers: Sequence[LayerSample]


def verdicts(readings: Sequence[Reading], question: Question) -> list[Head]:
    """A verdict on each head of each layer, in order: on plain text, from all windows together.

    Figures are means over texts of the means over their windows. With one window, intervals are those of resampled
    rows; with several, of resampled texts and windows.

    Parameters
    ----------
    readings : of windows of the same length
    question : what to answer
    """
    texts = np.array([reading.text for reading in readings])
    alike: dict[object, list[int]] = {}  # layers with the same rows are fitted at once
    for place, layer in enumerate(readings[0].layers):
        rows = (layer.n.tobytes(), layer.position.tobytes(), layer.window, layer.looks_ahead)
        alike.setdefault(rows, []).append(place)
    found = {}
    for group in alike.values():
        layers = [readings[0].layers[place] for place in group]
        windows = [_joined([reading.layers[place] for place in group]) for reading in readings]
        places = [(layer, head) for layer in layers for head in range(layer.heads)]
        for (layer, head), verdict in zip(places, _verdicts(windows, texts, question), strict=True):
            found[layer.index, head] = replace(verdict, layer=layer.index, head=head, name=layer.name)
    return [found[place] for place in sorted(found)]


def weights_of(texts: NDArray[np.int64], seed: int, draws: int = DRAWS) -> Array:
    """(1 + draws, windows): how much each window counts; first as they are, then with texts and windows resampled."""
    generator = np.random.default_rng(seed)
    names = np.unique(texts)
    made = np.zeros((1 + draws, len(texts)))
    for draw in range(1 + draws):
        chosen = names if draw == 0 else generator.choice(names, len(names))
        for text in chosen:
            own = np.flatnonzero(texts == text)
            drawn = own if draw == 0 else generator.choice(own, len(own))
            np.add.at(made[draw], drawn, 1 / len(own) / len(chosen))
    return made


def _joined(group: Sequence[LayerSample]) -> LayerSample:
    """Layers that sampled the same rows as one layer with all their heads."""
    names = group[0].measures
    return replace(
        group[0],
        measures={name: np.concatenate([layer.measures[name] for layer in group]) for name in names},
        keys=np.concatenate([layer.keys for layer in group]),
        key_weights=np.concatenate([layer.key_weights for layer in group]),
    )


def _verdicts(windows: Sequence[LayerSample], texts: NDArray[np.int64], question: Question) -> list[Head]:
    """Of one group of layers that sampled the same rows, joined to one in each window."""
    layer, sees = windows[0], seen_at(windows[0], question)
    weights = weights_of(texts, question.seed)
    lines = [(_top_lines(each, question), _key_lines(each, question)) for each in windows]
    medians = [_medians(each, question) for each in windows]
    pooled = _mean(medians, weights[0])
    top = _pooled([top for top, _ in lines], weights)
    spread = np.max([each.measures["logit_spread"].max(1) for each in windows], 0)
    numbers = _top_weight(layer, question, sees, top, spread) | _effective_keys(
        layer, question, sees, _pooled([keys for _, keys in lines], weights)
    )
    kinds = []
    for own, median, (line, _) in zip(windows, medians, lines, strict=True):
        evidence = _evidence(own, question, median, _exponents(own, question, sees, line))
        kinds.append([kind(Evidence(**_pick(evidence, head)), question.thresholds) for head in range(layer.heads)])
    evidence = _evidence(layer, question, pooled, numbers)
    return [
        _verdict(layer, head, question, sees, _pick(pooled, head), _pick(numbers, head), _pick(evidence, head), share)
        for head, share in enumerate(_shares(kinds, texts))
    ]


def _shares(kinds: Sequence[Sequence[Kind]], texts: NDArray[np.int64]) -> list[dict[Kind, float]]:
    """For each head, the share of windows in which it is of each kind; every text counts alike."""
    weights = weights_of(texts, 0, 0)[0]
    return [
        {
            each: float(sum(weight for weight, own in zip(weights, kinds, strict=True) if own[head] == each))
            for each in KINDS
        }
        for head in range(len(kinds[0]))
    ]


def _pooled(lines: Sequence[Lines], weights: Array) -> Lines:
    """One line for several windows."""
    if len(lines) == 1:
        return lines[0]
    intercepts = weights @ np.stack([line.intercept for line in lines])
    slopes = weights @ np.stack([line.slope for line in lines])
    return Lines(intercepts[0], slopes[0], intercepts[1:], slopes[1:])


def _mean(windows: Sequence[dict[str, Array]], weights: Array) -> dict[str, Array]:
    """The weighted mean of what is finite; NaN if nothing is."""
    found = {}
    for name in windows[0]:
        values = np.stack([each[name] for each in windows])
        counted = np.isfinite(values) * weights[:, None]
        total = counted.sum(0)
        kept = np.where(np.isfinite(values), values, 0.0)
        found[name] = np.where(total > 0, (counted * kept).sum(0) / np.where(total > 0, total, 1.0), np.nan)
    return found


def _medians(layer: LayerSample, question: Question) -> dict[str, Array]:
    """Each measure's median over long rows, and what else a verdict needs of a window."""
    long, short = octave(layer.n, last=True), octave(layer.n, last=False)
    found = {name: _median(values[:, long]) for name, values in layer.measures.items()}
    share = layer.measures["n_eff_without_sink"] / np.maximum(layer.n - question.sinks, 1)
    return found | {
        EFFECTIVE_SHORT: _median(share[:, short]),
        EFFECTIVE_LONG: _median(share[:, long]),
        "rise_doubled": _rise(layer, "doubled"),
        "rise_quadrupled": _rise(layer, "quadrupled"),
    }


def seen_at(layer: LayerSample, question: Question) -> int:
    """How many keys a row of this layer sees at the target: fewer than the target in a sliding window."""
    if layer.looks_ahead:
        return question.target
    windowed = layer.n < layer.position + 1  # seen to be so, also where a layer does not say how wide its window is
    widths = [layer.window] if layer.window else layer.n[windowed].tolist()
    return int(min(question.target, max(widths, default=question.target)))


def octave(n: NDArray[np.int64], *, last: bool) -> NDArray[np.bool_]:
    """Which rows are long (the last octave of n) or short (the first)."""
    return np.asarray(n >= n.max() / 2 if last else n <= 2 * n.min())


def _top_lines(layer: LayerSample, question: Question) -> Lines:
    """The law of the top weight of every head in one window."""
    weights = fit.logit(layer.measures["top_weight_without_sink"])
    x = np.log(question.others(layer.n))
    return fit.robust_lines(x, weights, question.seed, level=octave(layer.n, last=True))


def _top_weight(layer: LayerSample, question: Question, sees: int, lines: Lines, spread: Array) -> dict[str, Array]:
    """What follows from the law of the top weight, of every head."""
    now = int(layer.n.max())
    short, near, far = (float(question.others(n)) for n in (int(layer.n.min()), now, sees))
    ceiling = fit.sigmoid(spread - math.log(far))
    low, high = (np.minimum(fit.sigmoid(end), ceiling) for end in lines.interval_at(math.log(far)))
    numbers = {
        "gap": lines.intercept,
        "slope": -lines.slope,
        "half_length": 1 + question.sinks + _half(lines.intercept, -lines.slope),
        "top_short": fit.sigmoid(lines.at(math.log(short))),
        "top_now": fit.sigmoid(lines.at(math.log(near))),
        "top_target": np.minimum(fit.sigmoid(lines.at(math.log(far))), ceiling),
        "top_target_low": low,
        "top_target_high": high,
        "ceiling_target": ceiling,
        "fall": -lines.slope * math.log(far / near),
    }
    return numbers | _exponents(layer, question, sees, lines)


def _exponents(layer: LayerSample, question: Question, sees: int, lines: Lines) -> dict[str, Array]:
    """γ and its interval; 0 where a sliding window keeps n from growing."""
    now = int(layer.n.max())
    near, far = float(question.others(now)), float(question.others(sees))
    grows = sees > now or question.target == question.length
    gamma = fit.exponents(lines.intercept, lines.slope, near, far)
    low, high = np.quantile(fit.exponents(lines.intercepts, lines.slopes, near, far), [0.025, 0.975], axis=0)
    return {name: values * grows for name, values in (("gamma", gamma), ("gamma_low", low), ("gamma_high", high))}


def _half(gap: Array, slope: Array) -> Array:
    """How many competing keys bring the fitted weight to one half; infinite if none do."""
    falls = slope > 0
    return np.where(falls, np.exp(np.minimum(gap / np.where(falls, slope, 1.0), 700.0)), math.inf)


def _key_lines(layer: LayerSample, question: Question) -> Lines:
    """The law of the effective keys of every head in one window."""
    keys = np.log(np.maximum(layer.measures["n_eff_without_sink"], 1.0))
    return fit.robust_lines(np.log(layer.n), keys, question.seed, level=octave(layer.n, last=True))


def _effective_keys(layer: LayerSample, question: Question, sees: int, lines: Lines) -> dict[str, Array]:
    """What follows from the law of the effective keys, of every head."""
    low, high = lines.slope_interval
    now = int(layer.n.max())
    return {
        "gamma_keys": lines.slope,
        "gamma_keys_low": low,
        "gamma_keys_high": high,
        "keys_now": np.clip(np.exp(lines.at(math.log(now))), 1, now),
        "keys_target": np.clip(np.exp(lines.at(math.log(sees))), 1, sees),
    }


def _evidence(
    layer: LayerSample, question: Question, medians: dict[str, Array], numbers: dict[str, Array]
) -> dict[str, Array]:
    """What decides the kind, of every head, by the names of :class:`Evidence`."""
    long = octave(layer.n, last=True)
    return {
        "sink_share": medians["sink_share"],
        "recent_share": medians["recent_share_without_sink"],
        "room": np.full(layer.heads, np.median(layer.n[long]) / question.recent),
        "effective_short": medians[EFFECTIVE_SHORT],
        "effective_long": medians[EFFECTIVE_LONG],
        "gamma": numbers["gamma"],
        "gamma_low": numbers["gamma_low"],
    }


def _verdict(
    layer: LayerSample,
    head: int,
    question: Question,
    sees: int,
    medians: dict[str, float],
    numbers: dict[str, float],
    evidence: dict[str, float],
    shares: dict[Kind, float],
) -> Head:
    kind_of = kind(Evidence(**evidence), question.thresholds)
    fall = numbers["fall"] if sees > int(layer.n.max()) else 0.0
    return Head(
        layer=layer.index,
        head=head,
        name=layer.name,
        kind=kind_of,
        plain_kind=kind_of,
        share=shares[kind_of],
        n_target=sees,
        factor=factor_to_hold(fall, medians["rise_doubled"], medians["rise_quadrupled"]),
        medians={name: value for name, value in medians.items() if name not in OWN},
        asked=None,
        **{name: value for name, value in numbers.items() if name != "fall"},
    )


def _rise(layer: LayerSample, how: str) -> Array:
    """(heads,): what a factor on the logits adds to the logit of the top weight, the median over long rows."""
    long = octave(layer.n, last=True)
    plain = fit.logit(layer.measures["top_weight_without_sink"][:, long])
    return _median(fit.logit(layer.measures[f"top_weight_{how}_without_sink"][:, long]) - plain)


def _median(values: Array) -> Array:
    """(heads, rows) → (heads,): the median of what is finite; NaN if nothing is."""
    if np.isfinite(values).all():
        return np.asarray(np.median(values, axis=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a head without a finite value is NaN, as it should be
        return np.asarray(np.nanmedian(np.where(np.isfinite(values), values, np.nan), axis=1))


def _pick(columns: dict[str, Array], head: int) -> dict[str, float]:
    return {name: float(values[head]) for name, values in columns.items()}
