"""The critical N of curves for which it is known, the tests against scipy's, and the words that follow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import transformers
from numpy.typing import NDArray

from tests.models import small
from undilute.errors import InvalidValue
from undilute_papers.limitations.critical_n import CriticalN
from undilute_papers.limitations.critical_n.critical_n_findings import charts, comparisons, sentences, span
from undilute_papers.limitations.critical_n.found import Found
from undilute_papers.limitations.critical_n.search import (
    EXPECTATIONS,
    LEVELS,
    Critical,
    Curves,
    equivalent_n,
    first_passing,
    grid,
    paired_n,
    published_n,
)
from undilute_papers.limitations.critical_n.significance import (
    kolmogorov_smirnov,
    largest_accepted,
    paired,
    ratio,
    rejects,
)
from undilute_papers.reproduction import attended

HEADS = 60
TOPS = (1, 2, 4, 8, 16, 31)


def heads(seed: int = 0) -> NDArray[np.float64]:
    return np.exp(np.random.default_rng(seed).normal(size=HEADS))


def curves(*factors: float, tops: tuple[int, ...] = TOPS) -> Curves:
    """Every head's d̃ is ``factor`` times each of its expectations at the N of the factor."""
    distance = np.stack([factor * heads() for factor in factors])
    return Curves(tops, distance, {name: np.tile(heads(), (len(tops), 1)) for name in EXPECTATIONS})


def test_equal_curves_pass_at_once_and_curves_far_apart_never() -> None:
    same, apart = curves(*[1.0] * 6), curves(*[100.0] * 6)
    for alpha in LEVELS:
        assert published_n(same, "expected", alpha) == Critical(1, 0, 0)
        assert published_n(apart, "expected", alpha) == Critical(None, 31, 0)
        assert paired_n(same, "main", alpha).top == 1
        assert paired_n(apart, "main", alpha).top is None
    assert equivalent_n(same, "printed").top == 1
    assert equivalent_n(apart, "printed").top is None


def test_curves_that_meet_and_part() -> None:
    assert published_n(curves(100, 100, 1, 1, 100, 100), "printed", 0.01) == Critical(4, 2, 2)


def test_a_small_difference_passes_the_published_test_but_not_the_paired_one() -> None:
    near = curves(*[1.2] * 6)
    assert published_n(near, "expected", 0.05).top == 1
    assert paired_n(near, "expected", 0.01).top is None
    assert equivalent_n(near, "expected").top is None


def test_fewer_heads_pass_earlier() -> None:
    falling = curves(8, 5, 3, 2, 1.5, 1)
    few = published_n(falling, "expected", 0.01, np.arange(8)).top
    many = published_n(falling, "expected", 0.01).top
    assert few is not None
    assert many is not None
    assert few < many


def test_kolmogorov_smirnov_is_scipys() -> None:
    a, b = heads(1), heads(2) * 1.5
    expected = scipy.stats.ks_2samp(a, b)
    assert kolmogorov_smirnov(a, b) == (expected.statistic, expected.pvalue)


@pytest.mark.parametrize("size", [12, 36, 60, 270])
@pytest.mark.parametrize("alpha", LEVELS)
def test_rejections_are_scipys(size: int, alpha: float) -> None:
    generator = np.random.default_rng(size)
    seen = set()
    for shift in np.linspace(0, 6 / math.sqrt(size), 40):
        a, b = generator.normal(size=size), generator.normal(size=size) + shift
        b[0] = a[0]  # a tie
        expected = kolmogorov_smirnov(a, b)[1] < alpha
        assert rejects(a, b, alpha) == expected
        seen.add(expected)
    assert seen == {True, False}


def test_critical_values_of_the_published_sample() -> None:
    """144 against 144: .192 at α = .01 and .160 at .05 by the large-sample formula √(ln(2/α)/n)."""
    for alpha, asymptotic in ((0.01, 0.192), (0.05, 0.160)):
        assert math.sqrt(math.log(2 / alpha) / 144) == pytest.approx(asymptotic, abs=5e-4)
        assert largest_accepted(144, alpha) / 144 == pytest.approx(asymptotic, abs=2 / 144)


def test_paired_test_and_ratio() -> None:
    a, b = heads(1), heads(2)
    assert paired(a, b) == scipy.stats.wilcoxon(a, b).pvalue
    assert paired(a, a) == 1.0
    middle, low, high = ratio(a, b)
    interval = scipy.stats.ttest_rel(np.log(a), np.log(b)).confidence_interval(0.9)
    assert math.log(middle) == pytest.approx(np.mean(np.log(a) - np.log(b)))
    assert (math.log(low), math.log(high)) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert ratio(np.append(a, 0.0), np.append(b, 1.0)) == (middle, low, high)
    assert math.isnan(ratio(np.zeros(3), np.ones(3))[0])


def test_first_passing() -> None:
    assert first_passing([1, 2, 3], [False, False, False]) == Critical(None, 3, 0)
    assert first_passing([1, 2, 3], [True, False, True]) == Critical(1, 0, 1)


@pytest.mark.parametrize("length", [64, 512, 1024])
def test_grid_tells_the_published_share_apart(length: int) -> None:
    tops = grid(length, 1024, 36)
    assert tops == sorted(set(tops))
    assert (tops[0], tops[-1]) == (1, length - 1)
    near = [top for top in tops if 0.04 <= top / length <= 0.09]
    assert len(near) >= 2


LENGTHS = (64, 128)
OPTIONS = CriticalN(lengths=LENGTHS, heads=(20, 144), subsets=5)


