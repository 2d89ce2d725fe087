"""Command lines that make no sense, files that are none, a disk without room: one sentence each, and nothing is left.

No case names a device or a file of the system as an output: a defect here must not hurt the machine that finds it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tests.cli.test_diagnose import saved
from tests.command import Here
from tests.disk import full_disk
from tests.selection.material import ByWords
from tests.treatment.test_plan import FIRST, RULE, changed
from undilute.models import texts

HUGE, LONG = "9" * 400, "x" * 300
READ = ["--model", "{model}", "--text", "{book}", "--length", "64"]
FAST = [*READ, "--windows", "1", "--haystacks", "0"]
SELECT = ["--model", "{model}", "--question", "Who?", "--budget", "90", "--scorer", ByWords.label]


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the words in braces stand for."""
    folder = tmp_path_factory.mktemp("material")
    torch.manual_seed(0)
    saved(
        GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=128, vocab_size=128)), folder / "model"
    )
    contents: dict[str, str | bytes] = {
        "book": texts.shipped()[:2000],
        "binary": b"\xff\xfe\x00\x80",
        "empty": "",
        "no-heads": changed(*FIRST, "heads", to=[]),
        "half-head": changed(*FIRST, "heads", to=[0.7]),
        "huge-k": changed(*RULE, "map", to={"kind": "TopK", "k": 10**30}),
        "nan": changed(*RULE, "scale", "T", to=float("nan")),
        "deep": "[" * 100_000,
        "raises.py": "raise RuntimeError('\\n'.join('abc'))",
        "leaves.py": "import os, sys\nsys.exit(0)",
        "taken.py": "import undilute\nundilute.rules.register('softmax')(undilute.rules.Softmax)",
        "deep-code.py": "x = " + "-" * 100_000 + "1",
        "no-code.py": "a\0b",
        "endless.py": "def f(): f()\nf()",
        "nothing.py": "import undilute.measures, undilute.evaluation",
        "odd-rule.py": "import undilute\nundilute.rules.register(['x'])(3)",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return {name.removesuffix(".py").replace("-", "_"): str(folder / name) for name in (*contents, "model")}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, without a network."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return folder


def left() -> list[Path]:
    return list(Path().rglob("*"))


# ---------------------------------------------------------------- bad values

NUMBERS = [
    *(f"rules --n {value}" for value in ("0", "-1", 10**30, HUGE, 2**63)),
    *(f"plot rules --longest {value}" for value in ("-1", 10**30, HUGE)),
    *(f"plot rules --seeds {value}" for value in ("-1", 10**30, HUGE)),
    *(f"plot rules --gap {value}" for value in ("nan", "inf", "-inf", "1e400")),
    *(f"plot rules --noise {value}" for value in ("nan", "inf", "-1")),
    *(f"plot rules --seed {value}" for value in (10**30, -(10**30))),
    *(f"diagnose --target {value}" for value in ("0", "-1", 10**30, HUGE)),
    *(f"diagnose --length 64 --target {value}" for value in ("1", HUGE)),
    *(f"diagnose {' '.join(READ)} --{name} {HUGE}" for name in ("rows", "top", "sinks", "recent", "seed", "length")),
    *(f"treat {' '.join(FAST)} --haystacks {value}" for value in ("-1", 10**30)),
    *(f"treat {' '.join(READ)} --windows {value}" for value in ("0", "-1", HUGE)),
    *(f"treat {' '.join(FAST)} --seed {value}" for value in ("-1", HUGE)),
    f"treat {' '.join(FAST)} --length {HUGE}",
    *(f"treat --needle-lengths {value}" for value in ("-1", "nan", HUGE, ",", "1,,2")),
    *(f"bench --decode {value}" for value in ("-1", 10**30, HUGE)),
    *(f"bench --{name} {value}" for name in ("heads", "repeat", "dense") for value in ("-1", HUGE)),
    *(f"bench --lengths {value}" for value in ("0", "-1", HUGE, "8,x", ",")),
    "bench --spreads wide",
    "bench --rules ,",
    *(f"bench-diagnosis --{name} {value}" for name in ("repeat", "dense", "lengths") for value in ("-1", HUGE)),
    *(f"reproduce temperature --{name} {value}" for name in ("seeds", "n", "seed") for value in ("-1", HUGE)),
    *(f"reproduce temperature --temperatures {value}" for value in ("nan", "0", "inf", ",")),
    *(f"reproduce dilution --longest {value}" for value in ("-1", HUGE)),
    *(f"reproduce dilution --gaps {value}" for value in ("nan", "inf", "1e400", "-1")),
    *(f"reproduce distance --{name} {HUGE}" for name in ("length", "lengths", "top", "rows", "draws", "seed")),
    *(f"reproduce critical-n --{name} -1" for name in ("points", "rows", "heads", "subsets", "draws", "seed")),
    *(
        f"reproduce gradient --{name} {value}"
        for name in ("temperatures", "epsilons")
        for value in ("1e308", "nan", "0")
    ),
    *(f"reproduce max-retrieval --{name} {HUGE}" for name in ("seeds", "steps", "sizes", "sets", "workers", "seed")),
    *(f"reproduce length-generalisation --{name} {HUGE}" for name in ("width", "heads", "layers", "longest")),
]
NAMES = [
    *(f"audit A3 --{option} {name}" for option in ("html", "json") for name in ("/", ".", LONG, "/proc/nowhere/x")),
    *(f"audit A3 --details --output {name}" for name in (LONG, "{book}", "/proc/nowhere")),
    *(f"diagnose --{option} {name}" for option in ("html", "json", "csv") for name in ("/", LONG, "a/" + LONG)),
    *(f"treat --{option} {name}" for option in ("save-plan", "output") for name in (LONG, "/proc/nowhere")),
    "treat --save-plan /",
    *(f"{command} --output {{book}}" for command in ("compare", "bench", "bench-diagnosis", "plot rules")),
    *(f"reproduce {command} --output {{book}}" for command in ("temperature", "max-retrieval", "report")),
    *(f"diagnose --model {name}" for name in (LONG, "/dev/zero", "/", "./missing.gguf", "{binary}", "~nobody-here/x")),
    *(f"diagnose --text {name}" for name in ("/dev/zero", "/dev/null", ".", LONG, "{binary}", "{empty}")),
    *(f"treat --plan {name}" for name in ("/dev/zero", ".", LONG, "{binary}", "{empty}", "{deep}", "~nobody-here/x")),
    *(f"treat --plan {{{name}}}" for name in ("no_heads", "half_head", "huge_k", "nan")),
    "compare --rules {no_heads}.json,ssmax",
    f"rules {LONG}",
    f"audit {LONG}",
    "reproduce distance --text /dev/zero",
]
DEEP, SYSTEM = f"ssmax(s={'[' * 5000})", "__import__('os').system('touch\\x20hacked')"
TYPED = [  # rules as nobody should type them
    DEEP,
    f"ssmax(s={'-' * 9000}1)",
    f"ssmax(s={'9' * 10_000_000})",
    f"ssmax(s={HUGE})",
    f"ssmax(s={SYSTEM})",
    f"{SYSTEM}",
    f"ssmax(s=1)|{SYSTEM}",
    "ssmax(s=open('hacked','w'))",
    "entmax(alpha=nan)",
    "entmax(alpha=1e999)",
    "entmax(alpha=-inf)",
    "ssmax(s=1,s=2)",
    "ssmax(s=)",
    "ssmax(",
    "ssmax)",
    "()",
    "|",
    "ssmax(*{book})",
    "ѕsmax(ѕ=１)",
    "ssmax(\u202es=1)",
    "top-k(k=1.5)",
    "top-k(k=[1,2])",
    "llama4(1,2,3)",
    "llama4(gamma=1)",
    "sa-softmax(variant='V9')",
    "ssmax|ssmax|hard",
    "hard|ssmax",
]
EXPRESSIONS = [
    *(f"rules {rule}" for rule in TYPED),
    *(f"{command} --rules {rule}" for command in ("compare", "bench", "plot rules") for rule in TYPED),
    *(f"treat --rule {rule}" for rule in TYPED),
    *(f"reproduce max-retrieval --rules {rule}" for rule in TYPED),
]
IMPORTS = [
    *(
        f"{command} --import {name}"
        for command in ("rules", "compare", "treat", "diagnose", "bench", "plot rules", "reproduce max-retrieval")
        for name in ("missing.py", "{book}", "{binary}", "{raises}", "{leaves}")
    ),
    *(f"rules --import {name}" for name in (f"{LONG}.py", "./", "a/b", "..", "os.path", "json", "{empty}.py")),
    *(f"rules --import {{{name}}}" for name in ("taken", "deep_code", "no_code", "endless", "nothing", "odd_rule")),
    "rules --import /dev/zero.py",
    "rules --import ~nobody-here/x.py",
    "rules --import {raises} --import {leaves}",
]
TWICE = [
    "audit A3 --html x --json x",
    "audit A3 --html x --json ./x",
    "audit A3 --html x --json x/y",
    "audit A3 --details --output out --html out/A3.png",
    "diagnose --html x --json x",
    "diagnose --html x --csv sub/../x",
    "diagnose --text {book} --json {book}",
    "treat --output out --save-plan out/plan.json",
    "treat --output out --save-plan out/results.json",
    "treat --output out --save-plan out/changes.csv",
    "treat --output out --save-plan out",
    "treat --text {book} --save-plan {book}",
]
SELECTION = [
    *(
        f"{command} {' '.join(SELECT)} {rest}"
        for command in ("select", "ask")
        for rest in (
            *(f"{{book}} --{name} {value}" for name in ("budget", "size") for value in ("0", "-1", "x", HUGE)),
            *("", "missing.md", "*.md", ".", "/dev/zero", LONG, "{binary}", "{empty}", "{book} {binary}"),
            *(f"{{book}} --json {name}" for name in ("/", LONG, "a/" + LONG, "{book}", "/proc/nowhere/x")),
            *(f"{{book}} --scorer {name}" for name in (",", "+", f"{ByWords.label}+", "nobody", SYSTEM)),
            *(f"{{book}} --model {name}" for name in (LONG, "/", "{binary}", "./missing.gguf")),
            "{book} --question ",
            "{book} --budget 1",
            "{book} --import missing.py",
        )
    ),
    *(f"select {' '.join(SELECT)} {{book}} --html {name}" for name in ("/", LONG, "{book}")),
    f"select {' '.join(SELECT)} {{book}} --html x --json x",
    *(f"ask {' '.join(SELECT)} {{book}} --choices {given}" for given in (",", "a", "a,a", "a,,b")),
    *(f"ask {' '.join(SELECT)} {{book}} --max-tokens {value}" for value in ("0", "-1", "500", HUGE)),
    f"ask {' '.join(SELECT)} {{book}} --order worst",
    f"ask {' '.join(SELECT)} {{book}} --chat",
    f"ask {' '.join(SELECT)} {{book}} --question {'why' * 60}?",
]


def words(line: str, material: dict[str, str]) -> list[str]:
    return [word.format(**material) for word in line.split(" ")]


KINDS = {
    "numbers": NUMBERS,
    "names": NAMES,
    "twice": TWICE,
    "expressions": EXPRESSIONS,
    "imports": IMPORTS,
    "selection": SELECTION,
}


@pytest.mark.parametrize("lines", KINDS.values(), ids=KINDS)
def test_what_makes_no_sense_is_one_sentence_and_leaves_nothing(
    here: Here, material: dict[str, str], lines: list[str]
) -> None:
    book = Path(material["book"]).read_bytes()
    wrong = {}
    for line in lines:
        ran = here(*words(line, material))
        one_line = ran.stderr.startswith("undilute: ") and ran.stderr.count("\n") == 1 and len(ran.stderr) < 1500
        if ran.returncode != 2 or not (one_line or "Invalid value" in ran.stderr) or left():
            wrong[line[:100]] = (ran.returncode, ran.stderr[-300:], left())
    assert wrong == {}
    assert Path(material["book"]).read_bytes() == book
    assert len(NUMBERS) + len(NAMES) + len(TWICE) > 150
    assert len(EXPRESSIONS) + len(IMPORTS) > 150


def test_what_a_shell_cannot_type_is_refused_too(here: Here) -> None:
    """Programs hand over what they like: NUL, half a character, nothing."""
    for line in (["audit", "A3", "--html", "a\0b"], ["audit", "A3", "--json", ""], ["diagnose", "--text", ""]):
        ran = here(*line)
        assert ran.returncode == 2
        assert "Traceback" not in ran.stderr
        assert left() == []


def test_text_comes_from_a_pipe_too(here: Here, material: dict[str, str]) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, Path(material["book"]).read_bytes())
    os.close(theirs)
    ran = here("diagnose", "--model", material["model"], "--text", f"/dev/fd/{ours}", "--json", "out.json")
    os.close(ours)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(Path("out.json").read_text())["tokens"]
    assert "".join(said) in Path(material["book"]).read_text()


