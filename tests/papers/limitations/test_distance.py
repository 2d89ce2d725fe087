"""Fig. 2a and 2b on a small random model: the figures are means of rows, and the words follow from the figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.models import small
from undilute.errors import InvalidValue
from undilute.report.result import Result
from undilute_papers.limitations.distance import CURVES, SHARES, Distance, _Figures, proportional
from undilute_papers.limitations.samples import Sample
from undilute_papers.reproduction import attended
from undilute_papers.reproduction.attended import each_layer, loaded
from undilute_papers.theory import distance as theory


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    transformers.GPT2LMHeadModel(small.GPT2).save_pretrained(path)
    small.tokenizer().save_pretrained(path)
    (path / "text.txt").write_text("the cat sat on a mat and the dog ran far " * 20, encoding="utf-8")
    return str(path)


def run(folder: str, **options: Any) -> Result:
    options = {"length": 64, "tops": (1, 5, 20, 30)} | options
    attended._named.cache_clear()
    return Distance(model=folder, text=(f"{folder}/text.txt",), **options).run()


@pytest.fixture(scope="module")
def result(folder: str) -> Result:
    return run(folder)


def test_tables_are_means_of_the_theory(result: Result, folder: str) -> None:
    model, ids = loaded(folder, f"{folder}/text.txt", 64)
    heads: list[float] = []

    def use(layer: attended.Layer) -> None:
        for weights, x in zip(layer.weights.double(), layer.x.double(), strict=True):
            rows = [
                float(theory.selection_distance(w[: t + 1], x[: t + 1], theory.top_set(w[: t + 1], 5)))
                for t, w in enumerate(weights[:32])
                if t >= 5
            ]
            heads.append(float(np.mean(rows)))

    each_layer(model, ids, use)
    line = result.tables["by_length"][0]
    assert (line["L"], line["N"], line["rows"]) == (32, 5, 27)
    assert line["distance"] == pytest.approx(np.mean(heads), rel=1e-4)
    assert line["distance p10"] == pytest.approx(np.quantile(heads, 0.1), rel=1e-4)
    assert line["distance p90"] == pytest.approx(np.quantile(heads, 0.9), rel=1e-4)


def test_tables_are_complete_and_ordered(result: Result) -> None:
    assert [line["L"] for line in result.tables["by_length"]] == [32, 64]
    assert [line["N"] for line in result.tables["by_top"]] == [1, 5, 20, 30]
    assert len(result.tables["heads"]) == small.GPT2.n_layer * small.GPT2.n_head
    assert len(result.tables["proportional"]) == 2 * len(SHARES)
    for lines in result.tables.values():
        assert len({tuple(line) for line in lines}) == 1
    for line in [*result.tables["by_length"], *result.tables["by_top"]]:
        assert line["main"] <= line["upper"]
        assert line["distance"] <= line["bound"]
        assert line["rows above the bound"] == 0


def test_expectation_lies_in_its_interval_for_many_draws(folder: str) -> None:
    for line in run(folder, draws=50).tables["by_top"]:
        assert 0.97 * line["main"] <= line["expected"] <= 1.03 * line["upper"]


def test_the_error_of_the_drawn_expectation_covers_other_seeds(folder: str) -> None:
    lines = [run(folder, seed=seed).tables["by_length"][-1] for seed in range(8)]
    spread = np.std([line["expected"] for line in lines], ddof=1)
    assert spread / 3 < np.mean([line["expected error"] for line in lines]) < 20 * spread
    assert spread > 0


def test_charts_show_the_tables(result: Result) -> None:
    over_length, over_top, of_a_share = result.charts
    for chart, table in ((over_length, "by_length"), (over_top, "by_top")):
        for series, name in zip(chart.series, ("distance", "expected", "printed", "bound"), strict=True):
            assert list(series.y) == [line[name] for line in result.tables[table]]
        assert chart.y_log == 10
        assert chart.series[-1].bound
    assert len(of_a_share.series) == len(SHARES)


def test_short_rows_as_zero_lower_the_mean(result: Result, folder: str) -> None:
    zero = run(folder, short_rows="zero")
    for left_out, counted in zip(result.tables["by_length"], zero.tables["by_length"], strict=True):
        share = left_out["rows"] / left_out["L"]
        assert counted["distance"] == pytest.approx(share * left_out["distance"], rel=1e-5)
    assert any("counted as 0" in finding for finding in zero.findings)


def test_fewer_rows_and_other_vectors(folder: str) -> None:
    found = run(folder, rows=8, x="input")
    assert found.tables["by_length"][0]["rows"] == 7  # positions 3, 7, …, 31: the first sees 4 keys
    assert any("the layers' input" in finding for finding in found.findings)


def figures(grow: float, expected: float = 0.0, bound: float = 1e9, top: float = 1.0) -> _Figures:
    """Two heads whose distance is L^grow · N^top: the printed formula is linear, the expectation L^expected."""
    options = Distance(length=128, lengths=(32, 64, 128), tops=(1, 5, 20, 100))
    found = {}
    for length in (32, 64, 128):
        values = {}
        for N in {5, 1, 20, 100} | set(proportional(length).values()):
            rows = dict.fromkeys(CURVES, 1.0 * length) | {"bound": bound, "main": 0.1, "upper": 1e3}
            rows |= {"distance": length**grow * N ** (top - 1), "expected": length**expected, "norms": 1.0}
            values |= {(name, N): torch.full((2, 3), value) for name, value in rows.items()}
        one = torch.zeros(2, dtype=torch.int64)
        found[length] = Sample(one, one, ("layer",), torch.arange(3), torch.full((2, 3), length), values)
    return _Figures(options, [32, 64, 128], [1, 5, 20, 100], found)


def verdict(found: _Figures, words: str) -> str:
    (one,) = [each.verdict for each in found.comparisons() if words in each.what]
    return one


def test_verdicts_follow_the_figures() -> None:
    assert verdict(figures(1.05), "d̃ over L") == "agrees"
    assert verdict(figures(0.8), "d̃ over L") == "differs"
    assert verdict(figures(1.0, expected=1.0), "over L at N = 5, corrected") == "agrees"
    assert verdict(figures(1.0, expected=0.3), "over L at N = 5, corrected") == "differs"
    assert verdict(figures(1.0), "formula as printed: exponent") == "agrees"
    assert verdict(figures(1.0), "is safe") == "agrees"
    assert verdict(figures(1.0, bound=1.0), "is safe") == "differs"
    assert verdict(figures(1.0), "plateaus") == "agrees"
    assert verdict(figures(1.0, top=1.5), "plateaus") == "differs"
    assert verdict(figures(1.0), "collapses") == "differs"
    assert verdict(figures(-0.5), "collapses") == "agrees"
    assert verdict(figures(1.0), "converge: d̃/expectation at N = 100, formula as printed") == "agrees"
    assert verdict(figures(1.0), "converge: d̃/expectation at N = 100, corrected") == "differs"
    assert verdict(figures(0.0), "Corollary 2(i)") == "agrees"
    assert verdict(figures(0.0, expected=0.5), "Corollary 2(i)") == "differs"


def test_findings_follow_the_figures() -> None:
    assert "it does not collapse" in " ".join(figures(1.0).findings())
    assert "it does not collapse" not in " ".join(figures(-1.0).findings())
    first = figures(0.8).findings()[0]
    assert first.startswith("smollm2 on 128 tokens of the text that CPython ships: from 32 to 128 tokens")
    assert "exponent 0.80" in first


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"x": "keys"}, "^--x = 'keys'"),
        ({"rows": -1}, "^--rows = -1"),
        ({"short_rows": "kept"}, "^--short-rows = 'kept'"),
        ({"draws": 0}, "^--draws = 0"),
        ({"length": 40}, "^--lengths = .* at least two must be up to --length = 40"),
        ({"length": 0}, "^--length = 0"),
        ({"length": 63, "lengths": (32, 63)}, "^--length = 63: at least 64 tokens"),
        ({"top": 32}, "^--top = 32: must be below the shortest of --lengths, 32"),
        ({"tops": (2000,)}, "^--tops = .* at least one must be below --length"),
        ({"tops": (0,)}, "^--tops = 0"),
    ],
)
def test_refuses_before_it_loads(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        Distance(model="no-such-model", **options).run()


def test_source_is_what_the_contract_quotes() -> None:
    assert Distance.source == "arXiv:2508.17821v1, Fig. 2a and 2b"
    assert Distance.quickly().length < Distance().length
