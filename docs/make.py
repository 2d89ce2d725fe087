"""``make docs``: renew what README and docs take from the code, and write the API pages to build/docs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from docs.tables import audit as audit_markdown
from docs.tables import costs, experiments, readers, treatments
from docs.tables import properties as property_tables

from undilute import files, rules
from undilute.report import result_files, rule_table
from undilute.selection import Comparison
from undilute_papers.audit import properties
from undilute_papers.bench import diagnosis_cost, speed, speed_report
from undilute_papers.reproduction import experiment

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ("forward", "training", "long", "long-training", "focus")
SUMMARY = ROOT / "docs" / "results" / "smollm2.txt"
EXPERIMENTS = ROOT / "docs" / "results"
SHOWN = (16, 64, 256, 1024, 4096, 16384)  # sizes of max retrieval in the README, as printed
LENGTHS = (64, 256, 1024, 4096)  # of length generalisation
TREATMENTS = ROOT / "docs" / "treatment"
COSTS = ROOT / "benchmarks" / "results" / "diagnosis" / "diagnosis.json"
READERS = ROOT / "docs" / "select" / "8192.json"


def readme(text: str) -> str:
    """The README with its tables renewed: the rules from the code, the speeds from the committed measurements."""
    figures = [figure for name in RESULTS for figure in measured(name)]
    results = {result.id: result for result in result_files.gathered(EXPERIMENTS, experiment.ORDER)}
    retrieval = results["max-retrieval"]
    folders = sorted(TREATMENTS.glob("*/results.json"))
    tables = {
        "rules": rule_table.markdown(rules.names(), 1024),
        "speed": costs.speed(figures),
        "smollm2": f"```console\n$ undilute diagnose\n{SUMMARY.read_text().rstrip()}\n```",
        "reproduced": experiments.summary(list(results.values())),
        "retrieval": experiments.retrieval(retrieval, "constant", "16", SHOWN),
        "retrieval-cosine": experiments.retrieval(retrieval, "cosine", "16", SHOWN),
        "ceiling": experiments.ceiling(results["ceiling"]),
        "treated": treatments.table([result_files.load(path.parent) for path in folders]),
        "cost": costs.diagnosis(diagnosis_cost.from_json(COSTS.read_text())),
    }
    return selection(filled(text, tables))


def selection(text: str) -> str:
    """A page with the committed comparison of readers."""
    return filled(text, {"readers": readers.table(Comparison.from_json(READERS.read_text()), 8192)})


def measured(name: str) -> list[speed.Figure]:
    """The committed figures of one benchmark."""
    return speed_report.from_json((ROOT / "benchmarks" / "results" / name / "speed.json").read_text())


def filled(text: str, tables: dict[str, str]) -> str:
    """The text with each table between its markers; an error if there is no place for one."""
    for name, table in tables.items():
        between = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, places = between.subn(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)
        if places != 1:
            raise ValueError(f"{places} places for the table {name!r}: must be one.")
    return text


def focus_results(text: str) -> str:
    """docs/focus.md with what it takes from the committed results renewed."""
    results = {result.id: result for result in result_files.gathered(EXPERIMENTS, experiment.ORDER)}
    retrieval, longer = results["max-retrieval"], results["length-generalisation"]
    figures = [figure for name in ("focus", "focus-spreads") for figure in measured(name)]
    tables = {
        "retrieval": experiments.retrieval(retrieval, "constant", "16", SHOWN),
        "retrieval-cosine": experiments.retrieval(retrieval, "cosine", "16", SHOWN),
        "recall": experiments.lengths(longer, "recall", LENGTHS),
        "copying": experiments.lengths(longer, "copying", LENGTHS),
        "ceiling": experiments.ceiling(results["ceiling"]),
        "inference": experiments.inference(results["ceiling"]),
        "treated": treatments.table([result_files.load(TREATMENTS / "focus")]),
        "speed": costs.compared(figures, "focus", "entmax15"),
    }
    return filled(text, tables)


def focus_theory(text: str) -> str:
    """docs/focus.md with its other tables renewed: constants by theory, every rule by search (half a minute)."""
    found = properties.properties()
    tables = {
        "steepness": property_tables.steepness((1.1, 1.25, 1.5, 1.75, 2.0), (2, 4, 8, 16, 64, 256)),
        "properties": f"{property_tables.summary(found)}\n\n{property_tables.markdown(found)}",
    }
    return filled(text, tables)


def reproduction() -> str:
    """docs/reproduction.md: every committed result in words, compared with what was printed."""
    return experiments.page(result_files.gathered(EXPERIMENTS, experiment.ORDER), "results")


def architectures() -> str:
    """docs/architectures.md: the table that the tests hold the library to, for the version that they run with."""
    from tests.models.zoo import page

    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    return page.markdown(pinned["transformers"])


def diagnosis() -> None:
    """The README's picture and summary: a real diagnosis, and its page as a browser shows it."""
    from playwright.sync_api import sync_playwright

    page = ROOT / "build" / "diagnosis.html"
    command = [sys.executable, "-m", "undilute", "diagnose", "--html", str(page)]
    environment = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1"}
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    lines = [line.rstrip() for line in printed.splitlines() if not line.startswith("wrote ")]
    files.write(SUMMARY, "\n".join(lines).strip() + "\n")
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1280, "height": 1290})
        view.goto(page.as_uri())
        files.write(ROOT / "docs" / "images" / "diagnosis.png", view.screenshot())
        browser.close()


def main() -> None:
    path = ROOT / "README.md"
    diagnosis()
    files.write(path, readme(path.read_text()))
    files.write(ROOT / "docs/audit.md", audit_markdown.page())
    files.write(ROOT / "docs/reproduction.md", reproduction())
    files.write(ROOT / "docs/architectures.md", architectures())
    page = ROOT / "docs" / "select.md"
    files.write(page, selection(page.read_text()))
    page = ROOT / "docs" / "focus.md"
    files.write(page, focus_results(focus_theory(page.read_text())))
    subprocess.run([sys.executable, "-m", "undilute", "plot", "rules", "--output", "build/rules"], cwd=ROOT, check=True)
    files.write(ROOT / "docs/images/rules.png", (ROOT / "build/rules/rules.png").read_bytes())
    subprocess.run([sys.executable, "-m", "pdoc", "--output-directory", "build/docs", "undilute"], cwd=ROOT, check=True)
    print("README.md and docs are current; API pages: build/docs/index.html")


if __name__ == "__main__":
    main()
