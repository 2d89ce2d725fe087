"""multi-value: the three special words of one of four people; the candidates are all twelve words."""

from __future__ import annotations

from collections.abc import Set

from undilute.evaluation.tasks import QUESTIONS, Asked, Hidden, in_random_order, task
from undilute.evaluation.words import Generator, Words, names

ONE_OF = "One of the special words of {name} is"
VALUES = 3


@task("multi-value", hides={f"{ONE_OF} {{thing}}.": QUESTIONS * VALUES}, asks=ONE_OF, stream=2)
def multi_value(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    values = words.things(QUESTIONS * VALUES, taken, generator)
    needles, asked = [], []
    for key, name in enumerate(names(QUESTIONS, taken, generator)):
        begun, own = ONE_OF.format(name=name), list(range(key * VALUES, (key + 1) * VALUES))
        needles += [f"{begun} {values[place]}." for place in own]
        asked.append(Asked(begun, sorted(values), [values[place] for place in own], own))
    return in_random_order(needles, asked, generator)