def found(lengths: tuple[int, ...] = LENGTHS, **factors: tuple[float, ...]) -> Found:
    """Lengths whose expectations are the heads times 1/factor, for N = 1, 2, 3, L/16, L/2, L − 1; by expectation."""
    made = {}
    for length in lengths:
        tops = (1, 2, 3, length // 16, length // 2, length - 1)
        base = np.tile(heads(), (len(tops), 1))
        every = {name: base / np.array(factors.get(name, (100.0,) * 6))[:, None] for name in EXPECTATIONS}
        made[length] = Curves(tops, base, every)
    return Found(made, OPTIONS.heads, OPTIONS.subsets, OPTIONS.seed)


def test_words_when_only_the_misprint_gives_the_published_share() -> None:
    searched = found(printed=(9, 9, 9, 1, 1e-3, 1e-3), expected=(9, 9, 9, 9, 9, 1))
    verdicts = {each.what: each for each in comparisons(searched)}
    printed = verdicts["critical N / L over all L, formula as printed, α = 0.01"]
    assert (printed.computed, printed.verdict) == ("0.062", "agrees")
    assert "L = 64: 0.062; L = 128: 0.062." in printed.note
    assert "At L = 128 the test rejects again at 2 larger N" in printed.note
    corrected = verdicts["critical N / L over all L, expectation, corrected, α = 0.05"]
    assert (corrected.computed, corrected.verdict) == ("0.98 to 0.99", "differs")
    none = verdicts["critical N / L over all L, main term, corrected, α = 0.01"]
    assert (none.computed, none.verdict) == ("none at any L", "differs")
    assert verdicts["critical N grows sub-linearly with L, formula as printed: exponent"].computed == pytest.approx(1)
    assert verdicts["fewer than 6 % of the tokens need to be selected, formula as printed"].verdict == "differs"
    assert verdicts["critical N grows sub-linearly with L, main term, corrected: exponent"].verdict == "differs"
    first = sentences(searched, OPTIONS)[0]
    assert first.startswith("smollm2 on 128 tokens of the text that CPython ships: “≈ 0.06 L” does not survive")
    assert "over all L from 64 to 128 the critical N / L is 0.98 to 0.99: about 0.06 at 0 of 2 lengths" in first
    assert "as printed it is 0.062: about 0.06 at 2 of 2" in first


def test_words_when_the_share_survives() -> None:
    searched = found(expected=(9, 9, 9, 1, 1, 1), main=(9, 1, 1, 1, 1, 1))
    first, shares, *_ = sentences(searched, OPTIONS)
    assert "L = 64: 0.062; L = 128: 0.062, and with the formula as printed L = 64: none; L = 128: none." in shares
    few = [each.verdict for each in comparisons(searched) if each.what.startswith("fewer than 6 %")]
    assert few == ["differs", "agrees", "differs"]
    assert "“≈ 0.06 L” survives" in first
    assert "as printed it is none at any L: about 0.06 at 0 of 2" in first


def test_a_share_at_some_lengths_only_does_not_survive() -> None:
    """N = 2 at every L is about 0.06 of 32 and, just, of 64, but not of 128."""
    searched = found(lengths=(32, 64, 128), expected=(9, 1, 1, 1, 1, 1))
    (compared,) = [each for each in comparisons(searched) if "expectation, corrected, α = 0.01" in each.what]
    assert (compared.computed, compared.verdict) == ("0.016 to 0.062", "differs")
    assert "L = 32: 0.062; L = 64: 0.031; L = 128: 0.016." in compared.note
    first = sentences(searched, OPTIONS)[0]
    assert "does not survive" in first
    assert "about 0.06 at 2 of 3 lengths" in first


def test_the_span_names_lengths_without_a_critical_n() -> None:
    none, some = Critical(None, 31, 0), Critical(4, 3, 0)
    assert span({32: none, 64: some, 1024: none}) == "0.062, none at L = 32, 1,024"


def test_drawn_heads_are_fewer_than_there_are() -> None:
    searched = found(expected=(9, 9, 9, 9, 9, 1))
    assert {line["heads"] for line in searched.fewer} == {20}  # 144 of 60 cannot be drawn
    assert all(0 <= line["reached"] <= 5 for line in searched.fewer)
    assert "20 heads, expectation, corrected" in " ".join(sentences(searched, OPTIONS))
    assert [len(chart.series) for chart in charts(searched)] == [4, 4]  # two of four are never reached


def test_runs_on_a_model(tmp_path: Any) -> None:
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(small.GPT2).save_pretrained(tmp_path)
    small.tokenizer().save_pretrained(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on a mat and the dog ran far " * 20, encoding="utf-8")
    attended._named.cache_clear()
    options: dict[str, Any] = {"lengths": (32, 64), "points": 10, "rows": 16, "heads": (4,), "subsets": 3}
    result = CriticalN(model=str(tmp_path), text=(str(text),), **options).run()
    tops = {length: grid(length, 64, 10) for length in (32, 64)}
    assert len(result.tables["tests"]) == 3 * sum(map(len, tops.values()))
    for line in result.tables["tests"]:
        assert 0 <= line["KS statistic"] <= 1
        assert line["ratio low"] <= line["ratio"] <= line["ratio high"]
    for chart in result.charts:
        assert len(chart.series) <= 7
        assert all(series.x for series in chart.series)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"points": 3}, "^--points = 3"),
        ({"lengths": (64,)}, "^--lengths = .* must be at least two"),
        ({"lengths": (16, 32)}, "^--lengths = 32: at least 64 tokens"),
        ({"heads": (0,)}, "^--heads = 0"),
        ({"subsets": 0}, "^--subsets = 0"),
        ({"x": "keys"}, "^--x = 'keys'"),
        ({"short_rows": "kept"}, "^--short-rows = 'kept'"),
    ],
)
def test_refuses_before_it_loads(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        CriticalN(model="no-such-model", **options).run()
