"""two-hops: somebody shares a house with somebody else, whose emblem is asked for. Two statements are needed."""

from __future__ import annotations

from collections.abc import Set

from undilute.evaluation.tasks import Asked, Hidden, in_random_order, task
from undilute.evaluation.words import OTHER_NAMES, OTHER_THINGS, Generator, Words, names

CHAINS = 4
SHARES = "{name} shares a house with {other}."
HAS = "The emblem of {name} is the {thing}."
ASKS = "{name} shares a house with somebody whose emblem is the"


@task(
    "two-hops",
    hides={
        SHARES.format(name="{other_name}", other="{other_name}"): CHAINS,
        HAS.format(name="{other_name}", thing="{other_thing}"): CHAINS,
    },
    asks=ASKS.format(name="{other_name}"),
    usual=False,
)
def two_hops(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    things = words.chosen(OTHER_THINGS, CHAINS, taken, generator)
    if len(things) < CHAINS:
        raise words.too_few(f"{len(things)} of {len(OTHER_THINGS)} things", CHAINS)
    people = names(2 * CHAINS, taken, generator, OTHER_NAMES)
    pairs = list(zip(people[:CHAINS], people[CHAINS:], strict=True))
    needles = [SHARES.format(name=one, other=other) for one, other in pairs]
    needles += [HAS.format(name=other, thing=thing) for (_, other), thing in zip(pairs, things, strict=True)]
    asked = [
        Asked(ASKS.format(name=one), sorted(things), [thing], [CHAINS + place], [place])
        for place, ((one, _), thing) in enumerate(zip(pairs, things, strict=True))
    ]
    return in_random_order(needles, asked, generator)
