"""single: the only favourite animal in the haystack; the other animals do not occur in it."""

from __future__ import annotations

from collections.abc import Set

from undilute.evaluation.tasks import QUESTIONS, Asked, Hidden, in_random_order, task
from undilute.evaluation.words import KINDS, Generator, Words, names

FAVOURITE = "The favourite {kind} of {name} is"
CANDIDATES = 8


@task("single", hides={f"{FAVOURITE} {{favourite}}.": QUESTIONS}, asks=FAVOURITE, stream=0)
def single(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    drawn = {kind: words.chosen(own, CANDIDATES, taken, generator) for kind, own in KINDS.items()}
    kinds = sorted(drawn, key=lambda kind: -len(drawn[kind]))[:QUESTIONS]
    if len(drawn[kinds[-1]]) < 2:
        raise words.too_few(f"{len(drawn[kinds[-1]])} of the words for {kinds[-1]!r}", 2)
    needles, asked = [], []
    for place, name in enumerate(names(QUESTIONS, taken, generator)):
        kind = kinds[place]
        begun = FAVOURITE.format(kind=kind, name=name)
        right = drawn[kind][int(generator.integers(len(drawn[kind])))]
        needles.append(f"{begun} {right}.")
        asked.append(Asked(begun, drawn[kind], [right], [place]))
    return in_random_order(needles, asked, generator)
