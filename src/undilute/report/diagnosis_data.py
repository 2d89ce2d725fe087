"""A diagnosis as plain data: what ``--json`` writes and what the page draws, under one schema version.

    schema      "undilute.diagnosis/3"; a change that breaks readers raises the number
    versions    of undilute, torch and transformers
    subject     model, architecture, parameters, implementation, maximum_length, texts [name, tokens, windows], x, top,
                sinks, rows
    question    length, target, sinks, recent, seed, thresholds
    summary, caution, numbering   sentences, or null
    kinds       [kind, meaning, count, steady]: steady are those in two thirds of the windows or haystacks
    measures    [name, label, formula, unit, drawn]: drawn: whether heads have a curve of it
    tokens      the first window, a string for each token
    layers      [index, name, heads, looks_ahead, is_cross, n, position, window, bins, drawn]: of each sampled row; bins
                are the values of n at which curves are given, drawn the rows whose values are given as points: at most
                48, even over n; is_cross: the keys are another text's than the rows
    heads       [layer, head, kind, plain_kind, share, gamma, …, factor, medians, asked, curves, points, shown]
                asked: what the head does when asked for a fact, as ``probe.together``; null without a probe
                curves: for each of ``measures`` that is drawn: [median, lower and upper quartile], a value for each bin
                points: measure → a value for each row in ``drawn`` (top weight and effective keys, sink left out)
                shown: [row, keys, weights]: the heaviest keys of some rows of the first window, as positions in
                ``tokens``
    probe       null, or what was asked:
                lengths, chance; recall [task, label, length, right [value, low, high], questions, haystacks]
                together: of the retrieval heads' mean attention, null without any: score [value, error, chance], share,
                alpha, without_sink [length, value, low, high], ratio [length, value], law [gap, slope [value, low,
                high]], auc, when_right, when_wrong [length, value]
                haystack: the tokens of one, a string for each
                looked: [question, span, right, heads [layer, head, keys, weights]]: what each retrieval head looked at
                from the last token of a question, as positions in haystack and question; span is the fact that answers
    why_no_probe  a sentence, or null
    forecast    at the target: top and alpha [way, errors, coverage, width, left_out, length, count, sentence], alpha
                null without retrieval heads; is_checked
    trials      tried [label, heads, length, loss, recall, helps, sentence], advice, best (the label, or null);
                loss and recall: before, after, difference, low, high, p_value
Numbers have five significant digits, those of curves, points and shown three; what is not finite is null.
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undilute.diagnosis.forecast import Forecast
from undilute.diagnosis.heads import Head
from undilute.diagnosis.kinds import MEANINGS
from undilute.diagnosis.result import Diagnosis
from undilute.diagnosis.retrieval import Estimate, Retrieval
from undilute.evaluation.changes import Change
from undilute.measures import registry
from undilute.models.capture import LayerSample

SCHEMA = "undilute.diagnosis/3"
BINS = 8
MOST_POINTS = 48  # of a head and measure
SHOWN_ROWS = 6
DRAWN_DIGITS = 3  # of what is only drawn: the bulk of the data
POINTS = ("top_weight_without_sink", "n_eff_without_sink")


def to_json(diagnosis: Diagnosis) -> str:
    """The data of :func:`data` as text."""
    return json.dumps(data(diagnosis), separators=(",", ":"), allow_nan=False)


def data(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as dictionaries, lists, strings and numbers."""
    subject = asdict(diagnosis.subject)
    words = subject.pop("tokens")
    known = registry.every()
    names = list(diagnosis.layers[0].measures)
    heads = iter(diagnosis.heads)
    described = []
    for layer in diagnosis.layers:
        curves = quartiles(layer)
        described += [_head(next(heads), layer, curves) for _ in range(layer.heads)]
    steady = diagnosis.steady_counts
    return {
        "schema": SCHEMA,
        "versions": {package: _version(package) for package in ("undilute", "torch", "transformers")},
        "subject": subject,
        "question": asdict(diagnosis.question),
        "summary": diagnosis.summary,
        "caution": diagnosis.caution,
        "numbering": diagnosis.numbering,
        "kinds": [
            {"kind": kind, "meaning": MEANINGS[kind], "count": count, "steady": steady[kind]}
            for kind, count in diagnosis.counts.items()
        ],
        "measures": [
            {"name": name, "label": known[name].label, "formula": known[name].formula, "unit": known[name].unit}
            | {"drawn": is_drawn(name)}
            for name in names
        ],
        "tokens": words,
        "layers": [_layer(layer) for layer in diagnosis.layers],
        "heads": described,
        "probe": _probe(diagnosis),
        "why_no_probe": diagnosis.why_no_probe,
        "forecast": _forecast(diagnosis),
        "trials": _trials(diagnosis),
    }


