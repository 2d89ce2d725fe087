"""other-facts, other-facts-paraphrased: as ``facts``, with names, things and wordings that do not occur there."""

from __future__ import annotations

from collections.abc import Set

from undilute.evaluation.tasks import Hidden, task
from undilute.evaluation.tasks.facts import FACTS, facts
from undilute.evaluation.words import OTHER_NAMES, OTHER_THINGS, Generator, Words

REPEATED = {
    "{name} forgot to bring the {thing}.": "{name} forgot to bring the",
    "The code name that {name} uses is {thing}.": "The code name that {name} uses is",
    "What the museum bought from {name} was the {thing}.": "What the museum bought from {name} was the",
    "On the shelf of {name} stands a golden {thing}.": "On the shelf of {name} stands a golden",
}
PARAPHRASED = {
    "{name} forgot to bring the {thing}.": "What {name} had left at home was the",
    "The code name that {name} uses is {thing}.": "Among spies, {name} is known as",
    "{name} repaired the {thing} last week.": "A few days ago {name} managed to fix the",
    "{name} dropped the {thing} into the lake.": "What {name} lost under water is the",
}


@task("other-facts", hides={max(REPEATED, key=len): FACTS}, asks=max(REPEATED.values(), key=len), usual=False)
def repeated(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    return facts(REPEATED, OTHER_NAMES, OTHER_THINGS, words, taken, generator)


@task(
    "other-facts-paraphrased",
    hides={max(PARAPHRASED, key=len): FACTS},
    asks=max(PARAPHRASED.values(), key=len),
    usual=False,
)
def paraphrased(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    return facts(PARAPHRASED, OTHER_NAMES, OTHER_THINGS, words, taken, generator)
