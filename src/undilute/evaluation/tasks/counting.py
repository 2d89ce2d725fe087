"""counting: how many times was somebody seen?  Every sighting is needed, and none says the number.

Candidates are the numbers from two to five, as far as a tokenizer tells them apart by one token.
"""

from __future__ import annotations

from collections.abc import Set

from undilute.evaluation.tasks import Asked, Hidden, in_random_order, task
from undilute.evaluation.words import OTHER_NAMES, Generator, Words, names

NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PEOPLE = 3  # who were seen different numbers of times
MOST = sum(sorted(NUMBERS)[-PEOPLE:])
SEEN = "{name} was seen at the harbour on {day}."
ASKS = "The number of times that {name} was seen at the harbour is"


@task(
    "counting",
    hides={SEEN.format(name="{other_name}", day=max(DAYS, key=len)): MOST},
    asks=ASKS.format(name="{other_name}"),
    usual=False,
)
def counting(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    told = words.chosen(list(NUMBERS.values()), len(NUMBERS), frozenset(), generator)  # the text may have them too
    if len(told) < PEOPLE:
        raise words.too_few(f"{len(told)} of {len(NUMBERS)} numbers", PEOPLE)
    candidates = [word for word in NUMBERS.values() if word in told]
    people = names(PEOPLE, taken, generator, OTHER_NAMES)
    counts = generator.permutation([number for number, word in NUMBERS.items() if word in told])[:PEOPLE].tolist()
    needles: list[str] = []
    asked = []
    for name, number in zip(people, counts, strict=True):
        days = generator.permutation(len(DAYS))[:number].tolist()
        first, *others = range(len(needles), len(needles) + number)
        needles += [SEEN.format(name=name, day=DAYS[day]) for day in days]
        asked.append(Asked(ASKS.format(name=name), candidates, [NUMBERS[number]], [first], others))
    return in_random_order(needles, asked, generator)
