"""tracking: somebody's special word is that of somebody else, whose word is that of a third, who has a word.

The candidates are the words of four such chains. Each link is stated before it is used.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from undilute.evaluation.tasks import QUESTIONS, Asked, Hidden, task
from undilute.evaluation.words import Generator, Words, names

SPECIAL = "The special word of {name} is"
SAME = "the special word of {other}"
LINKS = 3  # of a chain


@task(
    "tracking",
    hides={f"{SPECIAL} {{thing}}.": QUESTIONS, f"{SPECIAL} {SAME}.": (LINKS - 1) * QUESTIONS},
    asks=SPECIAL,
    stream=3,
)
def tracking(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    values = words.things(QUESTIONS, taken, generator)
    people = np.reshape(names(QUESTIONS * LINKS, taken, generator), (QUESTIONS, LINKS)).tolist()
    places = np.sort(generator.permutation(QUESTIONS * LINKS).reshape(QUESTIONS, LINKS))
    needles, asked = [""] * places.size, []
    for chain, own, value in zip(people, places.tolist(), values, strict=True):
        needles[own[0]] = f"{SPECIAL.format(name=chain[0])} {value}."
        for link in range(1, LINKS):
            needles[own[link]] = f"{SPECIAL.format(name=chain[link])} {SAME.format(other=chain[link - 1])}."
        asked.append(Asked(SPECIAL.format(name=chain[-1]), sorted(values), [value], own[:1]))
    return needles, asked
