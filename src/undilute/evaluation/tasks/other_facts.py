"""other-facts, other-facts-paraphrased: as ``facts``, with names, things and wordings that do not occur there."""

from __future__ import annotations

from collections.abc import Iterable, Set

from undilute.evaluation.tasks import Hidden, task
from undilute.evaluation.tasks.facts import FACTS, facts
from undilute.evaluation.words import OTHER_NAMES, OTHER_THINGS, Generator, Words

REPEATED = {
    "The special word of {name} is {thing}.": "The special word of {name} is",
    "The favourite thing of {name} is the {thing}.": "The favourite thing of {name} is the",
}
PARAPHRASED = {
    "The special word of {name} is {thing}.": "The term that belongs to {name} is",
    "The favourite thing of {name} is the {thing}.": "What {name} likes most is the",
}


def longest(wordings: Iterable[str]) -> str:
    """The longest of them, as a task says it: names and things are those of the other lists."""
    return max(wordings, key=len).format(name="{other_name}", thing="{other_thing}")


@task("other-facts", hides={longest(REPEATED): FACTS}, asks=longest(REPEATED.values()), usual=False)
def repeated(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    return facts(REPEATED, OTHER_NAMES, OTHER_THINGS, words, taken, generator)


@task(
    "other-facts-paraphrased",
    hides={longest(PARAPHRASED): FACTS},
    asks=longest(PARAPHRASED.values()),
    usual=False,
)
def paraphrased(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    return facts(PARAPHRASED, OTHER_NAMES, OTHER_THINGS, words, taken, generator)
