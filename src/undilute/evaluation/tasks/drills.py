"""drills, more-drills: eight facts in one of many wordings, to learn from; never what a cure is judged by.

Temperatures are learned on ``drills`` and chosen on ``more-drills``. Both have the names and things of ``facts``. The
tasks that judge (``special-word``, ``team-name``, ``emblem``, ``hidden-object``) share no name, thing or wording with
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from undilute.evaluation.tasks import Hidden, task
from undilute.evaluation.tasks.facts import FACTS, facts
from undilute.evaluation.words import NAMES, THINGS, Generator, Words

ACCORDING = "According to the text, "  # how a selection asks; half of the drills begin so

DRILLS = (
    "The password of {name} is {thing}.",
    "The nickname of {name} is {thing}.",
    "The answer that {name} gave is {thing}.",
    "In the dream of {name} there was a talking {thing}.",
    "The birthday present for {name} was a {thing}.",
    "In the photograph, {name} is standing next to the {thing}.",
    "The last item on the list of {name} is the {thing}.",
    "The code name that {name} uses on the radio is {thing}.",
    "At the auction {name} paid far too much for a {thing}.",
    "The painting by {name} shows a {thing}.",
    "When asked to name one noun, {name} said {thing}.",
    "The chapter that {name} wrote is about the {thing}.",
    "The prize for {name} was a {thing}.",
    "On the desk of {name} there is always a {thing}.",
    "{name} can not travel without the {thing}.",
    "The costume of {name} was that of a {thing}.",
)
MORE = (
    "The secret sign of {name} is the {thing}.",
    "The word on the door of {name} is {thing}.",
    "The thing that {name} lost on the train is the {thing}.",
    "The boat of {name} is named {thing}.",
)


def wordings(says: tuple[str, ...]) -> Mapping[str, str]:
    """Statement → how the question begins; every other one says where the answer stands."""
    begun = [each.removesuffix(" {thing}.") for each in says]
    return {each: ACCORDING * (place % 2) + start for place, (each, start) in enumerate(zip(says, begun, strict=True))}


def _add(name: str, says: tuple[str, ...]) -> None:
    asked = wordings(says)

    @task(name, hides={max(says, key=len): FACTS}, asks=max(asked.values(), key=len), usual=False)
    def make(words: Words, taken: Set[str], generator: Generator) -> Hidden:
        return facts(asked, NAMES, THINGS, words, taken, generator)


_add("drills", DRILLS)
_add("more-drills", MORE)
