"""Every arm changes one thing about another, and its run is the training that it says."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

import undilute as ud
from undilute_papers.reproduction.checkpoint import Checkpoint
from undilute_papers.reproduction.evaluated import ARGMAX
from undilute_papers.reproduction.training import Job, carry_out
from undilute_papers.reproduction.workers import ignore
from undilute_papers.sharpness.ceiling import Ceiling
from undilute_papers.sharpness.ceiling.set_ups import ARMS, BY_NAME, PUBLISHED, Arm, SetUp
from undilute_papers.sharpness.ceiling.training import FOCUS, OWN, Run
from undilute_papers.sharpness.max_retrieval.training import Run as Published
from undilute_papers.sharpness.max_retrieval.training import evaluate, train

ONE_THING = ({"rule", "parameters", "rule_rate"}, {"schedule", "last_rate", "hold"})  # besides single fields
TINY: dict[str, Any] = {"seeds": 1, "sizes": (16,), "sets": 2, "workers": 1}


def differing(arm: Arm, other: Arm) -> set[str]:
    names = [each.name for each in fields(SetUp)]
    return {name for name in names if getattr(arm.set_up, name) != getattr(other.set_up, name)}


@pytest.mark.parametrize("arm", ARMS[1:], ids=lambda arm: arm.name)
def test_an_arm_stands_beside_one_that_comes_before_it_and_changes_one_thing(arm: Arm) -> None:
    before = [other.name for other in ARMS[: ARMS.index(arm)]]
    assert arm.beside in before
    changed = differing(arm, BY_NAME[arm.beside])
    assert changed
    assert len(changed) == 1 or any(changed <= one for one in ONE_THING)
    assert arm.changes


def test_the_first_arm_is_the_published_training() -> None:
    """To the last bit: the same losses as the run of max retrieval."""
    tested = ((16,), 8, 2**14)
    mine = carry_out(Job(Run(PUBLISHED.set_up, 20, (0, 3), *tested)), ignore)
    published = carry_out(Job(Published("softmax", "16", "constant", (0, 3), 20, True, *tested)), ignore)
    assert [line["loss"] for line in mine["training"]] == [line["loss"] for line in published["training"]]
    own, argmax = ([test for test in mine["tests"] if test["evaluated_with"] == name] for name in (OWN, ARGMAX))
    assert [{**test, "evaluated_with": "softmax"} for test in own] == published["tests"][:2]
    assert argmax == published["tests"][-2:]


def test_every_arm_has_files_of_its_own() -> None:
    runs = Ceiling().planned()
    assert len({run.stem for run in runs}) == len(runs) == 2 * len(ARMS)
    assert [len(run.seeds) for run in runs] == [5] * len(runs)


def test_steps_are_a_multiple_of_those_of_the_experiment() -> None:
    planned = zip(ARMS, Ceiling(steps=100, seeds=1).planned(), strict=True)
    assert all(run.recipe.steps == 100 * arm.set_up.longer for arm, run in planned)
    assert SetUp(longer=4.0).recipe(5).steps == 20
    assert SetUp(longer=0.5).recipe(5).steps == 2


def test_batch_rate_and_decay_reach_the_training() -> None:
    base = Run(SetUp(), 3, (0,), (16,), 2, 64)
    changes: list[dict[str, Any]] = [{}, {"batch": 64}, {"learning_rate": 3e-3}, {"weight_decay": 100.0}]
    losses = set()
    for change in (*changes, {"scaled": False}, {"schedule": "cosine", "last_rate": 1e-5}):
        run = replace(base, set_up=replace(base.set_up, **change))
        losses.add(train(run, Checkpoint(None), ignore)[1][0])
    assert len(losses) == 6


def test_a_rule_may_have_a_constant_learning_rate_of_its_own() -> None:
    """AdamW moves a parameter by its rate in the first step; the others are as they would be without."""
    run = Run(SetUp("ssmax"), 1, (0, 3), (16,), 2, 64)
    started = [rule.scale.s.item() for rule in run.network().rules]
    apart, alike = (
        train(replace(run, set_up=replace(run.set_up, rule_rate=rate)), Checkpoint(None), ignore)[0]
        for rate in (0.05, None)
    )
    moved = [rule.scale.s.item() - start for rule, start in zip(apart.rules, started, strict=True)]
    assert [abs(each) for each in moved] == pytest.approx([0.05, 0.05], rel=1e-3)
    assert all(
        torch.equal(value, alike.get_parameter(name)) == ("rules" not in name)
        for name, value in apart.named_parameters()
    )


def test_every_network_is_tested_with_its_own_rule_the_argmax_and_focus() -> None:
    tested = [list(Run(BY_NAME[name].set_up, 1, (0,), (16,), 1, 16).exam.rules) for name in ("skip", "ssmax")]
    assert tested == [[OWN, "adaptive", ARGMAX, *FOCUS], [OWN, ARGMAX, *FOCUS]]
    assert list(FOCUS) == ["focus (K = 2)", "focus (K = 4)", "focus (K = 16)"]


def test_focus_at_inference_keeps_k_items_whatever_the_rule_of_training() -> None:
    run = Run(BY_NAME["skip"].set_up, 1, (0, 1), (64,), 16, 2**20)
    network = run.network()
    found = {(line["evaluated_with"], line["seed"]): line for line in evaluate(network, run.exam, 64)}
    for seed in run.seeds:
        entropies = [found[name, seed]["entropy"] for name in (ARGMAX, *FOCUS, OWN)]
        assert entropies == sorted(entropies)
        for k, name in zip((2, 4, 16), FOCUS, strict=True):
            assert found[name, seed]["entropy"] <= torch.tensor(float(k)).log() + 1e-6
            assert found[name, seed]["top_weight"] >= 1 / k


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": ("published", "longer")}, "--arms = 'longer': must be of published, decay, skip"),
        ({"arms": ()}, "ceiling needs at least one of each: --arms, --sizes"),
        ({"sizes": (16, 0)}, "--sizes = 0"),
        ({"steps": 0}, "--steps = 0"),
        ({"seeds": 1.5}, "--seeds = 1.5"),
        ({"seed": -1}, "--seed = -1"),
        ({"checkpoint_seconds": float("nan")}, "--checkpoint-seconds = nan"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ud.InvalidValue, match=message):
        Ceiling(**options)


def test_arms_are_chosen_by_name_and_trained_in_their_order() -> None:
    chosen = Ceiling(arms=("skip", "published", "skip"), steps=2, **TINY)
    assert [arm.name for arm in chosen.trained()] == ["published", "skip"]
    assert [row["arm"] for row in chosen.run().tables["training"]] == ["published", "skip"]
    assert (
        chosen.command()
        == "undilute reproduce ceiling --arms skip,published,skip --seeds 1 --steps 2 --sizes 16 --sets 2"
    )
