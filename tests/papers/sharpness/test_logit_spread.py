"""Spreads against loops over the logits, the ceiling against softmax rows that reach it, and the table's shape."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.models import small
from tests.papers.limitations.test_gradient import saved_gpt2
from tests.papers.limitations.test_separability import check_result
from undilute.errors import InvalidValue
from undilute.report.result import Result
from undilute_papers.reproduction.attended import Layer, each_layer, loaded
from undilute_papers.reproduction.quartiles import QUARTILES
from undilute_papers.sharpness import logit_spread as module
from undilute_papers.sharpness.logit_spread import LogitSpread, ceiling

LENGTH, FEWEST = 96, 8


def saved_bert(folder: Path) -> str:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **{**small.BERT.to_dict(), "max_position_embeddings": 80, "initializer_range": 0.4, "pad_token_id": 0}
    )
    transformers.BertModel(config).save_pretrained(folder)
    small.tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    folder = tmp_path_factory.mktemp("spread")
    name, text = saved_gpt2(folder)
    return name, saved_bert(folder / "bert"), text


@pytest.fixture(scope="module")
def result(paths: tuple[str, str, str]) -> Result:
    gpt2, bert, text = paths
    return LogitSpread(models=(gpt2, bert), text=(text,), length=LENGTH, rows=0, fewest=FEWEST).run()


def by_loops(name: str, text: str, length: int, fewest: int) -> list[list[tuple[int, float, float]]]:
    """For each head: keys seen, δ and top weight of each row, from the logits one by one."""
    model, ids = loaded(name, (text,), length)
    heads: list[list[tuple[int, float, float]]] = []

    def use(layer: Layer) -> None:
        for head in layer.logits.double().numpy():
            rows = [row[np.isfinite(row)] for row in head]
            heads.append(
                [
                    (len(row), float(row.max() - row.min()), float(1 / np.exp(row - row.max()).sum()))
                    for row in rows
                    if len(row) >= fewest
                ]
            )

    each_layer(model, ids, use)
    return heads


def test_the_table_is_what_loops_give(paths: tuple[str, str, str], result: Result) -> None:
    for place, (name, length) in enumerate(((paths[0], LENGTH), (paths[1], 80))):
        heads = by_loops(name, paths[2], length, FEWEST)
        per_head = [np.mean([delta for _, delta, _ in rows]) for rows in heads]
        per_row = [delta for rows in heads for _, delta, _ in rows]
        of_rows, of_heads = result.tables["spread"][2 * place : 2 * place + 2]
        for line, values in ((of_rows, per_row), (of_heads, per_head)):
            assert (line["model"], line["tokens"]) == (name, length)
            found = [line[column] for column in ("lowest", "highest", "mean", "std")]
            assert found == pytest.approx([min(values), max(values), np.mean(values), np.std(values, ddof=1)], rel=1e-6)
            most = 1 / (1 + 8191 * math.exp(-max(values)))
            assert line["ceiling of the highest, n=8192"] == pytest.approx(most, rel=1e-5)
        lines = [line for line in result.tables["heads"] if line["model"] == name]
        assert [line["mean"] for line in lines] == pytest.approx(per_head, rel=1e-6)
        layers = [line for line in result.tables["layers"] if line["model"] == name]
        assert [line["median"] for line in layers] == pytest.approx(
            [np.median(per_head[4 * at : 4 * at + 4]) for at in range(2)], rel=1e-6
        )


def test_a_rows_own_ceiling_holds_and_is_reported(paths: tuple[str, str, str], result: Result) -> None:
    rows = [row for head in by_loops(paths[0], paths[2], LENGTH, FEWEST) for row in head]
    ceilings = [1 / (1 + (n - 1) * math.exp(-delta)) for n, delta, _ in rows]
    assert all(top <= limit * (1 + 1e-5) for (_, _, top), limit in zip(rows, ceilings, strict=True))
    share = 100 * np.mean([limit > 0.5 for limit in ceilings])
    told = (
        f"own ceiling is {np.mean(ceilings):.2f} on average and above one half in {share:.0f} % of rows, while its top"
    )
    assert told in result.findings[1]
    assert f"top weight is {np.mean([top for _, _, top in rows]):.2f}:" in result.findings[1]


def test_spread_by_keys(paths: tuple[str, str, str], result: Result) -> None:
    rows = [row for head in by_loops(paths[0], paths[2], LENGTH, FEWEST) for row in head]
    lines = [line for line in result.tables["by_keys"] if line["model"] == paths[0]]
    assert [line["keys"] for line in lines] == [8, 16, 32, 64, 128]  # rows of up to 96 keys, by nearest power of two
    for line in lines:
        of = [delta for n, delta, _ in rows if round(math.log2(n)) == int(math.log2(float(line["keys"] or 0)))]
        assert line["rows"] == len(of)
        expected = [np.mean(of), *np.quantile(of, [0, 0.25, 0.5, 0.75, 1])]
        assert [line[name] for name in ("mean", *QUARTILES)] == pytest.approx(expected, rel=1e-6)
    encoder = [line["keys"] for line in result.tables["by_keys"] if line["model"] == paths[1]]
    assert encoder == [16, 32, 64]  # 80 tokens and shorter beginnings of the text


def test_the_printed_table_and_its_ceilings(result: Result) -> None:
    gemma = result.tables["spread"][-2]
    assert (gemma["model"], gemma["over"], gemma["mean"], gemma["std"]) == ("Gemma 2B", "as printed", 5.69, 2.05)
    assert gemma["ceiling of the mean, n=1024"] == pytest.approx(0.2243, abs=5e-5)
    assert gemma["ceiling of the mean, n=8192"] == pytest.approx(0.0349, abs=5e-5)
    logits = torch.zeros(1024, dtype=torch.float64)
    logits[0] = 5.69
    assert ceiling(1024, 5.69) == pytest.approx(float(logits.softmax(-1)[0]), rel=1e-12)
    assert [each.verdict for each in result.comparisons[:8]] == ["other set-up"] * 8


def test_a_run_says_what_it_found(result: Result, paths: tuple[str, str, str]) -> None:
    check_result(result, ["layers", "ceiling", "keys"])
    assert any(f"Asked for {LENGTH} tokens, some models read fewer: {paths[1]} 80." in each for each in result.findings)
    assert [series.printed for series in result.charts[1].series] == [False, False, True, True]


@pytest.mark.parametrize("widest", [40.0, 90.0])
def test_no_verdict_on_what_is_said_of_another_model(widest: float) -> None:
    spreads = module.Spreads("made up", 64, 1)
    logits = torch.tensor([[[0.0, widest], [0.0, 1.0]]])
    visible = torch.ones(2, 2, dtype=torch.bool)
    spreads.add(Layer(0, "layer", logits, visible, torch.zeros(1, 2, 1), torch.arange(2)))
    compared = module._comparisons([spreads])[-1]
    assert compared.verdict == "other set-up"
    assert str(compared.computed).startswith(f"at most {widest:.1f}, of 104 ")
    assert "row of made up; the claim is about Gemma" in compared.note


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"models": ()}, "^--models is empty"),
        ({"rows": -1}, "^--rows = -1"),
        ({"length": 32}, "at least 64 tokens"),
        ({"fewest": 2000}, "^--fewest = 2000"),
        ({"fewest": 0}, "^--fewest = 0"),
    ],
)
def test_refuses(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        LogitSpread(**{"models": ("./not looked at",), **options}).run()