def test_a_file_with_a_name_in_another_encoding_is_written(here: Here) -> None:
    name = os.fsdecode(b"\xff.json")
    ran = here("audit", "A3", "--json", name)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(Path(name).read_text())


# ---------------------------------------------------------------- no room

WRITING = {
    "plot rules": "plot rules --rules softmax --longest 8 --seeds 1 --output new/out",
    "audit": "audit A3 --details --html new/x.html --json new/x.json --output new",
    "diagnose": f"diagnose {' '.join(READ)} --html new/x.html --json new/x.json --csv new/x.csv",
    "treat": f"treat {' '.join(FAST)} --rule ssmax --output new/out --save-plan new/plan.json",
    "compare": f"compare {' '.join(FAST)} --rules ssmax --output new/out",
    "select": f"select {' '.join(SELECT)} {{book}} --html new/x.html --json new/x.json",
    "ask": f"ask {' '.join(SELECT)} {{book}} --max-tokens 2 --json new/x.json",
    "bench": "bench --rules ssmax --lengths 8 --decode 0 --repeat 1 --dense 0 --no-backward --output new/out",
    "bench-diagnosis": "bench-diagnosis --model {model} --lengths 64 --repeat 1 --dense 0 --output new/out",
    "reproduce": "reproduce temperature --seeds 2 --output new/out",
    "training": "reproduce max-retrieval --rules softmax --schedules constant --set-sizes 5-16 --seeds 1 --steps 2 "
    "--sizes 16 --sets 4 --workers 1 --output new/out",
}


