"""``undilute select`` and ``undilute ask`` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.command import Here
from tests.selection.material import DOCUMENTS, FACT, QUESTION, chain, letters

SAYS = {":": " ", " ": "Z", "Z": "o", "o": "e", "e": "\n"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    chain(SAYS).save_pretrained(folder)
    letters().save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with notes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "notes").mkdir()
    for name, text in DOCUMENTS.items():
        (tmp_path / "notes" / name).write_text(text)
    return tmp_path


def options(checkpoint: str) -> list[str]:
    return ["--model", checkpoint, "--question", QUESTION, "--budget", "200", "--scorer", "words"]


def test_passages_are_printed_best_first_with_their_places(here: Here, checkpoint: str) -> None:
    ran = here("select", *options(checkpoint), "notes/*.md")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.strip().split("\n")
    text = DOCUMENTS["notes.md"]
    first = lines[0].split()
    assert first[:2] == ["1", "3"]
    name, line = first[2].rsplit(":", 1)
    assert name == str(Path("notes/notes.md"))
    assert FACT in "\n".join(text.split("\n")[int(line) - 1 : int(line) + 4])
    start, end = (int(each.replace(",", "")) for each in first[3].strip("(),").split("–"))
    assert FACT in text[start:end]
    assert f"    {FACT}" in lines
    assert lines[-1].startswith("kept ")
    assert "the model read 0 tokens in " in lines[-1]


def test_files_are_written_and_folders_are_read(here: Here, checkpoint: str) -> None:
    ran = here("select", *options(checkpoint), "notes", "--json", "out/x.json", "--html", "out/x.html")
    assert ran.returncode == 0, ran.stderr
    assert "wrote " in ran.stdout
    content = json.loads(Path("out/x.json").read_text())
    assert FACT in content["passages"][0]["text"]
    assert FACT in Path("out/x.html").read_text()


def test_json_alone_is_printed_for_another_program(here: Here, checkpoint: str) -> None:
    ran = here("select", *options(checkpoint), "notes", "--json", "-", "--size", "50")
    assert ran.returncode == 0, ran.stderr
    content = json.loads(ran.stdout)
    assert content["schema"] == "undilute.selection/1"
    assert max(each["tokens"] for each in content["passages"]) <= 50
    assert not Path("-").exists()


def test_an_answer_with_what_was_read_for_it(here: Here, checkpoint: str) -> None:
    ran = here("ask", *options(checkpoint), "notes", "--full", "--order", "best last", "--titles")
    assert ran.returncode == 0, ran.stderr
    assert "[1]  3  notes" in ran.stdout
    assert "Answer: Zoe\n" in ran.stdout
    assert "Its words stand in [1]." in ran.stdout
    assert "With everything: Zoe\n" in ran.stdout
    assert "did not fit into the model's window and were cut off." in ran.stdout


def test_given_answers_are_ranked(here: Here, checkpoint: str) -> None:
    ran = here("ask", *options(checkpoint), "notes", "--choices", "Adam, Zoe")
    assert ran.returncode == 0, ran.stderr
    assert "Answer: Zoe\n" in ran.stdout
    assert ran.stdout.index("%  Zoe") < ran.stdout.index("%  Adam")
    as_json = here("ask", *options(checkpoint), "notes", "--choices", "Adam, Zoe", "--json", "-")
    content = json.loads(as_json.stdout)
    assert content["answer"] == "Zoe"
    assert content["choices"][0]["probability"] > 0.5


@pytest.mark.parametrize("command", ["select", "ask"])
def test_mistakes_are_one_sentence_and_leave_nothing(here: Here, checkpoint: str, command: str) -> None:
    Path("binary.txt").write_bytes(b"\xff\xfe\x00\x80")
    Path("empty.txt").write_text(" \n")
    given = {"--model": checkpoint, "--question": QUESTION, "--budget": "200", "--scorer": "words"}
    cases: list[tuple[dict[str, str], list[str], str]] = [
        ({}, [], "no documents: name the files"),
        ({}, ["missing.md"], "cannot read 'missing.md'"),
        ({}, ["*.rst"], "no file matches"),
        ({}, ["binary.txt"], "not text in UTF-8"),
        ({}, ["empty.txt"], "no text in it"),
        ({"--question": ""}, ["notes"], "--question = ''"),
        ({"--question": " \n"}, ["notes"], "--question = ' \\n'"),
        ({"--budget": "0"}, ["notes"], "--budget"),
        ({"--budget": "3"}, ["notes"], "must be at least one passage"),
        ({"--size": "0"}, ["notes"], "--size"),
        ({"--scorer": "nobody"}, ["notes"], "unknown scorer 'nobody'"),
        ({"--scorer": "words+"}, ["notes"], "unknown scorer ''"),
        ({"--json": "notes/notes.md"}, ["notes"], "this command reads it"),
        ({"--model": "./nowhere"}, ["notes"], "nowhere"),
    ]
    if command == "ask":
        cases += [
            ({"--question": "Why? " * 200}, ["notes"], "ask a shorter question"),
            ({"--order": "worst"}, ["notes"], "order = 'worst'"),
            ({"--choices": "a"}, ["notes"], "at least two"),
            ({"--max-tokens": "0"}, ["notes"], "--max-tokens"),
        ]
    before = sorted(Path().rglob("*"))
    for other, paths, why in cases:
        ran = here(command, *(word for pair in {**given, **other}.items() for word in pair), *paths)
        assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), (why, ran)
        assert why in ran.stderr
        assert ran.stdout.strip() == ""
        assert sorted(Path().rglob("*")) == before
    if command == "ask":
        ran = here("ask", *options(checkpoint), "notes", "--chat")
        assert "has no chat template" in ran.stderr