# ---------------------------------------------------------------- what was asked, forecast and tried


def _probe(diagnosis: Diagnosis) -> dict[str, Any] | None:
    probe = diagnosis.probe
    if probe is None:
        return None
    finding = [(head, probe.places[head.name, head.head]) for head in diagnosis.heads.retrieval]
    return {
        "lengths": list(probe.judged.lengths),
        "chance": _number(probe.found.chance),
        "recall": [
            _plain(each._asdict() | {"label": each.label, "right": each.right._asdict()}) for each in diagnosis.recalls
        ],
        "together": _asked(diagnosis.together),
        "haystack": list(probe.haystack),
        "looked": [
            {
                "question": list(each.question),
                "span": list(each.span),
                "right": each.right,
                "heads": [
                    {
                        "layer": head.layer,
                        "head": head.head,
                        "keys": each.keys[place].tolist(),
                        "weights": [_number(weight) for weight in each.weights[place]],
                    }
                    for head, place in finding
                ],
            }
            for each in probe.looked
        ],
    }


def _asked(asked: Retrieval | None) -> dict[str, Any] | None:
    """What a head does when it is asked, or some do together."""
    if asked is None:
        return None

    def over(values: Mapping[int, Any]) -> list[dict[str, Any]]:
        return [
            _plain({"length": length} | (value._asdict() if isinstance(value, Estimate) else {"value": value}))
            for length, value in values.items()
        ]

    return {
        "score": _plain(asked.score._asdict()),
        "share": _number(asked.share),
        "alpha": over(asked.alpha),
        "without_sink": over(asked.without_sink),
        "ratio": over(asked.ratio),
        "law": {"gap": _number(asked.law.gap), "slope": _plain(asked.law.slope._asdict())},
        "auc": None if asked.auc is None else _number(asked.auc),
        "when_right": over(asked.when_right),
        "when_wrong": over(asked.when_wrong),
    }


def _forecast(diagnosis: Diagnosis) -> dict[str, Any]:
    ahead = diagnosis.forecast()

    def check(found: Forecast | None) -> dict[str, Any] | None:
        return None if found is None else _plain(asdict(found.check)) | {"sentence": found.check.sentence}

    return {"top": check(ahead.top), "alpha": check(ahead.alpha), "is_checked": ahead.is_checked}


def _trials(diagnosis: Diagnosis) -> dict[str, Any]:
    trials = diagnosis.trials
    figures = ("before", "after", "difference", "low", "high", "p_value")

    def change(found: Change | None) -> dict[str, Any] | None:
        return None if found is None else _plain({name: getattr(found, name) for name in figures})

    return {
        "tried": [
            {
                "label": each.remedy.label,
                "heads": len(each.remedy.rules),
                "length": each.length,
                "loss": change(each.loss),
                "recall": change(each.recall),
                "helps": each.helps,
                "sentence": each.sentence,
            }
            for each in trials.tried
        ],
        "advice": diagnosis.advice,
        "best": None if trials.best is None else trials.best.remedy.label,
    }


# ---------------------------------------------------------------- heads and their rows


def kind_rows(diagnosis: Diagnosis) -> list[list[str]]:
    """A line for each kind of head: how many, how many steadily, name, meaning, median top weights, now and ahead."""
    rows, steady = [], diagnosis.steady_counts
    for kind, number in diagnosis.counts.items():
        some = diagnosis.heads.of(kind)
        weights = [[getattr(head, name) for head in some] for name in ("top_now", "top_target")]
        figures = [f"{median(each):.2g}" if each else "–" for each in weights]
        rows.append([str(number), str(steady[kind]), kind, MEANINGS[kind], *figures])
    return rows


