"""facts: what one of eight people did, in one of several wordings; facts-paraphrased: asked in other words.

A diagnosis looks for heads with these. It judges them by ``other_facts``, which has other names, things and wordings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from undilute.evaluation.tasks import Asked, Hidden, task
from undilute.evaluation.words import NAMES, THINGS, Generator, Words, names

FACTS = 8  # of a haystack; every one is asked for
REPEATED = {  # what is said: how the question begins
    "The password of {name} is {thing}.": "The password of {name} is",
    "The nickname of {name} is {thing}.": "The nickname of {name} is",
    "The answer that {name} gave is {thing}.": "The answer that {name} gave is",
    "In the dream of {name} there was a talking {thing}.": "In the dream of {name} there was a talking",
}
PARAPHRASED = {
    "The password of {name} is {thing}.": "In order to log in, {name} has to type",
    "The nickname of {name} is {thing}.": "Among friends, {name} is known as",
    "In the dream of {name} there was a talking {thing}.": "While asleep, {name} met a speaking",
}


def facts(
    wordings: Mapping[str, str],
    people: Sequence[str],
    things: Sequence[str],
    words: Words,
    taken: Set[str],
    generator: Generator,
) -> Hidden:
    """Eight facts in one wording, and a question about each."""
    says = list(wordings)[int(generator.integers(len(wordings)))]
    chosen = words.chosen(things, FACTS, taken, generator)
    if len(chosen) < FACTS:
        raise words.too_few(f"{len(chosen)} of {len(things)} things", FACTS)
    named = names(FACTS, taken, generator, people)
    needles = [says.format(name=name, thing=thing) for name, thing in zip(named, chosen, strict=True)]
    begun = [wordings[says].format(name=name) for name in named]
    return needles, [
        Asked(text, sorted(chosen), [thing], [place])
        for place, (text, thing) in enumerate(zip(begun, chosen, strict=True))
    ]


@task("facts", hides={max(REPEATED, key=len): FACTS}, asks=max(REPEATED.values(), key=len), usual=False)
def repeated(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    return facts(REPEATED, NAMES, THINGS, words, taken, generator)


@task(
    "facts-paraphrased", hides={max(PARAPHRASED, key=len): FACTS}, asks=max(PARAPHRASED.values(), key=len), usual=False
)
def paraphrased(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    return facts(PARAPHRASED, NAMES, THINGS, words, taken, generator)
