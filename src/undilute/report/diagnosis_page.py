"""A diagnosis as one HTML file: what heads do when asked and over context length, to look at, sort and click through.

Text of the model and of its input reaches the page as JSON whose marks are escaped, and the script puts it in as text
only. The details of a layer are parsed when one of its heads is looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from statistics import median
from typing import Any

from undilute.diagnosis.forecast import Forecast
from undilute.diagnosis.result import Diagnosis
from undilute.diagnosis.trials import LOSS_LIMIT
from undilute.report import diagnosis_data, pages

SCRIPTS = ("elements.js", "charts.js", "diagnosis.js")
UNSAFE = re.compile("[<>&\u2028\u2029\ud800-\udfff]")  # the last: halves of a character, which no file can hold
DETAILS = ("curves", "points", "shown")  # of a head: the bulk of the data, needed only when the head is selected


def page(diagnosis: Diagnosis) -> str:
    """A self-contained HTML page; the same diagnosis gives the same text."""
    data = diagnosis_data.data(diagnosis)
    heads: list[dict[str, Any]] = data["heads"]
    details = [{part: head.pop(part) for part in DETAILS} for head in heads]
    return pages.rendered(
        "diagnosis.html",
        styles=("page.css", "diagnosis.css"),
        scripts=SCRIPTS,
        data=data,
        limits=data["question"]["thresholds"],
        size=size(data["subject"]["parameters"]),
        read=diagnosis_data.read(diagnosis),
        windows=diagnosis.subject.windows,
        ahead=_ahead(diagnosis),
        loss_limit=LOSS_LIMIT,
        overview=embedded(data),
        details=[embedded(layer) for layer in _by_layer(details, data["layers"])],
    )


def _ahead(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Each forecast at the target: of a median head, with the sentence that says how it was checked."""
    outlook = diagnosis.forecast()
    named = {"Attention on what is asked for": outlook.alpha, "Top weight on plain text": outlook.top}
    return [_forecast(what, found) for what, found in named.items() if found is not None]


def _forecast(what: str, found: Forecast) -> dict[str, Any]:
    figures = {"middle": found.weight, "low": found.low, "high": found.high}
    medians = {name: f"{median(values.tolist()):.2g}" for name, values in figures.items()}
    return medians | {"what": what, "sentence": found.check.sentence, "is_checked": found.is_checked}


def size(parameters: int) -> str:
    """How many parameters, in the units people use.

    Examples
    --------
    >>> size(134_515_008), size(7_240_000_000), size(5_000)
    ('135M', '7.24B', '5,000')
    """
    for unit, name in ((1_000_000_000, "B"), (1_000_000, "M")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{name}"
    return f"{parameters:,}"


def embedded(value: object) -> str:
    """JSON that can stand in a script element: no character in it can end the element or begin another.

    Examples
    --------
    >>> print(embedded(["</script>"]))
    ["\\u003c/script\\u003e"]
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return UNSAFE.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


def _by_layer(heads: Sequence[object], layers: Sequence[dict[str, Any]]) -> list[Sequence[object]]:
    ends = [sum(layer["heads"] for layer in layers[: index + 1]) for index in range(len(layers))]
    return [heads[end - layer["heads"] : end] for end, layer in zip(ends, layers, strict=True)]
