"""The one door: what ``evaluate`` and ``compare`` return is what their parts measure, and it can be read and kept."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.testing import assert_array_equal

import undilute as ud
from tests.evaluation.test_measure import LENGTH, reader
from tests.evaluation.tokenizers import PROSE, tokenizer
from tests.models.attending import random_model, tokens
from undilute.errors import InvalidValue, UnknownName
from undilute.evaluation.changes import changes
from undilute.evaluation.evaluate import labelled
from undilute.evaluation.measure import measure, prepare
from undilute.models.texts import halves, tokenised
from undilute.report import result_files

IDS = tokens(700)
FAST: dict[str, Any] = {"length": 64, "haystacks": 0, "windows": 2}
EVIL = "<script>alert('pwned')</script>"


@pytest.fixture(scope="module")
def judged() -> ud.Evaluation:
    return ud.evaluate(reader(), tokenizer("words"), PROSE, "ssmax", length=LENGTH, haystacks=1, seed=4, name="it")


def test_it_is_its_parts_on_the_second_half(judged: ud.Evaluation) -> None:
    used = tokenizer("words")
    material = prepare(reader(), used, halves(tokenised(used, PROSE))[1], length=LENGTH, haystacks=1, seed=4)
    before = measure(reader(), material)
    with ud.apply(reader(), "ssmax"):
        after = measure(reader(), material, "ssmax")
    for found, expected in zip(judged.measurements, (before, after), strict=True):
        assert_array_equal(found.losses, expected.losses)
        assert found.answers == expected.answers
        assert found.cost is not None
    assert judged.changes == {"ssmax": changes(before, after, seed=4)}
    assert judged.settings == {
        "model": "it",
        "rules": "ssmax",
        "plan": "ssmax for 8 of 8 heads of LlamaForCausalLM.",
        "length": LENGTH,
        "windows": 2,
        "needle lengths": (LENGTH // 2, LENGTH),
        "haystacks in all": 8,
        "seed": 4,
    }


def test_it_can_be_read(judged: ud.Evaluation) -> None:
    assert judged.summary().splitlines()[0] == judged.findings[0]
    assert judged.findings[0].startswith("With ssmax instead of softmax, next-token loss ")
    assert len(judged.summary().splitlines()) == len(judged.findings)
    assert repr(judged) == f"Evaluation of 'it': {judged.findings[0]}"
    frame = judged.frame()
    assert list(frame["after"]) == [each.after for each in judged.changes["ssmax"]]
    assert set(judged.frame("recall")["rule"]) == {"softmax", "ssmax"}
    with pytest.raises(UnknownName, match="unknown table 'recal': did you mean 'recall'"):
        judged.frame("recal")


def test_it_can_be_kept(judged: ud.Evaluation, tmp_path: Path) -> None:
    page, data = judged.save_html(tmp_path / "page.html"), judged.save_json(tmp_path / "data.json")
    assert "it under ssmax" in page.read_text()
    result = result_files.from_json(data.read_text())
    assert result.findings == judged.findings
    assert len(result.tables["changes"]) == len(judged.frame())
    judged.save(tmp_path / "all", {tmp_path / "mine.json": "{}"})
    assert result_files.load(tmp_path / "all").id == "treat"
    assert ud.Plan.load(tmp_path / "all" / "plan.json").heads == [(i, j) for i in range(2) for j in range(4)]
    assert (tmp_path / "mine.json").read_text() == "{}"


def test_it_shows_itself_in_a_notebook_and_no_name_is_obeyed() -> None:
    found = ud.evaluate(random_model("llama"), None, IDS, "ssmax", label=EVIL, name=EVIL, **FAST)
    shown = found._repr_html_()
    assert "<script" not in shown
    assert "With &lt;script&gt;" in shown
    assert shown.count("<tr>") == 1 + len(found.frame())


def test_without_a_treatment_the_model_is_judged_as_it_is(tmp_path: Path) -> None:
    found = ud.evaluate(reader(), tokenizer("words"), PROSE, length=LENGTH, haystacks=1)
    (only,) = found.measurements
    right = 100 * sum(answer.right for answer in only.answers) / len(only.answers)
    assert found.changes == {}
    assert found.plans == {}
    assert f"next-token loss is {only.losses.mean():.3f} nats, and needle recall {right:.1f} % (" in found.findings[0]
    assert found.findings[-1] == "Measured on 2 windows of 640 tokens and 32 questions about 8 haystacks."
    assert set(found.tables) == {"loss by position", "recall", "entropy", "cost"}
    assert list(found.frame()["rule"]) == ["softmax"] * len(found.frame())
    assert "as it is" in found.save_html(tmp_path / "page.html").read_text()
    assert "<tbody>" in found._repr_html_()


def test_a_model_that_is_treated_already_is_not_called_softmax() -> None:
    model = random_model("llama")
    with ud.apply(model, "top-k"):
        found = ud.evaluate(model, None, IDS, "ssmax", **FAST)
    assert [each.label for each in found.measurements] == ["the model as it is", "ssmax"]
    model.set_attn_implementation("undilute:top-k")
    assert ud.evaluate(model, None, IDS, **FAST).measurements[0].label == "the model as it is"


def test_many_are_compared_with_the_same_model(tmp_path: Path) -> None:
    model, rule = random_model("llama"), ud.rules.get("top-k", k=3)
    with ud.apply(model, {"layers.1.*": "ssmax"}) as treated:
        path = treated.plan.save(tmp_path / "my-plan.json")
    before = model(IDS[None, :50]).logits
    given = {"adaptive": "adaptive", "mine": rule, "plan": str(path)}
    found = ud.compare(model, None, IDS, given, **FAST)
    assert torch.equal(model(IDS[None, :50]).logits, before)
    assert list(found.changes) == list(given)
    assert found.settings["rules"] == ("softmax", "adaptive", "mine", "plan")
    assert found.findings[0].startswith("Compared with softmax, next-token loss ")
    assert found.plans == {}
    for label, each in given.items():
        alone = ud.evaluate(model, None, IDS, each, **FAST).measurements[1]
        (same,) = [one for one in found.measurements if one.label == label]
        assert_array_equal(same.losses, alone.losses)
    listed = ud.compare(model, None, IDS, [str(path), rule, {"layers.0.*": "ssmax"}], **FAST)
    assert list(listed.changes) == ["my-plan", "TopK(k=3)", "ssmax for layers.0.*"]


def test_what_fits_a_treatment_is_called_when_its_turn_comes_and_judged_by_the_other_half() -> None:
    model, ids = random_model("llama"), tokens(900)
    options = FAST | {"length": 128}
    fit = partial(ud.calibrate, rule="ssmax", length=128, reference=32)
    seen: list[tuple[float, str]] = []
    found = ud.compare(
        model, None, ids, {"ssmax": "ssmax", "fitted": fit}, on_progress=lambda *each: seen.append(each), **options
    )
    plan = fit(model, None, ids)
    assert found.plans["plan-ssmax.json"].to_json() == plan.to_json()
    again = ud.evaluate(model, None, ids, plan, **options)
    assert found.changes["fitted"][0].after == again.changes["ssmax, calibrated at 128 tokens"][0].after
    assert not any("another text" in each for each in (*found.findings, *again.findings))
    elsewhere = ud.evaluate(model, None, ids.flip(0), plan, **options)
    assert elsewhere.findings[2].startswith("The plan was fitted to another text. ")
    shares = [share for share, _ in seen]
    assert shares == sorted(shares)
    assert 0.0 < shares[0] < shares[-1] == 1.0
    assert [doing for _, doing in seen if doing.startswith("fitting fitted: ")]
    assert [doing for _, doing in seen][-2:] == ["measuring time and memory", "done"]


def test_a_function_that_leaves_its_treatment_in_force_is_refused() -> None:
    model = random_model("llama")

    def fit(model: Any, tokenizer: Any, ids: Any, on_progress: Any) -> str:
        ud.apply(model, "ssmax")
        return "top-k"

    for _ in range(2):  # the second time on a model that is treated already
        with pytest.raises(InvalidValue, match="mine: the function that fits it left the model treated"):
            ud.compare(model, None, IDS, {"mine": fit}, **FAST)


def test_what_a_treatment_was_fitted_to_is_said_of_functions_and_of_lists() -> None:
    model, ids = random_model("llama"), tokens(900)
    plan = ud.calibrate(model, None, ids, length=64)
    own = ud.evaluate(model, None, ids, lambda *_, **__: "ssmax", label="mine", **FAST)
    assert own.notes[1].startswith("mine was made by a function that was given the whole text")
    assert len(ud.evaluate(model, None, ids, lambda *_, **__: plan, **FAST).notes) == 1
    assert len(ud.evaluate(model, None, ids, [plan, "top-k"], **FAST).notes) == 1
    elsewhere = ud.evaluate(model, None, ids.flip(0), [plan, "top-k"], **FAST)
    assert elsewhere.notes[1].startswith("The plan was fitted to another text")


def test_every_plan_has_a_file_of_its_own() -> None:
    model, ids = random_model("llama"), tokens(900)
    fit = partial(ud.calibrate, length=64)
    found = ud.compare(model, None, ids, {"первый": fit, "второй": partial(fit, heads="layers.1.*")}, **FAST)
    assert [len(plan.heads) for plan in found.plans.values()] == [8, 4]
    assert list(found.plans) == ["plan-1.json", "plan-2.json"]


def test_names_of_treatments() -> None:
    assert list(labelled(["softmax", "softmax.json", Path("a/x.json"), Path("b/x.json"), partial(ud.calibrate)])) == [
        "softmax as a rule",
        "softmax.json",
        "a/x.json",
        "b/x.json",
        "calibrate",
    ]
    with pytest.raises(InvalidValue, match="two of them have the same name"):
        labelled([ud.rules.get("top-k"), ud.rules.get("top-k(k=32)")])
    rules = [ud.rules.get("softmax"), ud.rules.get("ssmax | top-k(k=8)"), ud.rules.Hard()]
    assert list(labelled(rules)) == ["softmax as a rule", "LogLength(s=0.43, b=0) | TopK(k=8)", "Hard"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "treatments is empty"),
        ("ssmax", "treatments is 'ssmax': must be a list of treatments"),
        (ud.rules.get("ssmax"), "treatments is a Rule: must be a list of treatments"),
        ({3: "ssmax"}, "label = 3: must be text"),
        ({" ": "ssmax"}, "label = ' ': must be text"),
        ({"softmax": "ssmax"}, "'softmax' is the name of the untreated model"),
        ({"a": {"layers.9.*": "ssmax"}}, r"a: no head matches 'layers\.9\.\*'"),
        ({"a": 3.5}, "a: treatment = 3.5: must be a rule"),
        ({"a": ud.rules.TopK}, "a: treatment = .*must be a rule"),
        ({"a": partial(ud.calibrate, rule="top-k")}, "a: rule = 'top-k' has no parameter to fit"),
    ],
)
def test_what_cannot_be_compared_is_said_and_the_model_left_alone(given: Any, message: str) -> None:
    model = random_model("llama")
    before = model(IDS[None, :50]).logits
    with pytest.raises(InvalidValue, match=message):
        ud.compare(model, None, IDS, given, **FAST)
    assert torch.equal(model(IDS[None, :50]).logits, before)


def test_the_data_are_plain(judged: ud.Evaluation, tmp_path: Path) -> None:
    content = json.loads(judged.save_json(tmp_path / "data.json").read_text())
    assert content["id"] == "treat"
    assert content["settings"]["needle lengths"] == [LENGTH // 2, LENGTH]
