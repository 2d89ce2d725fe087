"""``--import``: the user's own rules, measures and tasks in every command that takes one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import undilute as ud
from tests.cli.test_diagnose import saved
from tests.command import Here, undilute
from undilute import rules
from undilute.cli import imports
from undilute.evaluation import tasks
from undilute.measures import registry as measures
from undilute.models import texts

RULE = """
import math
import undilute as ud


@ud.rules.register("squared-relu", formula="relu(z)² / Σ relu(z)²")
class SquaredReLU(ud.rules.Map):
    is_sparse, is_shift_invariant, sums_to_one = True, False, False

    def __init__(self, power: float = 2.0):
        super().__init__()
        self.power = power

    def forward(self, logits, visible):
        w = logits.relu().pow(self.power).masked_fill(~visible, 0.0)
        return w / w.sum(-1, keepdim=True).clamp(min=1e-30)

    def lipschitz(self, n):
        return math.inf
"""
MEASURE = """
from undilute.measures.registry import measure


@measure("own_measure", label="mine", formula="0 · z")
def own_measure(rows):
    return rows.n.expand(rows.weights.shape[:-1]) * 0.0
"""


TASK = """
from undilute.evaluation import Asked, task


@task("pets", hides={"{name} keeps a {thing}.": 1}, asks="{name} keeps a")
def pets(words, taken, generator):
    cat, dog = words.things(2, taken, generator)
    return [f"Ann keeps a {cat}."], [Asked("Ann keeps a", [cat, dog], [cat], [0])]
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a rule in a file; nothing of it stays registered."""
    (tmp_path / "my_rule.py").write_text(RULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(imports, "_done", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    registries = rules.registry._presets, measures._measures, tasks._tasks
    assert rules.names()
    assert measures.every()
    assert tasks.known()
    before = [dict(each) for each in registries]
    yield tmp_path
    for registry, known in zip(registries, before, strict=True):
        registry.clear()
        registry.update(known)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("name", ["my_rule.py", "./my_rule.py", "my_rule", "{folder}/my_rule.py"])
def test_a_rule_of_a_file_or_module_is_known_by_name(here: Here, elsewhere: Path, name: str) -> None:
    ran = here("rules", "squared-relu(power=3)", "--import", name.format(folder=elsewhere))
    assert ran.returncode == 0, ran.stderr
    assert "relu(z)² / Σ relu(z)²" in ran.stdout
    assert "power: float = 3" in ran.stdout
    assert ran.stderr == ""


def test_every_command_that_takes_a_rule_has_it(here: Here) -> None:
    for command in ("diagnose", "treat", "compare", "rules", "bench", "plot rules", "reproduce max-retrieval"):
        said = here(*command.split(), "--help").stdout
        assert "--import" in said, command
        assert "Their code is run" in " ".join(said.split()), command
    assert "--import" not in here("reproduce", "temperature", "--help").stdout  # takes no rule


@pytest.mark.parametrize("start", [["-m", "undilute"], ["script"]])
def test_the_module_and_the_console_script_find_the_same_files(elsewhere: Path, start: list[str]) -> None:
    script = elsewhere / "bin" / "undilute"
    script.parent.mkdir()
    script.write_text("import sys\nfrom undilute.__main__ import main\nsys.exit(main())\n")  # as pip writes it
    words = [str(script) if word == "script" else word for word in start]
    (elsewhere / "uses_helper.py").write_text("import my_rule\n")
    for name in ("my_rule", "uses_helper.py"):
        ran = subprocess.run(
            [sys.executable, *words, "rules", "squared-relu", "--import", name],
            capture_output=True,
            text=True,
            cwd=elsewhere,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each not in ("", "."))},
        )
        assert (ran.returncode, ran.stderr) == (0, ""), name
        assert ran.stdout.startswith("rule: squared-relu\n")


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A small model and a text for it, as options."""
    folder = tmp_path_factory.mktemp("reading")
    torch.manual_seed(0)
    saved(
        GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=2048, vocab_size=128)), folder / "model"
    )
    (folder / "book").write_text(texts.shipped()[:20_000])
    return ["--model", str(folder / "model"), "--text", str(folder / "book"), "--length", "64"]


def test_a_model_is_treated_and_compared_with_what_was_typed(here: Here, reading: list[str]) -> None:
    fast = [*reading, "--windows", "1", "--haystacks", "0", "--output", "out"]
    which = "squared-relu(power=3),llama4(beta=0.331, floor_length=9),ssmax(s=[0.3,0.4]) | entmax15"
    ran = here("compare", "--import", "my_rule.py", "--rules", which, *fast)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(Path("out/results.json").read_text())
    assert found["settings"]["rules"] == ["softmax", *rules.split_names(which)]
    assert found["command"].endswith("--import my_rule.py")
    assert shlex.split(found["command"])[:2] == ["undilute", "compare"]
    again = here(*shlex.split(found["command"])[1:], "--output", "again")
    assert again.returncode == 0, again.stderr
    ran = here("treat", "--rule", "llama4(beta=0.331, floor_length=9)", *fast)
    assert ran.returncode == 0, ran.stderr
    (assigned,) = ud.Plan.load("out/plan.json").assignments
    assert rules.text(assigned.rule) == "llama4(beta=0.331, floor_length=9)"


def test_a_measure_of_the_users_own_is_diagnosed(here: Here, reading: list[str]) -> None:
    Path("my_measure.py").write_text(MEASURE)
    ran = here("diagnose", "--import", "my_measure.py", *reading, "--json", "out.json")
    assert ran.returncode == 0, ran.stderr
    assert "own_measure" in [each["name"] for each in json.loads(Path("out.json").read_text())["measures"]]


