"""``undilute reproduce`` as a user runs it: the list, one experiment, the report, resuming, bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command import Here, undilute
from undilute.report import result_files
from undilute.report.result import Result
from undilute_papers.cli import reproduce as cli_reproduce
from undilute_papers.reproduction.experiment import every, named
from undilute_papers.sharpness.max_retrieval import MaxRetrieval


def test_the_list_has_every_experiment() -> None:
    result = undilute("reproduce", COLUMNS="300")
    assert result.returncode == 0, result.stderr
    assert len(every()) == 10
    for id, cls in every().items():
        assert id in result.stdout
        assert cls.source in result.stdout


def test_a_run_writes_its_folder_and_the_report_gathers_it(tmp_path: Path) -> None:
    result = undilute("reproduce", "temperature", "--seeds", "5", "--output", str(tmp_path))
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "temperature"
    endings = {path.suffix for path in folder.iterdir() if path.is_file()}
    assert endings == {".json", ".csv", ".png", ".html"}
    kept = json.loads((folder / "results.json").read_text())
    assert kept["settings"]["seeds"] == 5
    assert kept["command"] == "undilute reproduce temperature --seeds 5"
    assert {"undilute", "torch", "python", "date"} <= set(kept["made"])
    gathered = undilute("reproduce", "report", "--output", str(tmp_path))
    assert gathered.returncode == 0, gathered.stderr
    page = (tmp_path / "index.html").read_text()
    assert "undilute reproduce temperature --seeds 5" in page


def test_resume_skips_what_is_done_and_nothing_else(here: Here, tmp_path: Path) -> None:
    arguments = ("reproduce", "temperature", "--output", str(tmp_path))
    assert here(*arguments, "--seeds", "3").returncode == 0
    results = tmp_path / "temperature" / "results.json"
    before = results.stat().st_mtime_ns
    again = here(*arguments, "--seeds", "3", "--resume")
    assert again.returncode == 0
    assert "already done" in again.stdout
    assert results.stat().st_mtime_ns == before
    assert here(*arguments, "--seeds", "4", "--resume").returncode == 0
    kept = json.loads(results.read_text())
    assert kept["settings"]["seeds"] == 4
    kept["made"]["undilute"] = "0.0.1"  # an older version may have found something else
    results.write_text(json.dumps(kept))
    assert here(*arguments, "--seeds", "4", "--resume").returncode == 0
    assert json.loads(results.read_text())["made"]["undilute"] != "0.0.1"


def test_a_text_that_was_changed_is_read_again(tmp_path: Path) -> None:
    text, folder = tmp_path / "text.txt", tmp_path / "gradient"
    text.write_text("one two three")
    experiment = named("gradient")(text=(str(text),))
    result = Result("gradient", experiment.settings(), ["It holds."], [], {}, [])
    result_files.save(result, folder)
    assert cli_reproduce._is_done(experiment, folder)
    os.utime(text, (2**31, 2**31))
    assert not cli_reproduce._is_done(experiment, folder)


TINY = ("--rules", "softmax,ssmax", "--schedules", "constant", "--set-sizes", "5-16", "--steps", "5", "--workers", "1")


def test_more_seeds_go_on_from_those_that_are_there(here: Here, tmp_path: Path) -> None:
    """Seeds are trained five at a time: a sixth leaves the first five as they are."""
    arguments = ("reproduce", "max-retrieval", *TINY, "--sizes", "16,32", "--sets", "8", "--output", str(tmp_path))
    assert here(*arguments, "--seeds", "5").returncode == 0
    work = tmp_path / "max-retrieval" / "work"
    before = {path.name: path.stat().st_mtime_ns for path in work.iterdir()}
    assert len(before) == 2
    result = here(*arguments, "--seeds", "6", "--resume")
    assert result.returncode == 0, result.stderr
    after = {path.name: path.stat().st_mtime_ns for path in work.iterdir()}
    assert len(after) == 4
    assert before.items() <= after.items()  # a training that was repeated would have written its file again
    assert len(json.loads((tmp_path / "max-retrieval" / "results.json").read_text())["tables"]["training"]) == 12


def test_a_run_from_the_start_leaves_the_work_of_other_options_alone(here: Here, tmp_path: Path) -> None:
    arguments = ("reproduce", "max-retrieval", *TINY, "--sizes", "16", "--sets", "8", "--output", str(tmp_path))
    assert here(*arguments, "--seeds", "1").returncode == 0
    work = tmp_path / "max-retrieval" / "work"
    before = {path.name: path.stat().st_mtime_ns for path in work.iterdir()}
    assert here(*arguments, "--seeds", "1", "--test-items", "64").returncode == 0
    after = {path.name: path.stat().st_mtime_ns for path in work.iterdir()}
    assert len(after) == 2 * len(before)
    assert before.items() <= after.items()
    assert here(*arguments, "--seeds", "1").returncode == 0
    anew = {path.name: path.stat().st_mtime_ns for path in work.iterdir()}
    assert {name for name in anew if anew[name] != after[name]} == set(before)


def test_quick_results_have_a_folder_of_their_own(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run never takes the place of a long one."""
    monkeypatch.chdir(tmp_path)
    arguments = ("reproduce", "temperature", "--seeds", "3")
    for more, folder in (((), "reproduce"), (("--quick",), "reproduce/quick")):
        assert here(*arguments, *more).returncode == 0
        assert (tmp_path / "undilute-out" / folder / "temperature" / "results.json").exists()
        gathered = here("reproduce", "report", *more)
        assert gathered.returncode == 0
        assert f"wrote undilute-out/{folder}/index.html" in gathered.stdout


