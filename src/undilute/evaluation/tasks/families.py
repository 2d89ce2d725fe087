"""special-word, team-name, emblem, hidden-object: eight facts each, in names, things and wordings of no other task's.

A selection of what is read is judged by these. Retrieval heads are found by ``facts``, which shares nothing with them
but the shape of a sentence.
"""

from __future__ import annotations

from collections.abc import Set

from undilute.evaluation.tasks import Hidden, task
from undilute.evaluation.tasks.facts import FACTS, facts
from undilute.evaluation.tasks.other_facts import longest
from undilute.evaluation.words import OTHER_NAMES, OTHER_THINGS, Generator, Words

FAMILIES = {
    "special-word": "The special word of {name} is {thing}.",
    "team-name": "The team of {name} is called {thing}.",
    "emblem": "The emblem of {name} is the {thing}.",
    "hidden-object": "The object that {name} hid is the {thing}.",
}


def _add(name: str, says: str) -> None:
    asks = says.removesuffix(" {thing}.")

    @task(name, hides={longest([says]): FACTS}, asks=longest([asks]), usual=False)
    def make(words: Words, taken: Set[str], generator: Generator) -> Hidden:
        return facts({says: asks}, OTHER_NAMES, OTHER_THINGS, words, taken, generator)


for _name, _says in FAMILIES.items():
    _add(_name, _says)
