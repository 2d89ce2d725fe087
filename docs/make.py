"""``make docs``: renew what the README takes from the code, and write the API pages to build/docs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from undilute import rules
from undilute.report import files, rule_table

ROOT = Path(__file__).resolve().parent.parent
TABLE = re.compile(r"(<!-- rules: .*? -->\n).*?(<!-- /rules -->)", re.DOTALL)


def readme_with_current_table(text: str) -> str:
    """The README with the table of rules made anew."""
    table = rule_table.markdown(rules.names(), 1024)
    return TABLE.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text)


def main() -> None:
    readme = ROOT / "README.md"
    files.write(readme, readme_with_current_table(readme.read_text()))
    subprocess.run([sys.executable, "-m", "undilute", "plot", "rules", "--output", "build/rules"], cwd=ROOT, check=True)
    files.write(ROOT / "docs/images/rules.png", (ROOT / "build/rules/rules.png").read_bytes())
    subprocess.run([sys.executable, "-m", "pdoc", "--output-directory", "build/docs", "undilute"], cwd=ROOT, check=True)
    print("README.md and docs/images are current; API pages: build/docs/index.html")


if __name__ == "__main__":
    main()
