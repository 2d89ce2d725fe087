"""multi-key: the special word of one of eight people; the candidates are all eight words."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from undilute.evaluation.tasks import QUESTIONS, Asked, Hidden, task
from undilute.evaluation.words import Generator, Words, names

SPECIAL = "The special word of {name} is"
KEYS = 8


@task("multi-key", hides={f"{SPECIAL} {{thing}}.": KEYS}, asks=SPECIAL, stream=1)
def multi_key(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    values = words.things(KEYS, taken, generator)
    begun = [SPECIAL.format(name=name) for name in names(KEYS, taken, generator)]
    needles = [f"{start} {value}." for start, value in zip(begun, values, strict=True)]
    step = KEYS // QUESTIONS
    places = step * np.arange(QUESTIONS) + generator.integers(step)
    return needles, [Asked(begun[place], sorted(values), [values[place]], [place]) for place in places.tolist()]
