"""``make docs``: renew what README and docs take from the code, and write the API pages to build/docs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from undilute import rules
from undilute.report import audit_page, files, rule_table, speed_report

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ("forward", "training", "long", "long-training")


def current(text: str) -> str:
    """The README with its tables made anew: the rules from the code, the speeds from the committed measurements."""
    measured = [ROOT / "benchmarks" / "results" / name / "speed.json" for name in RESULTS]
    figures = [figure for path in measured for figure in speed_report.from_json(path.read_text())]
    tables = {"rules": rule_table.markdown(rules.names(), 1024), "speed": speed_report.markdown(figures)}
    for name, table in tables.items():
        between = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text = between.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)
    return text


def main() -> None:
    readme = ROOT / "README.md"
    files.write(readme, current(readme.read_text()))
    files.write(ROOT / "docs/audit.md", audit_page.markdown())
    subprocess.run([sys.executable, "-m", "undilute", "plot", "rules", "--output", "build/rules"], cwd=ROOT, check=True)
    files.write(ROOT / "docs/images/rules.png", (ROOT / "build/rules/rules.png").read_bytes())
    subprocess.run([sys.executable, "-m", "pdoc", "--output-directory", "build/docs", "undilute"], cwd=ROOT, check=True)
    print("README.md, docs/audit.md and docs/images are current; API pages: build/docs/index.html")


if __name__ == "__main__":
    main()
