"""descriptions: who is it?  The question shares no content word with the statement that answers it.

"Zoe works as a physician." is asked for as "The name of the doctor is". Words alone do not find it.
"""

from __future__ import annotations

from collections.abc import Set

from undilute.evaluation.tasks import Asked, Hidden, task
from undilute.evaluation.tasks.facts import FACTS
from undilute.evaluation.words import OTHER_NAMES, Generator, Words

SAYS = "{name} works as {role}."
ASKS = "The name of the {role} is"
ROLES = {  # as it is said: as it is asked for
    "a physician": "doctor",
    "an attorney": "lawyer",
    "a novelist": "writer",
    "an instructor": "teacher",
    "a merchant": "trader",
    "a constable": "police officer",
    "a mariner": "sailor",
    "a chef": "cook",
    "a vocalist": "singer",
    "a photographer": "person who takes pictures",
    "an aviator": "pilot",
    "a clergyman": "priest",
    "a woodworker": "carpenter",
    "a reporter": "journalist",
    "a janitor": "caretaker",
    "a warrior": "soldier",
    "a burglar": "thief",
    "a beekeeper": "honey maker",
    "a dentist": "person who treats teeth",
    "an astronomer": "person who studies the stars",
}


@task(
    "descriptions",
    hides={SAYS.format(name="{other_name}", role=max(ROLES, key=len)): FACTS},
    asks=ASKS.format(role=max(ROLES.values(), key=len)),
    usual=False,
)
def descriptions(words: Words, taken: Set[str], generator: Generator) -> Hidden:
    people = words.chosen(OTHER_NAMES, FACTS, taken, generator)
    if len(people) < FACTS:
        raise words.too_few(f"{len(people)} of {len(OTHER_NAMES)} names", FACTS)
    roles = list(ROLES.items())
    chosen = [roles[place] for place in generator.permutation(len(roles))[:FACTS].tolist()]
    needles = [SAYS.format(name=name, role=said) for (said, _), name in zip(chosen, people, strict=True)]
    return needles, [
        Asked(ASKS.format(role=role), sorted(people), [name], [place])
        for place, ((_, role), name) in enumerate(zip(chosen, people, strict=True))
    ]
