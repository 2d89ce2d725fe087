"""The command as a user runs it: real processes, exit codes, files."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import Here, undilute
from tests.distribution import install
from undilute import rules


def test_rules_lists_every_rule() -> None:
    result = undilute("rules")
    assert result.returncode == 0
    for name in rules.names():
        assert name in result.stdout
    assert "[z/2 − τ]₊²" in result.stdout  # not eaten as markup


def test_rules_in_a_narrow_terminal_keeps_names_whole() -> None:
    result = undilute("rules", COLUMNS="80")
    lines = result.stdout.splitlines()
    assert all(any(line.strip().startswith(name) for line in lines) for name in rules.names())


def test_rules_json_is_json(here: Here) -> None:
    rows = json.loads(here("rules", "--json", "--n", "64").stdout)
    assert [row["name"] for row in rows] == rules.names()
    assert {row["name"]: row["lipschitz"] for row in rows}["hard"] is None
    assert {row["name"]: row["lipschitz"] for row in rows}["softmax"] == 0.5


def test_one_rule_in_detail(here: Here) -> None:
    text = here("rules", "adaptive").stdout
    assert "arXiv:2410.01104" in text
    assert "min_entropy" in text
    assert "varentropy" in text


def test_plot_rules_writes_picture_page_and_numbers(tmp_path: Path) -> None:
    result = undilute("plot", "rules", "--rules", "softmax,ssmax", "--longest", "64", "--output", str(tmp_path / "out"))
    assert result.returncode == 0, result.stderr
    made = {path.name: path for path in (tmp_path / "out").iterdir()}
    assert set(made) == {"rules.png", "rules.html", "rules.csv"}
    assert made["rules.png"].read_bytes().startswith(b"\x89PNG")
    page = made["rules.html"].read_text()
    assert "<table>" in page
    assert "https://cdn" not in page.split("<body>")[0]
    with made["rules.csv"].open() as file:
        table = list(csv.DictReader(file))
    assert {row["rule"] for row in table} == {"softmax", "ssmax"}
    assert [int(row["n"]) for row in table if row["rule"] == "ssmax"] == [2, 4, 8, 16, 32, 64]
    assert "n = 64" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rules", "sparsmax"], "unknown rule 'sparsmax': did you mean 'sparsemax'"),
        (["rules", "--n", "0"], "--n = 0"),
        (["plot", "rules", "--rules", "nope"], "unknown rule 'nope'"),
        (["plot", "rules", "--rules", "ssmax(z=1)"], "rule 'ssmax' got parameters ['z']: it takes s, b, floor"),
        (["plot", "rules", "--longest", "1"], "--longest = 1"),
        (["plot", "rules", "--gap", "nan"], "gap = nan"),
        (["plot", "rules", "--noise", "-1"], "noise = -1.0: must be at least 0"),
        (["plot", "rules", "--longest", "100000000000"], "--longest = 100000000000"),
        (["plot", "rules", "--seed", "99999999999999999999"], "seed = 99999999999999999999"),
        (["plot", "rules", "--seeds", "0"], "seeds = 0"),
        (["plot", "rules", "--longest", "4", "--output", "/proc/nowhere"], "cannot write"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    here: Here, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = here(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_version_and_help() -> None:
    from undilute import __version__

    assert undilute("--version").stdout.strip() == __version__
    assert "rules" in undilute("--help").stdout


def test_missing_extra_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError(\"No module named 'typer'\", name='typer')")
    result = undilute("rules", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert result.returncode == 2
    assert result.stderr.strip() == "undilute: this needs 'typer', which is not installed: pip install 'undilute[cli]'."


def test_the_version_needs_no_extra(tmp_path: Path) -> None:
    from undilute import __version__

    for package in ("typer", "rich"):
        (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('', name={package!r})")
    result = undilute("--version", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert (result.returncode, result.stdout.strip()) == (0, __version__)


@pytest.mark.parametrize("line", ["--version", "rules", "rules ssmax(s=0.4)"])
def test_a_command_imports_only_what_it_needs(line: str) -> None:
    """With the extra `cli` alone: nothing of the other extras, and none of the other commands."""
    code = (
        "import atexit, sys\n"
        "heavy = 'undilute_papers', 'undilute.cli.treat', 'undilute.cli.diagnose', 'transformers', 'jinja2', 'pandas', "
        "'plotly', 'matplotlib', 'numba'\n"
        "atexit.register(lambda: print([name for name in heavy if name in sys.modules], file=sys.stderr))\n"
        f"sys.argv[1:] = {line.split()!r}\n"
        "from undilute.__main__ import main; main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr.strip()) == (0, "[]")


def test_one_rule_with_parameters_in_detail(here: Here) -> None:
    text = here("rules", "entmax(alpha=1.3)").stdout
    assert text.startswith("rule: entmax(alpha=1.3)\n")
    assert "parameters: alpha: 'Number' = 1.3" in text
    (row,) = json.loads(here("rules", "ssmax(s=2) | sparsemax", "--json", "--n", "64").stdout)
    assert row["name"] == "ssmax(s=2) | sparsemax"
    assert row["is_sparse"]


# ---------------------------------------------------------------- packages that bring commands

COMMANDS = """[undilute.commands]
brought = brought_commands:hello
brought-group = brought_commands:group
rules = brought_commands:hello
broken-file = broken_commands:hello
broken-name = brought_commands:missing
broken-kind = brought_commands:odd
"""
SOURCE = """
import typer
group = typer.Typer(help="Several.")
def hello(name: str = "you") -> None:
    "Says hello."
    print("hello", name)
