"""``undilute diagnose`` as a user runs it: a real model, files, and one clear line for every mistake."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel
from transformers import PreTrainedTokenizerFast as Fast

from undilute.__main__ import main
from undilute.models import texts

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The command in this process, in an empty folder: exit code, output, errors."""
    workplace = tmp_path / "here"
    workplace.mkdir()
    monkeypatch.chdir(workplace)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def command(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()  # what making the material printed
        monkeypatch.setattr(sys, "argv", ["undilute", "diagnose", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return command


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, vocab_size=128)
    return saved(GPT2LMHeadModel(config), tmp_path_factory.mktemp("model"))


def saved(model: PreTrainedModel, folder: Path) -> Path:
    """A model with a tokenizer that reads characters."""
    model.save_pretrained(folder)
    characters = Tokenizer(models.WordLevel({chr(i): i for i in range(128)}, unk_token="?"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    Fast(tokenizer_object=characters, unk_token="?").save_pretrained(folder)
    return folder


def test_a_real_model_without_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "undilute", "diagnose", "--length", "560", "--haystacks", "2", "--windows", "1"]
    command += ["--quick"]  # trials are tried on models made for it: tests/diagnosis/test_trials.py
    command += ["--html", "out/report.html", "--json", "out/report.json", "--csv", "out/heads.csv"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "80"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    printed = " ".join(result.stdout.split())
    assert re.search(r"smollm2, 3 windows of 560 tokens of 3 texts: \d+ of 270 heads find what is asked for", printed)
    assert re.search(r"The probe .* It reads 2,800 tokens, about \d+ s\.", printed)
    assert "Forecast at 2,240 tokens." in printed
    assert "No advice: nothing was tried" in printed
    assert all(len(line) <= 80 for line in result.stdout.splitlines() if not line.startswith("wrote "))
    content = json.loads((tmp_path / "out/report.json").read_text())
    assert len(content["heads"]) == 270
    assert content["subject"]["model"] == "smollm2"
    assert "".join(content["tokens"])[:40] in texts.shipped()
    assert content["probe"]["lengths"] == [280, 560]
    assert content["probe"]["recall"][0]["questions"] == 16
    assert content["trials"]["tried"] == []
    with (tmp_path / "out/heads.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 270
    assert (tmp_path / "out/report.html").read_text().startswith("<!doctype html>")


def test_several_texts_as_a_shell_expands_them(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    for name, letter in (("a", "x"), ("b", "y"), ("c", "z")):
        (tmp_path / f"{name}.txt").write_text(letter * 50)
    names = [str(tmp_path / f"{name}.txt") for name in "abc"]
    code, _, err = run("--model", str(checkpoint), "--json", "r.json", "--length", "154", "--text", *names)
    assert code == 0, err
    words = json.loads(Path("r.json").read_text())["tokens"]
    assert "".join(words) == "x" * 50 + "\n\n" + "y" * 50 + "\n\n" + "z" * 50


def test_a_model_that_reads_nothing_twice_the_same_way(run: Run, checkpoint: Path) -> None:
    first = run("--model", str(checkpoint), "--json", "a.json")
    second = run("--model", str(checkpoint), "--json", "b.json")
    assert first[0] == second[0] == 0
    assert Path("a.json").read_text() == Path("b.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "smolm2"], "did you mean 'smollm2'"),
        (["--model", "nobody/nothing"], "'nobody/nothing' is not a known model"),
        (["--model", "./missing"], "there is no file or folder './missing'"),
        (["--model", "missing.gguf"], "there is no file or folder"),
        (["--text", "missing.txt"], "cannot read 'missing.txt'"),
        (["--text", "."], "'.' holds no text file"),
        (["--length", "512", "--target", "100"], "--target = 100"),
        (["--model", "{checkpoint}", "--length", "1000"], "reads at most 256 tokens"),
        (["--model", "{checkpoint}", "--length", "10"], "must be at least 64"),
        (["--model", "{checkpoint}", "--target", "200"], "must be at least the 256 tokens"),
        (["--model", "{checkpoint}", "--rows", "0"], "rows = 0"),
        (["--model", "{checkpoint}", "--x", "keys"], "must be 'values' or 'input'"),
        (["--model", "{checkpoint}", "--sinks", "-1"], "sinks = -1"),
        (["--model", "{checkpoint}", "--html", "/proc/nowhere/report.html"], "cannot write"),
        (["--json", "."], "it is a folder"),
        (["--model", "{checkpoint}", "--json", "{checkpoint}/config.json"], "this command reads it"),
        (["--csv", "/etc/passwd/heads.csv"], "'/etc/passwd' is a file"),
        (["--model", "{empty}"], "holds no weights"),
        (["--model", "{pickled}"], "only as a pickle"),
        (["--model", "{broken}"], "NaN or infinite weights"),
        (["--model", "{bloom}"], "BloomForCausalLM computes its attention in its own code"),
        (["--model", "{checkpoint}", "--text", "{blank}"], "no text in it"),
        (["--model", "{checkpoint}", "--text", "{short}"], "has 5 tokens"),
        (["--model", "{checkpoint}", "--text", "{binary}"], "not text in UTF-8"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    run: Run, checkpoint: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    given = [word.format(**material(checkpoint, tmp_path, word)) for word in arguments]
    if "--html" not in given:
        given += ["--html", "report.html"]
    code, _, err = run(*given)
    assert code == 2
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    assert list(Path().iterdir()) == []


def material(checkpoint: Path, folder: Path, word: str) -> dict[str, Path]:
    """What a word in braces stands for, made when it is asked for."""
    place = folder / word.strip("{}")
    if word == "{empty}":
        place.mkdir()
    elif word == "{pickled}":
        place.mkdir()
        (place / "config.json").write_text((checkpoint / "config.json").read_text())
        (place / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    elif word == "{broken}":
        model = GPT2LMHeadModel.from_pretrained(checkpoint)
        with torch.no_grad():
            model.transformer.h[0].mlp.c_fc.weight[0, 0] = math.nan
        saved(model, place)
    elif word == "{bloom}":
        saved(BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=1, n_head=2, vocab_size=128)), place)
    elif word in ("{blank}", "{short}", "{binary}"):
        place.write_bytes({"{blank}": b" \n", "{short}": b"short", "{binary}": b"\xff\xfe\x00"}[word])
    return {word.strip("{}"): place, "checkpoint": checkpoint}


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    code = "import undilute.cli.app; print('imported', flush=True); from undilute.__main__ import main; main()"
    command = [sys.executable, "-c", code, "diagnose", "--length", "4096", "--html", "report.html"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell that runs the tests in the background has them ignore Ctrl-C, and their children too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "imported\n"
    time.sleep(3)  # while it loads or reads; a run of 4,096 tokens takes longer
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
