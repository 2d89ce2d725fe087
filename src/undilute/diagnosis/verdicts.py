"""From the sampled rows of a layer to a verdict on each of its heads: fits, forecast, kind, advice."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from undilute.diagnosis import fit
from undilute.diagnosis.advice import Findings, advise
from undilute.diagnosis.fit import Array, Lines
from undilute.diagnosis.heads import Head
from undilute.diagnosis.kinds import Evidence, Thresholds, kind
from undilute.models.capture import LayerSample

NEEDED = (
    "top_weight_beside_sink",
    "top_weight_doubled_beside_sink",
    "top_weight_quadrupled_beside_sink",
    "n_eff_beside_sink",
    "logit_spread",
    "lead_beside_sink",
    "sink_share",
    "recent_share_beside_sink",
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

    def others(self, n: Array | int) -> Array:
        """How many keys compete with the top one when a row sees n: all but it and the sink; at least 1."""
        return np.asarray(np.maximum(np.asarray(n, dtype=float) - self.sinks - 1, 1.0))


def verdicts(layer: LayerSample, question: Question) -> list[Head]:
    """A verdict on each head of a layer.

    Parameters
    ----------
    layer : its sampled rows, with the measures in ``NEEDED``
    question : what to answer
    """
    others = np.log(question.others(layer.n.astype(float)))
    top = fit.robust_lines(others, fit.logit(layer.measures["top_weight_beside_sink"]), question.seed)
    keys = fit.robust_lines(
        np.log(layer.n), np.log(np.maximum(layer.measures["n_eff_beside_sink"], 1.0)), question.seed
    )
    sees = seen_at(layer, question)
    return [_verdict(layer, head, question, top, keys, sees) for head in range(layer.heads)]


def seen_at(layer: LayerSample, question: Question) -> int:
    """How many keys a row of this layer sees at the target: fewer than the target in a sliding window."""
    windowed = layer.n < layer.position + 1
    if windowed.any() and not layer.looks_ahead:
        return int(min(question.target, layer.n[windowed].max()))
    return question.target


def octave(n: NDArray[np.int64], *, last: bool) -> NDArray[np.bool_]:
    """Which rows are long (the last octave of n) or short (the first)."""
    return np.asarray(n >= n.max() / 2 if last else n <= 2 * n.min())


def _verdict(layer: LayerSample, head: int, question: Question, top: Lines, keys: Lines, sees: int) -> Head:
    long, short = octave(layer.n, last=True), octave(layer.n, last=False)
    medians = {name: _median(values[head, long]) for name, values in layer.measures.items()}
    share = layer.measures["n_eff_beside_sink"][head] / np.maximum(layer.n - question.sinks, 1)
    now = int(layer.n.max())
    slope, gap = -float(top.slope[head]), float(top.intercept[head])
    gamma, low, high = _exponent(top, head, now, sees, question)
    kind_of = kind(
        Evidence(
            sink_share=medians["sink_share"],
            recent_share=medians["recent_share_beside_sink"],
            room=float(np.median(layer.n[long])) / question.recent,
            effective_short=_median(share[short]),
            effective_long=_median(share[long]),
            gamma=gamma,
            gamma_low=low,
        ),
        question.thresholds,
    )
    places = {
        name: math.log(question.others(n)) for name, n in (("short", layer.n.min()), ("now", now), ("target", sees))
    }
    at = {name: float(fit.sigmoid(top.at(place))[head]) for name, place in places.items()}
    ends = [float(fit.sigmoid(end)[head]) for end in top.interval_at(places["target"])]
    spread = float(layer.measures["logit_spread"][head].max())
    ceiling = float(fit.sigmoid(np.array(spread - math.log(sees - 1))))
    keys_target = float(np.clip(np.exp(keys.at(math.log(sees))[head]), 1, sees))
    findings = Findings(
        kind=kind_of,
        length=now,
        target=sees,
        gamma=gamma,
        fall=slope * (places["target"] - places["now"]),
        top_now=at["now"],
        top_target=min(at["target"], ceiling),
        rise_doubled=_rise(layer, head, long, "doubled"),
        rise_quadrupled=_rise(layer, head, long, "quadrupled"),
        lead=medians["lead_beside_sink"],
        sink_share=medians["sink_share"],
        recent_share=medians["recent_share_beside_sink"],
        recent=question.recent,
        entropy_target=math.log(keys_target),
    )
    keys_low, keys_high = (float(end[head]) for end in keys.slope_interval)
    return Head(
        layer=layer.index,
        head=head,
        name=layer.name,
        kind=kind_of,
        gamma=gamma,
        gamma_low=low,
        gamma_high=high,
        gap=gap,
        slope=slope,
        half_length=1 + question.sinks + math.exp(min(gap / slope, 700.0)) if slope > 0 else math.inf,
        gamma_keys=float(keys.slope[head]),
        gamma_keys_low=keys_low,
        gamma_keys_high=keys_high,
        top_short=at["short"],
        top_now=at["now"],
        top_target=findings.top_target,
        top_target_low=min(ends[0], ceiling),
        top_target_high=min(ends[1], ceiling),
        ceiling_target=ceiling,
        keys_now=float(np.clip(np.exp(keys.at(math.log(now))[head]), 1, now)),
        keys_target=keys_target,
        n_target=sees,
        medians=medians,
        advice=advise(findings),
    )


def _exponent(top: Lines, head: int, now: int, sees: int, question: Question) -> tuple[float, float, float]:
    """γ and its interval; 0 where a sliding window keeps n from growing."""
    if sees <= now and question.target > question.length:
        return 0.0, 0.0, 0.0
    between = float(question.others(now)), float(question.others(max(sees, now)))
    gamma = fit.exponents(top.intercept[head], top.slope[head], *between)
    drawn = fit.exponents(top.intercepts[:, head], top.slopes[:, head], *between)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(gamma), float(low), float(high)


def _rise(layer: LayerSample, head: int, long: NDArray[np.bool_], how: str) -> float:
    """What a factor on the logits adds to the logit of the top weight: the median over long rows."""
    plain: Array = fit.logit(layer.measures["top_weight_beside_sink"][head, long])
    sharpened: Array = fit.logit(layer.measures[f"top_weight_{how}_beside_sink"][head, long])
    return float(np.median(sharpened - plain))


def _median(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else math.nan
