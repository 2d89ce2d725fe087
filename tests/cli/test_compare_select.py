"""``undilute compare --select`` as a user runs it: readers instead of rules, and one line for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.command import Here
from tests.evaluation.tokenizers import byte_level
from tests.selection.readers import Shared, without_seconds
from undilute.models import texts
from undilute.selection import Comparison, scorers

BOOK = texts.shipped()[:40_000]
VOCABULARY, WINDOW = 2000, 700
FAST = ["--tasks", "emblem,counting", "--haystacks", "1", "--questions", "2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=WINDOW,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=byte_level(BOOK, VOCABULARY)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text(BOOK, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scorer of the user's own."""
    monkeypatch.setitem(scorers._makers, "shared", lambda subject: Shared())


@pytest.mark.usefixtures("shared")
def test_readers_are_compared_and_everything_is_written(here: Here, model: Path, book: Path) -> None:
    lengths = ["--lengths", f"{WINDOW - 50},900"]  # the second is beyond the window
    outputs = ["--html", "page.html", "--json", "answers.json", "--output", "out"]
    common = ["compare", "--model", str(model), "--text", str(book), "--select", "none, shared,oracle", *FAST]
    ran = here(*common, *lengths, *outputs)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.lstrip().startswith("At 900 tokens, ")
    assert f"window of {WINDOW}: none was cut" in " ".join(ran.stdout.split())
    found = Comparison.from_json(Path("answers.json"))
    assert (found.readers, found.tasks) == (["none", "shared", "oracle"], ["emblem", "counting"])
    assert found.lengths == [WINDOW - 50, 900]
    assert "--select 'none, shared,oracle'" in found.command
    assert "page.html" not in found.command
    assert all(each.kept for each in found.of("oracle"))
    assert Path("page.html").read_text() == Path("out/index.html").read_text()
    assert Path("out/readers.json").read_text() == Path("answers.json").read_text()
    assert Path("out/answers-900.jsonl").exists()

    again = here(*common, *lengths, *outputs)  # goes on where it was: nothing is left to do
    assert again.returncode == 0, again.stderr
    assert Comparison.from_json(Path("answers.json")).rows == found.rows
    fresh = here(*common, *lengths, "--output", "other")
    assert fresh.returncode == 0, fresh.stderr
    assert without_seconds(Comparison.from_json(Path("other/readers.json")).rows) == without_seconds(found.rows)
    refused = here(*common, *lengths, "--budget", "100", "--output", "out")
    assert refused.returncode == 2
    assert "holds a run with other settings" in refused.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--select", "none,bm52"], "reader 'bm52': must be none, oracle, or one of the scorers"),
        (["--select", "none", "--rules", "ssmax"], "--rules compares rules, and --select compares readers: give one"),
        (["--select", "none", "--calibrate"], "--calibrate compares rules"),
        (["--select", "none,"], "--select = 'none,': must be names separated by commas"),
        (["--select", ""], "--select = '': must be names separated by commas"),
        (["--select", "none", "--tasks", "emblm"], "unknown task 'emblm': did you mean 'emblem'?"),
        (["--select", "none", "--order", "up"], "order = 'up': must be 'document' or 'best last'"),
        (["--select", "none", "--lengths", "1k"], "--lengths = '1k': must be whole numbers separated by commas"),
        (["--select", "none", "--length", "512", "--lengths", "512"], "--length and --lengths: give one of the two"),
        (["--budget", "100"], "--budget is for readers: give --select as well"),
        (["--select", "none", "--html", "."], "cannot write '.': it is a folder"),
        (["--select", "none", "--html", "a", "--json", "a"], "two outputs are the same file"),
    ],
)
def test_a_mistake_is_said_before_a_model_is_loaded(here: Here, options: list[str], message: str) -> None:
    ran = here("compare", "--model", "there-is-none", *options)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert message in ran.stderr
    assert not Path("undilute-out").exists()


def test_a_text_that_is_too_short_is_said_in_one_sentence(here: Here, model: Path, book: Path) -> None:
    ran = here("compare", "--model", str(model), "--text", str(book), "--select", "none", "--length", "90000")
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "tokens: a haystack of this length needs 90,000; give a longer text or a smaller length" in ran.stderr
