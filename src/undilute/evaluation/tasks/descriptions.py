"""descriptions: who did it?  The question shares no content word with the statement that answers it.

"Zoe plays the violin." is asked for as "The one who makes music is". Words alone do not find it.
"""

from __future__ import annotations

from collections.abc import Set

from undilute.evaluation.tasks import Asked, Hidden, task
from undilute.evaluation.tasks.facts import FACTS
from undilute.evaluation.words import OTHER_NAMES, Generator, Words

DESCRIPTIONS = {  # what is said: how the question goes on after "The one who"
    "{name} plays the violin every evening.": "makes music is",
    "{name} keeps a heron behind the house.": "owns a bird is",
    "{name} bakes bread before sunrise.": "works with an oven is",
    "{name} repairs old bicycles.": "fixes things with two wheels is",
    "{name} teaches arithmetic to children.": "gives lessons in mathematics is",
    "{name} broke an arm last winter.": "was injured is",
    "{name} paints portraits of sailors.": "is an artist is",
    "{name} crossed the ocean alone.": "made a long journey by sea is",
    "{name} collects rare stamps.": "has a hobby from the post office is",
    "{name} was born in Norway.": "comes from Scandinavia is",
    "{name} grows tomatoes on the balcony.": "raises vegetables is",
    "{name} is afraid of spiders.": "fears insects is",
    "{name} won the chess tournament.": "is best at a board game is",
    "{name} drives a taxi at night.": "carries passengers in a car is",
    "{name} studied the stars for years.": "is an astronomer is",
    "{name} never eats meat.": "is a vegetarian is",
}
ASKS = "The one who"


@task(
    "descriptions",
    hides={max(DESCRIPTIONS, key=len).format(name="{other_name}"): FACTS},
    asks=f"{ASKS} {max(DESCRIPTIONS.values(), key=len)}",
    usual=False,
)
def descriptions(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    people = words.chosen(OTHER_NAMES, FACTS, taken, generator)
    if len(people) < FACTS:
        raise words.too_few(f"{len(people)} of {len(OTHER_NAMES)} names", FACTS)
    places = generator.permutation(len(DESCRIPTIONS))[:FACTS].tolist()
    said = [list(DESCRIPTIONS.items())[place] for place in places]
    needles = [says.format(name=name) for (says, _), name in zip(said, people, strict=True)]
    return needles, [
        Asked(f"{ASKS} {asks}", sorted(people), [name], [place])
        for place, ((_, asks), name) in enumerate(zip(said, people, strict=True))
    ]
