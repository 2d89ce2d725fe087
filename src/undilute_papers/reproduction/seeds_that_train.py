"""How many seeds train?  Those that do what they were trained on; the others never left their plateau.

A training that fails on its own distribution says nothing about larger sets or longer sequences, and yet it counts: a
rule that trains only now and then costs as many trainings. So nothing is left out of the means, and the seeds that
failed are named next to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from undilute.report.result import Comparison

TRAINED = 90.0  # %, on the distribution of training, with the rule of training
ELSEWHERE = "leaves its plateau in 1 of 4 runs"  # said of ASEntmax


def failed(accuracies: Mapping[int, float]) -> list[int]:
    """The seeds that did not train.

    Parameters
    ----------
    accuracies : in %, by seed, on the distribution of training

    Examples
    --------
    >>> failed({0: 99.5, 1: 10.2, 2: 98.0})
    [1]
    """
    return [seed for seed, accuracy in accuracies.items() if not accuracy >= TRAINED]


def columns(accuracies: Mapping[int, float]) -> dict[str, int | str | None]:
    """How many seeds train, and which do not, for a line of a table; nothing where that was not measured.

    >>> columns({0: 99.5, 1: 10.2, 2: 98.0})
    {'seeds_that_train': 2, 'seeds_that_do_not': '1'}
    """
    if not accuracies:
        return {"seeds_that_train": None, "seeds_that_do_not": None}
    lost = failed(accuracies)
    return {"seeds_that_train": len(accuracies) - len(lost), "seeds_that_do_not": ", ".join(map(str, lost))}


def sentence(trainings: Mapping[str, Mapping[int, float]], condition: str) -> str:
    """How many trainings left their plateau, with the name of every one that did not.

    Parameters
    ----------
    trainings : accuracies by seed, by name of what was trained
    condition : where they were measured: "at 16 items with their own rule"

    Examples
    --------
    >>> sentence({"softmax": {0: 99.0, 1: 98.0}, "sink": {0: 97.0, 1: 20.0}}, "at 16 items")
    'Of 4 trainings 3 left their plateau (90 % or more at 16 items); not sink with seed 1 (1 of 2 trained).'
    """
    if not trainings:
        return ""
    total = sum(map(len, trainings.values()))
    lost = {name: failed(each) for name, each in trainings.items() if failed(each)}
    where = f"left their plateau ({TRAINED:g} % or more {condition})"
    if not lost:
        return f"All {total} trainings {where}."
    named = [
        f"{name} with seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))} "
        f"({len(trainings[name]) - len(seeds)} of {len(trainings[name])} trained)"
        for name, seeds in lost.items()
    ]
    return f"Of {total} trainings {total - sum(map(len, lost.values()))} {where}; not {'; '.join(named)}."


def reported_elsewhere(where: str, accuracies: Sequence[Mapping[int, float]]) -> list[Comparison]:
    """What is said of ASEntmax, compared with our trainings with it ``where`` they were made; nothing without any."""
    seeds = [seed for each in accuracies for seed in each]
    if not seeds:
        return []
    lost = sum(len(failed(each)) for each in accuracies)
    return [
        Comparison(
            f"ASEntmax leaves its plateau: {where}",
            ELSEWHERE,
            f"in {len(seeds) - lost} of {len(seeds)} runs",
            "other set-up",
            note="Reported elsewhere, of another task and network.",
        )
    ]
