"""The shape of the house: which room may import which, what ``import undilute`` loads, and how large the library is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"
LIBRARY, EVIDENCE = SRC / "undilute", SRC / "undilute_papers"
MOST_LINES_OF_CODE = 23_500  # 21,000 before tuning and exporting, two rooms of 2,500 with their commands

# Every room may import those in lines above its own, and no other. CONTRIBUTING.md says what each is for.
ORDER = (
    ("errors", "progress", "interrupts"),
    ("plugins",),
    ("files",),
    ("rules",),
    ("theory", "losses"),
    ("measures",),
    ("engine",),
    ("structures",),
    ("nn",),
    ("models",),
    ("treatment",),
    ("evaluation",),
    ("diagnosis",),
    ("selection",),
    ("tuning",),
    ("exporting",),
    ("integrations",),
)
ON_TOP = ("cli", "report", "__main__", "__init__")  # may import every room
HEAVY = (
    "accelerate",
    "jinja2",
    "matplotlib",
    "numba",
    "pandas",
    "plotly",
    "pydantic",
    "rich",
    "transformers",
    "typer",
    "undilute_papers",
)


@dataclass(frozen=True)
class Import:
    """One imported name: by which file and line, in which function ("" at the top), and only for type checkers?"""

    file: Path
    line: int
    function: str
    name: str
    for_types: bool = False

    @property
    def room(self) -> str:
        return room_of(self.file)

    @property
    def target(self) -> str:
        """The room that is imported from; "" if that is not the library."""
        parts = self.name.split(".")
        return parts[1] if parts[0] == "undilute" and len(parts) > 1 else ""

    def __str__(self) -> str:
        return f"{self.file.relative_to(SRC)}:{self.line} imports {self.name}"


def room_of(file: Path) -> str:
    """The package or module directly below ``undilute`` that a file belongs to."""
    return file.relative_to(LIBRARY).parts[0].removesuffix(".py")


def imports(folder: Path) -> list[Import]:
    """Every import of every file, those for type checkers and those inside functions included."""
    return [each for file in sorted(folder.rglob("*.py")) for each in imports_of(file, ast.parse(file.read_text()))]


def imports_of(file: Path, tree: ast.AST, function: str = "", for_types: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(file, node.lineno, function, alias.name, for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative imports hide where a name comes from"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (Import(file, node.lineno, function, name, for_types) for name in names)
        else:
            inside = node.name if isinstance(node, ast.FunctionDef) else function
            typed = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            yield from imports_of(file, node, inside, for_types or typed)


LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
ROOMS = {*LEVEL, *ON_TOP}


def test_every_room_is_known() -> None:
    there = {room_of(file) for file in LIBRARY.rglob("*.py")}
    assert there == ROOMS, "say in ORDER where a new room stands, and in CONTRIBUTING.md what it is for"


def test_rooms_import_only_what_stands_below_them() -> None:
    wrong = [
        str(each)
        for each in imports(LIBRARY)
        if each.room in LEVEL
        and each.target in LEVEL
        and each.target != each.room
        and LEVEL[each.target] >= LEVEL[each.room]
    ]
    assert wrong == []


SHOWING = ("show", "save", "_repr_html_", "summary", "report", "tables")  # how methods that show a result begin


def test_reports_are_imported_by_the_command_line_and_by_results_alone() -> None:
    """A result may import its page in the method that shows or saves it; nothing else depends on pages."""
    wrong = [
        str(each)
        for each in imports(LIBRARY)
        if each.target == "report"
        and each.room not in ("report", "cli")
        and not (each.for_types or each.function.startswith(SHOWING))
    ]
    assert wrong == []


def test_nothing_imports_the_command_line_but_its_entry_point() -> None:
    wrong = [str(each) for each in imports(LIBRARY) if each.target == "cli" and each.room not in ("cli", "__main__")]
    assert wrong == []


def test_the_library_never_imports_the_evidence() -> None:
    wrong = [str(each) for each in imports(LIBRARY) if each.name.split(".")[0] == "undilute_papers"]
    assert wrong == []
    named = [file.name for file in LIBRARY.rglob("*.py") if 'import_module("undilute_papers' in file.read_text()]
    assert named == []


def test_the_evidence_uses_no_private_names_of_the_library() -> None:
    wrong = [
        str(each)
        for each in imports(EVIDENCE)
        if any(p.startswith("_") and p != "__version__" for p in each.name.split("."))
    ]
    assert [each for each in wrong if "imports undilute." in each] == []


def test_routes_do_not_import_each_other() -> None:
    folder = LIBRARY / "engine" / "routes"
    names = {file.stem for file in folder.glob("*.py")} - {"__init__", "choose"}
    wrong = [
        str(each)
        for each in imports(folder)
        if each.file.stem != "choose"
        and each.name.startswith("undilute.engine.routes.")
        and each.name.split(".")[3] in names
    ]
    assert wrong == []


@pytest.mark.parametrize("statement", ["import undilute", "import undilute.cli"])
def test_importing_is_light(statement: str) -> None:
    code = f"import sys; {statement}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def code_lines(file: Path) -> int:
    """Lines that hold code: no blank lines, no comments, no docstrings."""
    text = file.read_text()
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            first = node.body[0]
            documented.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return sum(bool(line) and not line.startswith("#") and number not in documented for number, line in lines)


def test_the_library_stays_small() -> None:
    assert sum(map(code_lines, LIBRARY.rglob("*.py"))) <= MOST_LINES_OF_CODE
