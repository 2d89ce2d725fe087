"""A diagnosis against heads that were made to be what they are, and against bad input."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

import undilute as ud
from tests.diagnosis.constructed import GAPS, HEADS, constructed
from tests.models.architectures import built
from tests.models.attending import tokens
from tests.models.test_passes import ALBERT
from undilute.diagnosis import Head, Heads, Thresholds
from undilute.diagnosis.diagnose import encoder_lengths
from undilute.report import diagnosis_data, diagnosis_page, diagnosis_text

LENGTH, TARGET = 1024, 65_536
ROWS = 32


@pytest.fixture(scope="module")
def made() -> ud.Diagnosis:
    ids = torch.randint(0, 100, (LENGTH,), generator=torch.Generator().manual_seed(0))
    return ud.diagnose(constructed(LENGTH), None, ids, LENGTH, TARGET)


def small(positions: int = 256, **options: object) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=positions, vocab_size=60, **options))


def test_every_constructed_head_gets_its_verdict(made: ud.Diagnosis) -> None:
    verdicts = dict(zip(HEADS, made.heads, strict=True))
    assert {name: head.kind for name, head in verdicts.items()} == {
        "sharp": "sharp",
        "uniform": "diffuse",
        "local": "local",
        "sink": "sink",
        "diluting": "diluting",
    }
    # beside its sink, the sink's head is uniform
    gammas = {"sharp": 0.0, "uniform": 1.0, "local": 0.0, "sink": 1.0, "diluting": 1.0}
    for name, gamma in gammas.items():
        assert verdicts[name].gamma == pytest.approx(gamma, abs=0.05), name
        assert verdicts[name].gamma_low <= verdicts[name].gamma <= verdicts[name].gamma_high


def test_the_fitted_law_is_the_constructed_one(made: ud.Diagnosis) -> None:
    head = made.heads.at(0, HEADS.index("diluting"))
    assert head.gap == pytest.approx(GAPS["diluting"], abs=1e-3)
    assert head.slope == pytest.approx(1.0, abs=1e-3)
    assert head.half_length == pytest.approx(102, rel=1e-3)
    assert head.top_now == pytest.approx(100 / (100 + LENGTH - 2), rel=1e-3)
    assert head.top_target == pytest.approx(100 / (100 + TARGET - 2), rel=1e-3)
    assert head.top_target_low <= head.top_target <= head.top_target_high
    assert head.ceiling_target == pytest.approx(1 / (1 + (TARGET - 1) / 100), rel=1e-3)
    assert head.gamma_keys > 0.9


def test_the_factor_holds_what_it_promises(made: ud.Diagnosis) -> None:
    head = made.heads.at(0, HEADS.index("diluting"))
    assert head.factor is not None
    for n, factor in ((LENGTH, 1.0), (TARGET, head.factor)):
        logits = torch.zeros(n)
        logits[-1] = GAPS["diluting"] * factor
        assert float(logits.softmax(-1)[-1]) == pytest.approx(head.top_now, rel=5e-3), n
    assert made.heads.at(0, HEADS.index("local")).factor == 1.0  # nothing falls
    assert made.heads.at(0, HEADS.index("uniform")).factor is None  # no key leads


def test_one_window_is_marked_and_nothing_untried_is_advised(made: ud.Diagnosis) -> None:
    assert made.caution == "One window of one text was read: on another, heads may be of other kinds."
    assert made.check.left_out == "nothing"
    assert "on the same window" in made.check.sentence
    assert made.advice == "No advice: nothing was tried, because recall cannot be measured without the probe."
    assert made.why_no_probe == "there is no tokenizer to hide facts with."
    ids = torch.arange(900) % 60
    several = ud.diagnose(small(), None, ids)
    assert several.caution == "One text was read, in 2 windows: on another, heads may be of other kinds."
    assert several.check.left_out == "windows"
    texts = ud.diagnose(small(), None, {"one": ids, "other": ids.flip(0)}, windows=1)
    assert texts.caution is None
    assert texts.check.left_out == "texts"
    assert [(text.name, text.tokens, len(text.windows)) for text in texts.subject.texts] == [
        ("one", 900, 1),
        ("other", 900, 1),
    ]


def test_the_usual_target_is_what_a_forecast_is_checked_by() -> None:
    found = ud.diagnose(small(), None, torch.arange(900) % 60)
    assert (found.question.length, found.question.target) == (256, 1024)
    assert found.forecast().n == 1024
    assert found.forecast().top.is_checked
    assert "beyond what was checked" not in found.forecast().summary
    far = found.forecast(8192)
    assert not far.top.is_checked
    assert "8,192 tokens are beyond what was checked." in far.summary
    with pytest.raises(ud.InvalidValue, match="n = 100: must be at least the 256 tokens"):
        found.forecast(100)


def test_the_forecast_of_a_diagnosis_is_that_of_its_heads(made: ud.Diagnosis) -> None:
    ahead = made.forecast()
    assert ahead.alpha is None
    assert [head.top_target for head in made.heads] == [
        min(weight, head.ceiling_target) for weight, head in zip(ahead.top.weight, made.heads, strict=True)
    ]
    frame = ahead.frame()
    assert list(frame["kind"]) == [head.kind for head in made.heads]
    assert (frame["top_low"] <= frame["top"]).all()
    assert (frame["top"] <= frame["top_high"]).all()


def test_stability_has_a_line_per_head(made: ud.Diagnosis) -> None:
    stability = made.stability()
    assert list(stability["kind"]) == list(stability["plain_kind"]) == [head.kind for head in made.heads]
    assert (stability["share"] == 1.0).all()
    assert stability["steady"].all()
    assert made.steady_counts == made.counts


def test_frame_has_a_line_per_head_and_curves_one_per_row(made: ud.Diagnosis) -> None:
    frame, curves = made.frame(), made.curves()
    assert len(frame) == 5
    assert list(frame["kind"]) == [head.kind for head in made.heads]
    assert len(curves) == 5 * ROWS
    rows = curves[(curves["layer"] == 0) & (curves["head"] == HEADS.index("uniform"))]
    assert np.allclose(rows["top_weight"], 1 / rows["n"], rtol=1e-5)
    assert np.allclose(rows["n_eff"], rows["n"], rtol=1e-5)
    median = curves[(curves["head"] == 0) & (curves["n"] >= LENGTH / 2)]["entropy"].median()
    assert frame.loc[0, "entropy"] == pytest.approx(median)


def test_frame_goes_to_csv_and_parquet(made: ud.Diagnosis, tmp_path: Path) -> None:
    import pandas

    made.frame().to_parquet(tmp_path / "heads.parquet")
    made.curves().to_csv(tmp_path / "curves.csv", index=False)
    assert pandas.read_parquet(tmp_path / "heads.parquet")["kind"].tolist() == [head.kind for head in made.heads]
    assert len(pandas.read_csv(tmp_path / "curves.csv")) == 5 * ROWS


def test_heads_select_by_kind_worst_first(made: ud.Diagnosis) -> None:
    assert [head.head for head in made.heads.diluting] == [HEADS.index("diluting")]
    assert [head.head for head in made.heads.sink] == [HEADS.index("sink")]
    assert made.counts == {"retrieval": 0, "diluting": 1, "sharp": 1, "local": 1, "sink": 1, "diffuse": 1}
    several = Heads([replace(head, kind="diluting") for head in made.heads]).diluting
    assert [head.lost for head in several] == sorted((head.lost for head in made.heads), reverse=True)
    assert several[0].lost > several[-1].lost
    assert "1 diluting" in repr(made)


def test_the_summary_says_how_many_and_how_much(made: ud.Diagnosis) -> None:
    def of(*heads: Head) -> str:
        found = ud.Diagnosis(made.subject, made.question, made.readings, made.heads)
        found.heads = Heads(heads)
        return found.summary

    sharp, diluting = made.heads.sharp[0], made.heads.diluting[0]
    one, other = replace(diluting, top_now=0.2, top_target=0.05), replace(diluting, top_now=0.4, top_target=0.01)
    assert of(sharp, sharp, sharp) == "None of 3 heads dilutes."
    assert of(one, sharp) == ("1 of 2 heads dilutes: its top weight, 0.2 now, is forecast to be 0.05 at 65,536 tokens.")
    assert of(one, other) == (
        "2 of 2 heads dilute: their top weight, a median 0.3 now, is forecast to be 0.03 at 65,536 tokens."
    )
    seldom = replace(one, share=0.6)  # not in two thirds of the windows
    assert of(seldom, other).startswith("1 of 2 heads dilutes")
    assert of(seldom, sharp) == (
        "None of 2 heads dilutes steadily: 1 does, but in less than two thirds of the windows."
    )


def test_json_has_a_schema_and_no_numbers_that_json_lacks(made: ud.Diagnosis, tmp_path: Path) -> None:
    path = made.save_json(tmp_path / "out" / "report.json")
    content = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert content["schema"] == diagnosis_data.SCHEMA
    assert len(content["heads"]) == 5
    assert len(content["tokens"]) == LENGTH
    head = content["heads"][HEADS.index("diluting")]
    layer = content["layers"][0]
    assert len(layer["n"]) == ROWS
    assert (
        len(layer["drawn"]) == len(head["points"]["top_weight_without_sink"]) == min(ROWS, diagnosis_data.MOST_POINTS)
    )
    assert len(head["curves"]) == sum(each["drawn"] for each in content["measures"])
    assert all(len(line) == len(layer["bins"]) for lines in head["curves"] for line in lines)
    shown = content["heads"][HEADS.index("sink")]["shown"][-1]
    assert shown["keys"][0] == 0  # the sink's head looks at the first token
    assert content["heads"][0]["shown"][-1]["keys"][0] == 3  # the sharp one at the needle
    assert json.loads(diagnosis_data.to_json(made)) == content


def test_a_second_diagnosis_is_the_same() -> None:
    ids = torch.randint(0, 60, (256,), generator=torch.Generator().manual_seed(0))
    first, second = (diagnosis_data.to_json(ud.diagnose(small(), None, ids)) for _ in range(2))
    assert first == second


def test_the_model_comes_back_as_it_was() -> None:
    model, ids = small(), torch.arange(200) % 60
    model.eval()
    model.transformer.drop.train()  # as someone may have it
    model.transformer.drop.p = 0.0
    with torch.no_grad():
        before = model(ids[None]).logits
        ud.diagnose(model, None, ids)
        assert torch.equal(model(ids[None]).logits, before)
    assert model.config._attn_implementation == "sdpa"
    assert [name for name, part in model.named_modules() if part.training] == ["transformer.drop"]


def test_a_model_in_training_is_read_without_dropout() -> None:
    ids = torch.arange(200) % 60
    training = ud.diagnose(small().train(), None, ids).curves()
    assert training.equals(ud.diagnose(small().eval(), None, ids).curves())


def test_an_encoder_is_run_at_several_lengths() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=60,
        max_position_embeddings=128,
    )
    found = ud.diagnose(BertModel(config).eval(), None, torch.arange(128) % 60, target=1024)
    lengths = encoder_lengths(128)
    assert sorted(set(found.curves()["n"])) == lengths
    assert len(found.heads) == 8
    # random weights hardly tell keys apart: uniform over whatever length
    assert all(head.kind == "diffuse" and head.gamma == pytest.approx(1.0, abs=0.1) for head in found.heads)


def test_a_sliding_window_bounds_what_can_dilute() -> None:
    torch.manual_seed(0)
    config = MistralConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        vocab_size=60,
        sliding_window=64,
        max_position_embeddings=512,
    )
    model = MistralForCausalLM(config).eval()
    found = ud.diagnose(model, None, torch.arange(512) % 60)
    short = ud.diagnose(model, None, torch.arange(64) % 60)  # the window is as wide as all that is read
    assert all(head.n_target == 64 and head.factor == 1.0 for head in short.heads)
    assert found.curves()["n"].max() == 64
    assert all(head.n_target == 64 and head.gamma == 0.0 for head in found.heads)
    assert all(head.top_target == pytest.approx(head.top_now) for head in found.heads)
    assert all(head.top_target_low == head.top_target == head.top_target_high for head in found.heads)
    assert all(head.factor == 1.0 for head in found.heads)


def test_rows_that_see_fewer_keys_than_the_shortest_octave_are_diagnosed() -> None:
    """Doge selects eight keys for every row."""
    found = ud.diagnose(built("doge"), None, tokens(300), 128)
    ahead = found.forecast()
    assert np.isfinite(ahead.top.weight).all()
    assert not ahead.top.is_checked
    assert "beyond what was checked" in ahead.summary
    json.loads(diagnosis_data.to_json(found))


def test_without_a_window_everything_is_seen_at_the_target() -> None:
    found = ud.diagnose(small(), None, torch.arange(256) % 60, target=512)
    assert all(head.n_target == 512 for head in found.heads)
    now = ud.diagnose(small(), None, torch.arange(256) % 60, target=256)
    assert all(head.n_target == 256 and head.factor == 1.0 for head in now.heads)
    assert all(head.top_target == pytest.approx(head.top_now) for head in now.heads)


def test_fewer_measures_on_request() -> None:
    found = ud.diagnose(small(), None, torch.arange(200) % 60, measures=["collision"])
    assert "collision" in found.curves()
    assert "distance" not in found.curves()
    assert [head.kind for head in found.heads]
    json.loads(diagnosis_data.to_json(found))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 512}, "reads at most 256 tokens"),
        ({"length": 250}, "has 200 tokens"),
        ({"length": 10}, "at least 64"),
        ({"length": "100"}, "length = '100': must be a whole number"),
        ({"sinks": 26}, "sinks = 26: must be at most 25"),
        (
            {"text": (each for each in ())},
            "text is a generator: must be text, token ids in a tensor, or a list or dict",
        ),
        ({"target": 100}, "must be at least the 200 tokens"),
        ({"target": 0}, "target = 0"),
        ({"rows": 0}, "rows = 0"),
        ({"rows": 8}, "rows = 8: must be at least 16"),
        ({"seed": -1}, "seed = -1"),
        ({"text": None}, "text is a NoneType"),
        ({"text": torch.rand(200)}, "one sequence of whole numbers"),
        ({"text": torch.arange(200)}, "token ids from 0 to 199"),
        ({"x": "keys"}, "must be 'values' or 'input'"),
        ({"measures": ["entropi"]}, "did you mean 'entropy'"),
        ({"text": torch.arange(200)[None] % 60}, "one sequence"),
        ({"text": torch.arange(20)}, "has 20 tokens"),
        ({"text": "words"}, "tokenizer = None"),
    ],
)
def test_bad_input_is_one_clear_error(arguments: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"text": torch.arange(200) % 60} | arguments
    with pytest.raises(ud.UndiluteError, match=message):
        ud.diagnose(small(), None, given.pop("text"), **given)  # type: ignore[arg-type]


def test_only_hugging_face_models_can_be_read() -> None:
    for model in (torch.nn.Linear(3, 3), "gpt2"):
        with pytest.raises(ud.InvalidValue, match="must be a Hugging Face model"):
            ud.diagnose(model, None, torch.arange(200))  # type: ignore[arg-type]


def test_a_head_that_is_not_there_is_an_error(made: ud.Diagnosis) -> None:
    with pytest.raises(ud.InvalidValue, match="layer 9 head 0"):
        made.heads.at(9, 0)


def test_weights_that_are_not_finite_are_noticed() -> None:
    model = small()
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[0, 0] = math.nan
    with pytest.raises(ud.InvalidValue, match="not finite"):
        ud.diagnose(model, None, torch.arange(200) % 60)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        ("jamba", "model.layers.1.self_attn", "layer 1 is model.layers.3.self_attn"),
        ("albert", f"{ALBERT}.passes.0", f"layer 2 is {ALBERT}.passes.2"),
    ],
)
def test_layers_that_the_model_counts_otherwise_are_named(kind: str, first: str, last: str) -> None:
    found = ud.diagnose(
        built(kind), None, tokens(128), thresholds=Thresholds(2, 2, diffuse_short=2, gamma=-9, gamma_low=-9)
    )
    assert found.numbering == (
        f"Attention layers are counted from 0 in the order in which they run: layer 0 is {first}, {last}."
    )
    console = Console(width=400, record=True, file=io.StringIO())
    for part in diagnosis_text.terminal(found):
        console.print(part)
    printed = console.export_text()
    assert found.numbering in printed
    assert found.numbering in diagnosis_page.page(found)
    worst = found.heads.diluting[0]
    assert f"layer {worst.layer} head {worst.head} ({worst.name}): " in printed
    assert list(found.frame().name.unique()) == [layer.name for layer in found.layers]


def test_layers_that_the_model_counts_alike_need_no_words(made: ud.Diagnosis) -> None:
    assert made.numbering is None
    assert "counted from 0" not in diagnosis_page.page(made)