def read(diagnosis: Diagnosis) -> str:
    """How much was read, in words."""
    subject = diagnosis.subject
    texts = f"{len(subject.texts)} texts" if len(subject.texts) > 1 else "1 text"
    windows = f"{subject.windows} windows" if subject.windows > 1 else "1 window"
    return f"{windows} of {diagnosis.question.length:,} tokens of {texts}"


def bins(n: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    """Rows of similar n together: log-spaced, none empty."""
    edges = np.geomspace(n.min(), n.max() + 1, BINS + 1)
    groups = [(n >= low) & (n < high) for low, high in itertools.pairwise(edges)]
    return [group for group in groups if group.any()]


def is_drawn(measure: str) -> bool:
    """Whether a measure's curve is given: not of weights under larger logits, which only the factor needs."""
    return "doubled" not in measure and "quadrupled" not in measure


def drawn_rows(n: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which rows are drawn as points: all if there are few, else some that are spread evenly over those sorted by n.

    Examples
    --------
    >>> drawn_rows(np.arange(500, 0, -1))[[0, 1, -1]]
    array([  0,  11, 499])
    """
    some = np.linspace(0, len(n) - 1, min(MOST_POINTS, len(n))).round().astype(int)
    return np.asarray(np.sort(np.argsort(n, kind="stable")[some]))


def quartiles(layer: LayerSample) -> dict[str, NDArray[np.float64]]:
    """Each measure's median, lower and upper quartile in each bin: (3, heads, bins); NaN where nothing is finite."""
    values = np.stack(list(layer.measures.values()))  # (measures, heads, rows)
    values = np.where(np.isfinite(values), values, np.nan)
    lines = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a bin without a finite value is NaN, as it should be
        for group in bins(layer.n):
            inside = values[..., group]
            plain = np.quantile(inside, [0.5, 0.25, 0.75], axis=-1)  # NaN where anything is
            missing = np.isnan(plain[0])
            plain[:, missing] = np.nanquantile(inside[missing], [0.5, 0.25, 0.75], axis=-1)
            lines.append(plain)
    curves = np.stack(lines, -1)  # (3, measures, heads, bins)
    return {name: curves[:, index] for index, name in enumerate(layer.measures)}


def _layer(layer: LayerSample) -> dict[str, Any]:
    return {
        "index": layer.index,
        "name": layer.name,
        "heads": layer.heads,
        "looks_ahead": layer.looks_ahead,
        "is_cross": layer.is_cross,
        "n": layer.n.tolist(),
        "position": layer.position.tolist(),
        "window": layer.batch.tolist(),
        "bins": [_number(np.exp(np.log(layer.n[group]).mean())) for group in bins(layer.n)],
        "drawn": drawn_rows(layer.n).tolist(),
    }


def _head(head: Head, layer: LayerSample, every: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    verdict = {each.name: getattr(head, each.name) for each in fields(head)} | {
        "lost": head.lost,
        "steady": head.is_steady,
        "sentence": head.sentence,
        "asked": _asked(head.asked),
    }
    curves = [
        [[_drawn(value) for value in line] for line in values[:, head.head]]
        for name, values in every.items()
        if is_drawn(name)
    ]
    rows = drawn_rows(layer.n)
    points = {name: [_drawn(value) for value in layer.measures[name][head.head, rows]] for name in POINTS}
    drawn = {"curves": curves, "points": points, "shown": _shown(head, layer)}
    return {key: _plain(value) for key, value in verdict.items()} | drawn


def _shown(head: Head, layer: LayerSample) -> list[dict[str, Any]]:
    """The heaviest keys of a few rows, the longest among them."""
    first = layer.batch == 0
    rows = np.flatnonzero(first & (layer.n == layer.n.max()) if layer.looks_ahead else first)
    some = rows[np.unique(np.linspace(len(rows) / 3, len(rows) - 1, SHOWN_ROWS).round().astype(int))]
    return [
        {
            "row": int(row),
            "keys": layer.keys[head.head, row].tolist(),
            "weights": [_drawn(weight) for weight in layer.key_weights[head.head, row]],
        }
        for row in some
    ]


def _plain(value: Any) -> Any:
    """Numbers rounded and infinities as null, all the way down."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, float):
        return _number(value)
    return value


def _number(value: float, digits: int = 5) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _drawn(value: float) -> float | None:
    """Short: whole numbers without a point."""
    short = _number(value, DRAWN_DIGITS)
    return short if short is None or not short.is_integer() else int(short)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
