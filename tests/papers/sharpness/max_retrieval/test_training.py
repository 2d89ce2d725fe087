"""A run learns, is tested on the same sets as every other, and gives the same numbers after any kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from undilute_papers.reproduction.checkpoint import Checkpoint
from undilute_papers.reproduction.evaluated import ARGMAX
from undilute_papers.reproduction.training import Job, carry_out
from undilute_papers.reproduction.workers import ignore
from undilute_papers.sharpness.max_retrieval import MaxRetrieval
from undilute_papers.sharpness.max_retrieval.network import Network
from undilute_papers.sharpness.max_retrieval.training import Run, evaluate, train

RUN = Run("softmax", "5-16", "constant", (0, 1), 300, True, (16, 64), 64, 2**20)


def test_training_learns() -> None:
    untrained, _ = train(replace(RUN, steps=1), Checkpoint(None), ignore)
    network, losses = train(RUN, Checkpoint(None), ignore)
    before, after = ([test["accuracy"] for test in evaluate(each, RUN.exam, 16)][:2] for each in (untrained, network))
    assert max(before) < 40
    assert min(after) > 75
    assert max(losses) < 1.0


def test_every_rule_is_tested_with_the_argmax_beside_it() -> None:
    runs = [carry_out(Job(replace(RUN, rule=rule, steps=2)), ignore) for rule in ("softmax", "ssmax")]
    names = [
        [test["evaluated_with"] for test in run["tests"] if (test["items"], test["seed"]) == (16, 0)] for run in runs
    ]
    assert names == [["softmax", "adaptive", ARGMAX], ["ssmax", ARGMAX]]
    for run in runs:
        argmax = [test for test in run["tests"] if test["evaluated_with"] == ARGMAX]
        assert all(test["top_weight"] == 1 and test["entropy"] == 0 for test in argmax)


def test_every_rule_is_tested_on_the_same_sets() -> None:
    """Before any training the argmax is the same whatever the rule, so on other sets it would have other figures."""
    found = []
    for name in ("softmax", "sparsemax"):
        run = replace(RUN, rule=name)
        lines = evaluate(Network(name, run.seeds, run.scaled), run.exam, 64)
        found.append([line for line in lines if line["evaluated_with"] == ARGMAX])
    assert found[0] == found[1]
    assert len({line["spread"] for line in found[0]}) == len(RUN.seeds)  # and other sets and weights for every seed


def test_few_sets_where_sets_are_large() -> None:
    network, _ = train(replace(RUN, steps=1), Checkpoint(None), ignore)
    run = replace(RUN, test_items=4096)
    counts = [[test["sets"] for test in evaluate(network, run.exam, items)] for items in (16, 512, 2**13)]
    assert counts == [[64] * 6, [8] * 6, [1] * 6]


def test_the_learning_rate_falls_as_its_schedule_says() -> None:
    recipe = replace(RUN, schedule="cosine", steps=1000).recipe
    assert recipe.rate(0) == pytest.approx(1e-3)
    assert recipe.rate(500) == pytest.approx((1e-3 + 1e-6) / 2)
    assert recipe.rate(1000) == pytest.approx(1e-6)
    assert RUN.recipe.rate(299) == 1e-3
    exponential = replace(recipe, schedule="exponential", last_rate=1e-5)
    assert exponential.rate(500) == pytest.approx(1e-4)
    held = replace(exponential, hold=0.2)
    assert [held.rate(step) for step in (0, 200, 600, 1000)] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-5])


def test_set_sizes_are_drawn_from_all_of_their_range() -> None:
    random = torch.Generator().manual_seed(0)
    assert {RUN.recipe.items(random) for _ in range(300)} == set(range(5, 17))
    assert {replace(RUN, set_size="16").recipe.items(random) for _ in range(5)} == {16}


PROGRAM = """
import sys
from pathlib import Path
from undilute_papers.sharpness.max_retrieval import MaxRetrieval
if __name__ == "__main__":
    options = dict(rules=("softmax", "ssmax"), schedules=("constant",), set_sizes=("16",), sizes=(16, 64), sets=64)
    options |= dict(seeds=1, steps=int(sys.argv[2]), workers=2, checkpoint_seconds=0.1)
    MaxRetrieval(work=Path(sys.argv[1]), **options).run()
"""


def test_sigkill_loses_nothing_and_leaves_no_process_behind(tmp_path: Path) -> None:
    work, program, steps = tmp_path / "work", tmp_path / "program.py", 400
    program.write_text(PROGRAM)
    process = subprocess.Popen([sys.executable, str(program), str(work), str(steps)])
    _wait_for(lambda: len(list(work.glob("*.pt"))) == 2)
    workers = _children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _wait_for(lambda: not any(_runs(each) for each in workers))
    states = [torch.load(path, weights_only=True)["step"] for path in work.glob("*.pt")]
    assert len(states) == 2
    assert all(0 < step < steps for step in states), "killed too late to mean anything"
    options: dict[str, Any] = {"rules": ("softmax", "ssmax"), "schedules": ("constant",), "set_sizes": ("16",)}
    experiment = MaxRetrieval(seeds=1, steps=steps, sizes=(16, 64), sets=64, workers=1, **options)
    resumed, whole = replace(experiment, work=work).run(), experiment.run()
    assert resumed.tables == whole.tables


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()[1:]]
    return [int(row[0]) for row in rows if int(row[1]) == pid and "spawn_main" in row[2]]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state != "Z"


def _wait_for(holds: object, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