def test_resuming_over_a_result_that_cannot_be_read_runs_it(here: Here, tmp_path: Path) -> None:
    (tmp_path / "temperature").mkdir()
    results = tmp_path / "temperature" / "results.json"
    results.write_text("{")
    done = here("reproduce", "temperature", "--seeds", "3", "--resume", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(results.read_text())["settings"]["seeds"] == 3


def test_a_run_that_is_interrupted_says_how_to_go_on(tmp_path: Path) -> None:
    options = ("--rules", "softmax,ssmax", "--steps", "1000000", "--workers", "2", "--checkpoint-seconds", "0.1")
    words = [sys.executable, "-m", "undilute", "reproduce", "max-retrieval", *options, "--output", str(tmp_path)]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    work = tmp_path / "max-retrieval" / "work"
    try:
        for _ in range(6000):
            if list(work.glob("*.pt")):
                break
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the program and its workers
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    kept = f"max-retrieval keeps its state in {str(work)!r}: the same command with --resume continues from there"
    assert errors == f"undilute: interrupted; {kept}.\n"
    assert list(work.glob("*.pt"))
    assert not (tmp_path / "max-retrieval" / "results.json").exists()


def test_experiments_are_imported_only_when_they_are_asked_for() -> None:
    code = "import sys, undilute.cli.app; print([name for name in sys.modules if 'max_retrieval' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("report",), "no such folder"),
        (("dilution", "--gaps", "1,x"), "--gaps = '1,x': must be numbers separated by commas."),
        (("max-retrieval", "--sizes", "16,1.5"), "--sizes = '16,1.5': must be whole numbers separated by commas."),
        (("max-retrieval", "--rules", "sofmax"), "unknown rule 'sofmax': did you mean 'softmax'"),
        (("max-retrieval", "--steps", "0"), "--steps = 0"),
        (("max-retrieval", "--set-sizes", "7"), "--set-sizes = '7': must be of 16, 5-16."),
        (("max-retrieval", "--schedules", "linear"), "--schedules = 'linear': must be of constant, cosine."),
        (("max-retrieval", "--workers", "-1"), "--workers = -1"),
        (("max-retrieval", "--seed", "-1"), "--seed = -1"),
        (("max-retrieval", "--checkpoint-seconds", "nan"), "--checkpoint-seconds = nan: must be a number"),
        (("distance", "--text", "no-such-file.txt"), "no-such-file.txt"),
    ],
)
def test_bad_input_gives_one_clear_line(here: Here, arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    result = here("reproduce", *arguments, "--output", str(tmp_path / "out"))
    assert result.returncode == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_report_needs_results(here: Here, tmp_path: Path) -> None:
    result = here("reproduce", "report", "--output", str(tmp_path))
    assert result.returncode == 2
    assert "no results in" in result.stderr
    assert "reproduce all --quick" in result.stderr
    assert here("reproduce", "temperature", "--quick", "--output", str(tmp_path / "quick")).returncode == 0
    result = here("reproduce", "report", "--output", str(tmp_path))
    assert result.returncode == 2
    assert "give --quick to use the quick runs" in result.stderr


def test_options_win_over_quick() -> None:
    experiment = MaxRetrieval.quickly(seeds=7)
    assert experiment.seeds == 7
    assert experiment.steps == MaxRetrieval.quick["steps"]


def test_the_command_of_a_result_says_what_was_changed() -> None:
    experiment = MaxRetrieval(seeds=3, rules=("softmax", "sink"), scaled=False, work=Path("somewhere"))
    assert experiment.command() == "undilute reproduce max-retrieval --rules softmax,sink --seeds 3 --no-scaled"
    assert "work" not in experiment.settings()
