"""``undilute treat`` and ``undilute compare`` as a user runs them: real files, one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import undilute
from tests.command import Here
from tests.evaluation.tokenizers import byte_level
from undilute.models import load, texts
from undilute.report import result_files as experiment_files

BOOK = texts.shipped()[:40_000]
VOCABULARY = 2000
FAST = ["--length", "128", "--windows", "2", "--haystacks", "0"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model with a tokenizer for the book: that of SmolLM2 takes longer to load than all the rest."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # so that heads attend to something, and rules differ
        for parameter in model.parameters():
            parameter.mul_(4)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=byte_level(BOOK, VOCABULARY)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text(BOOK, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


# ---------------------------------------------------------------- treat


def test_a_treatment_writes_its_folder_and_says_the_verdict_first(here: Here, checkpoint: Path, book: Path) -> None:
    arguments = [
        "--model",
        str(checkpoint),
        "--rule",
        "ssmax",
        "--text",
        str(book),
        "--length",
        "1024",
        "--windows",
        "2",
    ]
    ran = here("treat", *arguments, "--needle-lengths", "768", "--haystacks", "1", "--seed", "3")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.lstrip().startswith("With ssmax instead of softmax, next-token loss ")
    folder = Path("undilute-out/treat")
    result = experiment_files.load(folder)
    assert f"wrote {folder / 'index.html'}" in ran.stdout
    assert {path.name for path in folder.iterdir()} >= {"index.html", "results.json", "plan.json", "changes.csv"}
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert result.id == "treat"
    assert result.settings["rules"] == "ssmax"
    assert result.settings["needle lengths"] == (768,)
    assert result.settings["text"] == (str(book),)
    assert result.comparisons == []
    assert {row["rule"] for row in result.tables["recall"]} == {"softmax", "ssmax"}
    assert {row["rule"] for row in result.tables["cost"]} == {"softmax", "ssmax"}
    given = f"--model {checkpoint} --rule ssmax --text {book} --length 1024 --windows 2"
    assert result.command == f"undilute treat {given} --haystacks 1 --needle-lengths 768 --seed 3"
    page = (folder / "index.html").read_text()
    assert f"{checkpoint} under ssmax" in page
    assert "Printed and computed" not in page


def test_the_losses_are_those_of_the_second_half(here: Here, checkpoint: Path, book: Path) -> None:
    """What the command reports is what anyone computes by hand from the windows of the second half."""
    ran = here("treat", "--model", str(checkpoint), "--rule", "ssmax", "--text", str(book), *FAST)
    assert ran.returncode == 0, ran.stderr
    model, tokenizer = load(str(checkpoint))
    ids = tokenizer(book.read_text(), return_tensors="pt", add_special_tokens=False)["input_ids"][0]
    second = ids[len(ids) // 2 :]
    windows = torch.stack([second[:128], second[-128:]])

    def loss() -> float:
        with torch.no_grad():
            return float(model(windows, labels=windows).loss)

    before = loss()
    with undilute.apply(model, "ssmax"):
        after = loss()
    row = experiment_files.load(Path("undilute-out/treat")).tables["changes"][0]
    assert row["before"] == pytest.approx(before, rel=1e-5)
    assert row["after"] == pytest.approx(after, rel=1e-5)
    assert before != pytest.approx(after, rel=1e-5)


def test_softmax_as_a_rule_changes_nothing(here: Here, checkpoint: Path, book: Path) -> None:
    ran = here("treat", "--model", str(checkpoint), "--rule", "softmax", "--text", str(book), *FAST)
    assert ran.returncode == 0, ran.stderr
    rows = experiment_files.load(Path("undilute-out/treat")).tables["changes"]
    assert [row["difference"] for row in rows] == pytest.approx([0.0] * len(rows), abs=1e-5)
    assert "with softmax as a rule instead of softmax" in ran.stdout.lower().replace("\n", " ")


def test_a_plan_that_was_calibrated_can_be_applied_again(here: Here, checkpoint: Path, book: Path) -> None:
    common = ["--model", str(checkpoint), "--text", str(book), *FAST]
    options = [
        "--rule",
        "ssmax",
        "--calibrate",
        "--hold",
        "entropy",
        "--heads",
        "layers.1.*",
        "--save-plan",
        "my/plan.text",
    ]
    fitted = here("treat", *common, *options)
    assert fitted.returncode == 0, fitted.stderr
    plan = undilute.Plan.load("my/plan.text")
    assert plan.heads == [(1, head) for head in range(4)]
    assert Path("undilute-out/treat/plan.json").read_text() == Path("my/plan.text").read_text()
    first = experiment_files.load(Path("undilute-out/treat"))
    assert first.settings["rules"] == "calibrated ssmax for layers.1.*"
    assert any(plan.summary in finding for finding in first.findings)
    again = here("treat", *common, "--plan", "my/plan.text", "--output", "again")
    assert again.returncode == 0, again.stderr
    second = experiment_files.load(Path("again"))
    columns = ("what", "before", "after", "verdict")
    assert [[row[name] for name in columns] for row in second.tables["changes"]] == [
        [row[name] for name in columns] for row in first.tables["changes"]
    ]


def test_only_diluting_heads_are_treated_where_that_is_asked_for(here: Here, checkpoint: Path, book: Path) -> None:
    from undilute.models.texts import halves, tokenised

    model, tokenizer = load(str(checkpoint))
    ids, _ = halves(tokenised(tokenizer, book.read_text()))
    expected = sorted((head.layer, head.head) for head in undilute.diagnose(model, tokenizer, ids, 128).heads.diluting)
    assert 0 < len(expected) < 8
    ran = here("treat", "--model", str(checkpoint), "--text", str(book), "--heads", "diluting", *FAST)
    assert ran.returncode == 0, ran.stderr
    assert undilute.Plan.load("undilute-out/treat/plan.json").heads == expected


# ---------------------------------------------------------------- compare


def test_a_comparison_has_every_rule_and_its_fitted_form(here: Here, checkpoint: Path, book: Path) -> None:
    common = ["--model", str(checkpoint), "--text", str(book), *FAST]
    ran = here("compare", *common, "--rules", "top-k,softmax,ssmax,top-k", "--calibrate")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.lstrip().startswith("Compared with softmax, next-token loss ")
    folder = Path("undilute-out/compare")
    result = experiment_files.load(folder)
    assert result.settings["rules"] == ("softmax", "top-k", "ssmax", "calibrated ssmax")
    labels = list(dict.fromkeys(row["rule"] for row in result.tables["loss by position"]))
    assert labels == ["softmax", "top-k", "ssmax", "calibrated ssmax"]
    assert {row["rule"] for row in result.tables["changes"]} == set(labels) - {"softmax"}
    assert len(undilute.Plan.load(folder / "plan-ssmax.json").heads) == 8
    again = here("compare", *common, "--rules", f"{folder}/plan-ssmax.json", "--output", "again")
    assert again.returncode == 0, again.stderr
    losses = [
        [row["loss"] for row in each.tables["loss by position"] if row["rule"] == rule_name]
        for each, rule_name in (
            (result, "calibrated ssmax"),
            (experiment_files.load(Path("again")), "plan-ssmax"),
        )
    ]
    assert losses[0] == losses[1] != []
    assert "Rules compared on" in (folder / "index.html").read_text()


def test_a_plan_that_is_named_twice_is_judged_once(here: Here, checkpoint: Path, book: Path) -> None:
    options = ["--model", str(checkpoint), "--text", str(book), *FAST, "--haystacks", "0"]
    here("treat", *options, "--rule", "top-k(k=8)", "--save-plan", "narrow.json")
    ran = here("compare", *options, "--rules", "narrow.json,./narrow.json", "--output", "out")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(Path("out/results.json").read_text())["settings"]["rules"] == ["softmax", "narrow"]


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["treat", "--rule", "ssmacks"], "unknown rule 'ssmacks': did you mean 'ssmax'"),
        (
            ["treat", "--rule", "plan.json"],
            "--rule = 'plan.json' is the name of a file: give a rule",
        ),
        (["treat", "--plan", "missing.json"], "cannot read the plan 'missing.json'"),
        (["treat", "--plan", "plan.json", "--calibrate"], "--plan = 'plan.json' already says which heads"),
        (["treat", "--text", "missing.txt"], "cannot read 'missing.txt'"),
        (["treat", "--output", "/etc/passwd/treat"], "is a file"),
        (["treat", "--save-plan", "."], "it is a folder"),
        (["treat", "--needle-lengths", "512,many"], "--needle-lengths = '512,many': must be whole numbers"),
        (["treat", "--model", "{checkpoint}", "--length", "4096"], "reads at most 1,024 tokens"),
        (["treat", "--model", "{checkpoint}", "--text", "{short}", *FAST], "the text has"),
        (["treat", "--model", "{checkpoint}", "--heads", "layers.7.*", *FAST], "no head matches 'layers.7.*'"),
        (["treat", "--model", "{checkpoint}", "--seed", "-1", *FAST], "seed = -1"),
        (["treat", "--model", "{checkpoint}", "--rule", "top-k", "--calibrate", *FAST], "no parameter to fit"),
        (["treat", "--model", "{checkpoint}", "--rule", "ssmax", "--calibrate", "--hold", "x", *FAST], "hold = 'x'"),
        (["treat", "--model", "{checkpoint}", "--plan", "{foreign}", *FAST], "the plan is for another model"),
        (["treat", "--model", "{encoder}", *FAST, "--length", "64"], "causal language model"),
        (["compare", "--rules", "softmax"], "must name at least one rule other than softmax"),
        (["compare", "--rules", "ssmax,entmaks15"], "unknown rule 'entmaks15': did you mean 'entmax15'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    here: Here, checkpoint: Path, book: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    given = [word.format(**material(checkpoint, tmp_path, word)) for word in arguments]
    ran = here(*given, *([] if "--text" in given else ["--text", str(book)]))
    assert ran.returncode == 2
    assert message in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
    assert list(Path().iterdir()) == []


def material(checkpoint: Path, folder: Path, word: str) -> dict[str, Path]:
    """What a word in braces stands for, made when it is asked for."""
    place = folder / (word.strip("{}") + ".json")
    if word == "{short}":
        place.write_text("Too short to be halved and read.")
    elif word == "{foreign}":
        config = LlamaConfig(**{**LlamaConfig.from_pretrained(checkpoint).to_dict(), "num_hidden_layers": 3})
        with undilute.apply(LlamaForCausalLM(config), "ssmax") as treated:
            treated.plan.save(place)
    elif word == "{encoder}":
        place.mkdir()
        config = BertConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
        BertForMaskedLM(config).save_pretrained(place)
        load("minilm")[1].save_pretrained(place)
    return {word.strip("{}"): place, "checkpoint": checkpoint}


def test_a_failure_on_the_way_leaves_an_earlier_run_as_it_was(
    here: Here, checkpoint: Path, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ["--model", str(checkpoint), "--text", str(book), *FAST]
    assert here("treat", *common, "--rule", "ssmax").returncode == 0
    before = {path.name: path.read_bytes() for path in Path("undilute-out/treat").iterdir()}
    assert json.loads(before["plan.json"])["made"]["rule"] == "ssmax"

    def stopped(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("undilute.evaluation.cost.costs", stopped)
    assert here("treat", *common, "--rule", "top-k").returncode == 130
    assert {path.name: path.read_bytes() for path in Path("undilute-out/treat").iterdir()} == before
