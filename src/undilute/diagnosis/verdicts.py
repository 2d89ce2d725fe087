"""From the sampled rows of a layer to a verdict on each of its heads: fits, forecast, kind, advice."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undilute.diagnosis import fit
from undilute.diagnosis.advice import Findings, advise
from undilute.diagnosis.fit import Array, Lines
from undilute.diagnosis.heads import Head
from undilute.diagnosis.kinds import Evidence, Thresholds, kind
from undilute.models.capture import LayerSample

NEEDED = (
    "top_weight_without_sink",
    "top_weight_doubled_without_sink",
    "top_weight_quadrupled_without_sink",
    "n_eff_without_sink",
    "logit_spread",
    "lead_without_sink",
    "sink_share",
    "recent_share_without_sink",
)


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


def verdicts(layers: Sequence[LayerSample], question: Question) -> list[Head]:
    """A verdict on each head of each layer, in order.

    Parameters
    ----------
    layers : their sampled rows, with the measures in ``NEEDED``
    question : what to answer
    """
    alike: dict[object, list[LayerSample]] = {}  # layers with the same rows are fitted at once
    for layer in layers:
        rows = (layer.n.tobytes(), layer.position.tobytes(), layer.window, layer.looks_ahead)
        alike.setdefault(rows, []).append(layer)
    found = {}
    for group in alike.values():
        places = [(layer, head) for layer in group for head in range(layer.heads)]
        for (layer, head), verdict in zip(places, _verdicts(_joined(group), question), strict=True):
            found[layer.index, head] = replace(verdict, layer=layer.index, head=head, name=layer.name)
    return [found[place] for place in sorted(found)]


def _joined(group: Sequence[LayerSample]) -> LayerSample:
    """Layers that sampled the same rows as one layer with all their heads."""
    names = group[0].measures
    return replace(
        group[0],
        measures={name: np.concatenate([layer.measures[name] for layer in group]) for name in names},
        keys=np.concatenate([layer.keys for layer in group]),
        key_weights=np.concatenate([layer.key_weights for layer in group]),
    )


def _verdicts(layer: LayerSample, question: Question) -> list[Head]:
    sees = seen_at(layer, question)
    medians = {name: _median(values[:, octave(layer.n, last=True)]) for name, values in layer.measures.items()}
    numbers = _top_weight(layer, question, sees) | _effective_keys(layer, question, sees)
    evidence = _evidence(layer, question, medians, numbers)
    return [
        _verdict(layer, head, question, sees, _pick(medians, head), _pick(numbers, head), _pick(evidence, head))
        for head in range(layer.heads)
    ]


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


def _top_weight(layer: LayerSample, question: Question, sees: int) -> dict[str, Array]:
    """The law of the top weight, its exponent and its forecast, of every head."""
    weights = layer.measures["top_weight_without_sink"]
    lines = fit.robust_lines(
        np.log(question.others(layer.n)), fit.logit(weights), question.seed, level=octave(layer.n, last=True)
    )
    now = int(layer.n.max())
    short, near, far = (float(question.others(n)) for n in (int(layer.n.min()), now, sees))
    spread = layer.measures["logit_spread"].max(1)
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
        "rise_doubled": _rise(layer, "doubled"),
        "rise_quadrupled": _rise(layer, "quadrupled"),
    }
    return numbers | _exponents(lines, near, far, grows=sees > now or question.target == question.length)


def _exponents(lines: Lines, near: float, far: float, *, grows: bool) -> dict[str, Array]:
    """γ and its interval; 0 where a sliding window keeps n from growing."""
    gamma = fit.exponents(lines.intercept, lines.slope, near, far)
    low, high = np.quantile(fit.exponents(lines.intercepts, lines.slopes, near, far), [0.025, 0.975], axis=0)
    return {name: values * grows for name, values in (("gamma", gamma), ("gamma_low", low), ("gamma_high", high))}


def _half(gap: Array, slope: Array) -> Array:
    """How many competing keys bring the fitted weight to one half; infinite if none do."""
    falls = slope > 0
    return np.where(falls, np.exp(np.minimum(gap / np.where(falls, slope, 1.0), 700.0)), math.inf)


def _effective_keys(layer: LayerSample, question: Question, sees: int) -> dict[str, Array]:
    """The law of the effective keys and its forecast, of every head."""
    keys = np.maximum(layer.measures["n_eff_without_sink"], 1.0)
    lines = fit.robust_lines(np.log(layer.n), np.log(keys), question.seed, level=octave(layer.n, last=True))
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
    long, short = octave(layer.n, last=True), octave(layer.n, last=False)
    share = layer.measures["n_eff_without_sink"] / np.maximum(layer.n - question.sinks, 1)
    return {
        "sink_share": medians["sink_share"],
        "recent_share": medians["recent_share_without_sink"],
        "room": np.full(layer.heads, np.median(layer.n[long]) / question.recent),
        "effective_short": _median(share[:, short]),
        "effective_long": _median(share[:, long]),
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
) -> Head:
    kind_of = kind(Evidence(**evidence), question.thresholds)
    findings = Findings(
        kind=kind_of,
        length=int(layer.n.max()),
        target=sees,
        is_bounded=sees <= int(layer.n.max()) and question.target > question.length,
        gamma=numbers["gamma"],
        fall=numbers.pop("fall"),
        top_now=numbers["top_now"],
        top_target=numbers["top_target"],
        rise_doubled=numbers.pop("rise_doubled"),
        rise_quadrupled=numbers.pop("rise_quadrupled"),
        lead=medians["lead_without_sink"],
        sink_share=medians["sink_share"],
        recent_share=medians["recent_share_without_sink"],
        recent=question.recent,
        entropy_target=math.log(numbers["keys_target"]),
    )
    return Head(
        layer=layer.index,
        head=head,
        name=layer.name,
        kind=kind_of,
        n_target=sees,
        medians=medians,
        advice=advise(findings),
        **numbers,
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
