"""A diagnosis as plain data: what ``--json`` writes and what the page draws, under one schema version.

    schema      "undilute.diagnosis/2"; a change that breaks readers raises the number
    versions    of undilute, torch and transformers
    subject     model, architecture, parameters, implementation, maximum_length, x, top, sinks, rows
    question    length, target, sinks, recent, seed, thresholds
    kinds       [kind, meaning, count]
    measures    [name, label, formula, unit]
    tokens      the text that was read, a string for each token
    layers      [index, name, heads, looks_ahead, is_cross, n, position, bins]: n and position of each sampled row; bins
                are the values of n at which curves are given; is_cross: the keys are another text's than the rows
    heads       [layer, head, kind, gamma, …, advice, medians, curves, points, shown]
                curves: measure → [median, lower quartile, upper quartile], a value for each bin
                points: measure → a value for each sampled row (top weight and effective keys, sink left out)
                shown: [row, keys, weights]: the heaviest keys of some rows, as positions in ``tokens``
Numbers have five significant digits; what is not finite is null.
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undilute.diagnosis.heads import Head
from undilute.diagnosis.kinds import MEANINGS
from undilute.diagnosis.result import Diagnosis
from undilute.measures import registry
from undilute.models.capture import LayerSample

SCHEMA = "undilute.diagnosis/2"
BINS = 14
SHOWN_ROWS = 8
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
    return {
        "schema": SCHEMA,
        "versions": {package: _version(package) for package in ("undilute", "torch", "transformers")},
        "subject": subject,
        "question": asdict(diagnosis.question),
        "kinds": [
            {"kind": kind, "meaning": MEANINGS[kind], "count": count} for kind, count in diagnosis.counts.items()
        ],
        "measures": [
            {"name": name, "label": known[name].label, "formula": known[name].formula, "unit": known[name].unit}
            for name in names
        ],
        "tokens": words,
        "layers": [_layer(layer) for layer in diagnosis.layers],
        "heads": described,
    }


def kind_rows(diagnosis: Diagnosis) -> list[list[str]]:
    """A line for each kind of head: how many, its name, what it does, and their median top weight, now and forecast."""
    rows = []
    for kind, number in diagnosis.counts.items():
        some = diagnosis.heads.of(kind)
        weights = [[getattr(head, name) for head in some] for name in ("top_now", "top_target")]
        rows.append([str(number), kind, MEANINGS[kind], *(f"{median(each):.2g}" if each else "–" for each in weights)])
    return rows


def bins(n: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    """Rows of similar n together: log-spaced, none empty."""
    edges = np.geomspace(n.min(), n.max() + 1, BINS + 1)
    groups = [(n >= low) & (n < high) for low, high in itertools.pairwise(edges)]
    return [group for group in groups if group.any()]


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
        "bins": [_number(np.exp(np.log(layer.n[group]).mean())) for group in bins(layer.n)],
    }


def _head(head: Head, layer: LayerSample, every: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    verdict = asdict(head) | {"lost": head.lost, "sentence": head.sentence}
    curves = {
        name: [[_number(value) for value in line] for line in values[:, head.head]] for name, values in every.items()
    }
    points = {name: [_number(value) for value in layer.measures[name][head.head]] for name in POINTS}
    drawn = {"curves": curves, "points": points, "shown": _shown(head, layer)}
    return {key: _plain(value) for key, value in verdict.items()} | drawn


def _shown(head: Head, layer: LayerSample) -> list[dict[str, Any]]:
    """The heaviest keys of a few rows, the longest among them."""
    rows = np.flatnonzero(layer.n == layer.n.max()) if layer.looks_ahead else np.arange(len(layer.n))
    some = rows[np.unique(np.linspace(len(rows) / 3, len(rows) - 1, SHOWN_ROWS).round().astype(int))]
    return [
        {
            "row": int(row),
            "keys": layer.keys[head.head, row].tolist(),
            "weights": [_number(weight) for weight in layer.key_weights[head.head, row]],
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


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