def test_pictures_of_a_rule_and_of_one_with_parameters(here: Here) -> None:
    which = "softmax,squared-relu, llama4(beta=0.5, floor_length=4)"
    line = ["plot", "rules", "--import", "my_rule.py", "--rules", which, "--longest", "8", "--seeds", "1"]
    ran = here(*line, "--output", "out")
    assert ran.returncode == 0, ran.stderr
    table = Path("out/rules.csv").read_text()
    assert "squared-relu" in table
    assert '"llama4(beta=0.5, floor_length=4)"' in table


def test_a_benchmark_says_how_to_repeat_it(here: Here) -> None:
    line = ["bench", "--import", "my_rule.py", "--rules", "squared-relu(power=3), ssmax", "--lengths", "8"]
    ran = here(*line, "--decode", "0", "--repeat", "1", "--dense", "0", "--no-backward", "--output", "out")
    assert ran.returncode == 0, ran.stderr
    said = Path("out/speed.json").read_text()
    assert "undilute bench --rules 'squared-relu(power=3), ssmax' --lengths 8" in said
    assert "--import my_rule.py" in said


def test_a_measure_of_a_file(here: Here) -> None:
    Path("my_measure.py").write_text(MEASURE)
    ran = here("rules", "softmax", "--import", "my_measure.py", "--import", "my_rule.py", "--import", "./my_measure.py")
    assert ran.returncode == 0, ran.stderr
    assert "own_measure" in measures.every()
    assert "squared-relu" in rules.names()
    assert [Path(each).name for each in imports.done()] == ["my_measure.py", "my_rule.py"]


def test_a_task_of_a_file_is_asked(here: Here, reading: list[str]) -> None:
    Path("my_task.py").write_text(TASK)
    line = ["compare", "--import", "my_task.py", "--rules", "ssmax", *reading, "--windows", "1", "--haystacks", "1"]
    ran = here(*line, "--needle-lengths", "1536", "--output", "out")
    assert ran.returncode == 0, ran.stderr
    asked = json.loads(Path("out/results.json").read_text())["tables"]["recall"]
    assert "pets" in {row["task"] for row in asked}


def test_workers_know_the_rule_too(elsewhere: Path) -> None:
    line = "reproduce max-retrieval --import my_rule.py --rules squared-relu(power=3),softmax --seeds 1 --steps 2"
    line += " --variant-seeds 1 --schedules constant --set-sizes 16 --sizes 16 --sets 4 --workers 2 --output out"
    ran = undilute(*line.split(), cwd=elsewhere)
    assert ran.returncode == 0, ran.stderr
    assert "squared-relu(power=3)" in (elsewhere / "out/max-retrieval/results.json").read_text()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\nx.y\n", "line 2: AttributeError: 'int' object has no attribute 'y'."),
        ("def f():\n    return 1 / 0\n\nf()\n", "line 2: ZeroDivisionError: division by zero."),
        ("import json\njson.loads('{')\n", "line 2: JSONDecodeError: "),
        ("x = (\n", "line 1: SyntaxError: '(' was never closed."),
        ("import sys\nsys.exit('bye')\n", "line 2: SystemExit: bye."),
        ("raise ValueError('one\\ntwo')\n", "line 1: ValueError: one two."),
        ("import undilute as ud\nud.rules.register('ssmax')(lambda: 3)\n", "line 2: rule name 'ssmax' is taken: "),
        ("import undilute as ud\nud.rules.get('nope')\n", "line 2: unknown rule 'nope'"),
        ("import undilute\n", " registers nothing: it must define a rule with @undilute.rules.register"),
        ("", " registers nothing"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence_with_its_line(here: Here, source: str, message: str) -> None:
    Path("wrong.py").write_text(source)
    ran = here("rules", "--import", "wrong.py")
    assert ran.returncode == 2
    assert ran.stderr.startswith("undilute: --import = 'wrong.py'")
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert ran.stdout == ""


def test_what_is_wrong_with_a_module_names_its_file(here: Here, elsewhere: Path) -> None:
    Path("wrong_module.py").write_text("\n1 / 0\n")
    ran = here("rules", "--import", "wrong_module")
    place = str(elsewhere / "wrong_module.py")
    assert ran.stderr == (
        f"undilute: --import = 'wrong_module', {place!r}, line 2: ZeroDivisionError: division by zero.\n"
    )
    Path("needs_more.py").write_text("import not_there_at_all\n")
    assert "No module named 'not_there_at_all'" in here("rules", "--import", "needs_more").stderr
    assert "there is no module 'nothing_of_the_kind'" in here("rules", "--import", "nothing_of_the_kind").stderr


def test_the_file_is_run_before_anything_else_is_looked_at(here: Here) -> None:
    Path("loud.py").write_text("raise RuntimeError('first')\n")
    assert "RuntimeError: first" in here("rules", "nope", "--n", "0", "--import", "loud.py").stderr


def test_a_file_shadows_nothing(here: Here) -> None:
    """A file may have the name of a module that a command imports later."""
    Path("rich.py").write_text(RULE)
    ran = here("rules", "squared-relu", "--import", "rich.py")
    assert ran.returncode == 0, ran.stderr
    assert not str(sys.modules["rich"].__file__).endswith("rich.py")


def test_annotations_of_the_file_are_its_own(here: Here) -> None:
    Path("plain.py").write_text(RULE + "def f(x: int): ...\nassert f.__annotations__ == {'x': int}\n")
    assert here("rules", "squared-relu", "--import", "plain.py").returncode == 0