@pytest.mark.parametrize("line", WRITING.values(), ids=WRITING.keys())
def test_a_full_disk_is_one_sentence_and_leaves_nothing(here: Here, material: dict[str, str], line: str) -> None:
    with full_disk(100):
        ran = here(*words(line, material))
    assert ran.returncode == 2
    assert ran.stderr.startswith("undilute: cannot write 'new/")
    assert "File too large; choose" in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert left() == []


def test_a_report_on_a_full_disk_leaves_the_one_before(here: Here) -> None:
    assert here("reproduce", "temperature", "--seeds", "2", "--output", "out").returncode == 0
    Path("out/index.html").write_text("before")
    files = set(left())
    with full_disk(100):
        ran = here("reproduce", "report", "--output", "out")
    assert ran.returncode == 2
    assert ran.stderr.startswith("undilute: cannot write 'out/index.html': File too large; choose a file in a folder ")
    assert ran.stderr.count("\n") == 1
    assert Path("out/index.html").read_text() == "before"
    assert set(left()) == files


@pytest.mark.parametrize("printed", ["rules", "rules --json"])
def test_an_output_without_room_is_one_sentence(printed: str, tmp_path: Path) -> None:
    with (tmp_path / "output").open("w") as output, full_disk(100):
        ran = subprocess.run(
            [sys.executable, "-m", "undilute", *printed.split()],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # with it, Python itself drops what did not fit
        )
    assert ran.returncode == 2
    assert ran.stderr.startswith("undilute: ")
    assert "File too large" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_reader_that_has_enough_is_no_error() -> None:
    ran = subprocess.run(
        f"{sys.executable} -m undilute rules --json | head -c 1", shell=True, capture_output=True, text=True
    )
    assert (ran.stdout, ran.stderr) == ("[", "")


def test_memory_that_is_not_there_is_one_sentence(here: Here) -> None:
    ran = here("bench", "--rules", "ssmax", "--lengths", str(10**14), "--decode", "0")
    assert ran.returncode == 2
    assert ran.stderr == "undilute: this needs more memory than there is: ask for less, such as shorter lengths.\n"


def test_a_terminal_that_lacks_letters_shows_their_numbers() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "undilute", "rules"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert ran.returncode == 0, ran.stderr
    assert "softmax" in ran.stdout