@group.command("one")
def one() -> None:
    "The first."
    print("one")
@group.command("two")
def two() -> None:
    "The second."
odd = 3
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "brings-commands", COMMANDS, brought_commands=SOURCE, broken_commands="1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("package")
def test_a_package_brings_commands(here: Here) -> None:
    assert here("brought", "--name", "all").stdout == "hello all\n"
    assert here("brought-group", "one").stdout == "one\n"
    assert "Says hello." in here("brought", "-h").stdout
    assert "softmax" in here("rules").stdout  # a name that is taken stays with Undilute


@pytest.mark.usefixtures("package")
def test_a_broken_command_says_so_and_breaks_nothing_else(here: Here) -> None:
    listed = here("--help")
    assert listed.returncode == 0
    said = " ".join(listed.stdout.replace("│", " ").split())
    assert "Not available: 'broken-file' of the package 'brings-commands' cannot be used (ZeroDivisionError" in said
    assert "Says hello." in said
    for name, why in (("file", "ZeroDivisionError"), ("name", "AttributeError"), ("kind", "")):
        ran = here(f"broken-{name}", "whatever", "--it", "takes")
        assert ran.returncode == 2
        assert ran.stderr.startswith(
            f"undilute: 'broken-{name}' of the package 'brings-commands' cannot be used ({why}"
        )
        assert ran.stderr.count("\n") == 1


def test_a_package_with_broken_rules_is_one_line(tmp_path: Path) -> None:
    install(tmp_path, "broken-rules", "[undilute.rules]\nx = broken_rules\n", broken_rules="1 / 0")
    ran = undilute("rules", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert ran.returncode == 0
    assert "ssmax" in ran.stdout
    assert ran.stderr == (
        "undilute: 'x' of the package 'broken-rules' cannot be used (ZeroDivisionError: division by zero): update or "
        "uninstall it.\n"
    )


def test_a_misspelt_command_is_suggested(here: Here) -> None:
    ran = here("diagnoze")
    assert ran.returncode == 2
    assert "Did you mean 'diagnose'" in ran.stderr


def test_import_is_light() -> None:
    heavy = ("transformers", "plotly", "numba", "matplotlib", "typer", "rich", "pandas", "torch._dynamo")
    code = f"import sys, undilute; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_audit_of_one_statement(tmp_path: Path) -> None:
    page, data = tmp_path / "audit.html", tmp_path / "audit.json"
    result = undilute("audit", "A3", "--details", "--html", str(page), "--json", str(data), "--output", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "every verdict reproduced" in result.stdout
    assert "What holds" in result.stdout
    assert (tmp_path / "A3.png").stat().st_size > 1000
    assert page.read_text().startswith("<!doctype html>")
    assert json.loads(data.read_text())["statements"][0]["id"] == "A3"


def test_audit_of_an_unknown_statement(here: Here) -> None:
    result = here("audit", "B99")
    assert result.returncode == 2
    assert "'B99'" in result.stderr
    assert "Traceback" not in result.stderr


def test_audit_exits_with_1_if_a_verdict_does_not_reproduce(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import sys\n"
        "from undilute.theory import dispersion\n"
        "dispersion.relevant_weight = lambda n, gap: 1 / n\n"
        "from undilute.__main__ import main\n"
        "sys.argv = ['undilute', 'audit', 'A2']\n"
        "main()\n"
    )
    result = subprocess.run([sys.executable, str(broken)], capture_output=True, text=True)
    assert result.returncode == 1, result.stderr
    assert "NOT reproduced: A2.1" in result.stdout.replace("\n", " ")
