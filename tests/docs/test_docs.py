"""What the README says is what the code does."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from docs.tables import audit as audit_markdown

import undilute as ud
from undilute.report import result_files, result_page
from undilute_papers import audit
from undilute_papers.audit import Verdict
from undilute_papers.reproduction import experiment

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def make_docs() -> ModuleType:
    """docs/make.py, which is a program and not part of the package."""
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "docs" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_current() -> None:
    assert make_docs().readme(README) == README, "run `make docs`"
    assert README.count("| entmax15 |") == 4  # among the rules, among the speeds, and in max retrieval twice


def test_the_page_of_selection_is_current() -> None:
    page = (ROOT / "docs" / "select.md").read_text()
    assert make_docs().selection(page) == page, "run `make docs`"
    assert "| `heads+bm25` |" in page


def test_the_audit_page_is_current() -> None:
    assert (ROOT / "docs" / "audit.md").read_text() == audit_markdown.page(), "run `make docs`"


def test_the_reproduction_page_is_current() -> None:
    """Every number of an experiment in README and docs is read from a committed results file."""
    assert (ROOT / "docs" / "reproduction.md").read_text() == make_docs().reproduction(), "run `make docs`"


def test_the_page_of_architectures_is_current() -> None:
    assert (ROOT / "docs" / "architectures.md").read_text() == make_docs().architectures(), "run `make docs`"


def test_the_experiments_of_the_focus_page_are_current() -> None:
    page = (ROOT / "docs" / "focus.md").read_text()
    assert make_docs().focus_results(page) == page, "run `make docs`"
    assert page.count("| entmax15 |") == 5  # among the properties, in max retrieval and length generalisation twice


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/reproduction.md",
        "docs/audit.md",
        "docs/focus.md",
        "docs/architectures.md",
        "docs/entmax-users.md",
        "docs/select.md",
        "CONTRIBUTING.md",
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert link.startswith("https://") or (path.parent / link).exists(), link


def test_committed_results_are_whole() -> None:
    results = result_files.gathered(ROOT / "docs" / "results")
    assert {result.id for result in results} == set(experiment.every())
    for result in results:
        folder = ROOT / "docs" / "results" / result.id
        for name in (*result_page.table_files(result), *result_page.chart_files(result)):
            assert (folder / name).exists(), f"{result.id}: {name} is missing"
        assert result.command.startswith(f"undilute reproduce {result.id}")
        assert set(result.settings) == set(experiment.every()[result.id]().settings())


def test_committed_treatments_are_whole() -> None:
    found = sorted((ROOT / "docs" / "treatment").glob("*/results.json"))
    results = [result_files.load(path.parent) for path in found]
    assert {result.command.split()[1] for result in results} == {"treat", "compare"}
    for path, result in zip(found, results, strict=True):
        for name in (*result_page.table_files(result), *result_page.chart_files(result)):
            assert (path.parent / name).exists(), f"{path.parent.name}: {name} is missing"


def test_the_readme_counts_the_verdicts() -> None:
    counted = Counter(each.verdict for each in audit.statements() if each.id[0] != "U")
    sentence = f"Of {counted.total()} examined, {counted[Verdict.FALSE]} do not hold as printed, and "
    assert f"{sentence}{counted[Verdict.CONDITIONAL]} hold only under a condition" in README.replace("\n", " ")


def test_the_readmes_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # it writes a report
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 2
    try:
        exec("\n".join(blocks), {})
    finally:
        ud.rules.unregister("squared-relu")
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "report.json", "plan.json"}


def test_versions_agree() -> None:
    assert f'version = "{ud.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_every_dependency_is_explained() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    explained = (ROOT / "docs" / "dependencies.md").read_text()
    for name in {re.split(r"[\[><=]", requirement)[0] for requirement in wanted} - {"undilute"}:
        assert name in explained, name
