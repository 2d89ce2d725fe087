"""The article's table against its own code in NumPy, and the law against softmax itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from undilute.errors import InvalidValue
from undilute.report.result import Result
from undilute_papers.article.dilution import Dilution


@pytest.fixture(scope="module")
def result() -> Result:
    return Dilution().run()


def article(n: int, relevant: float = 5.0, noise: float = 1.0, scale: float = 8.0) -> tuple[float, float, float]:
    """``demonstrate_dilution`` as the article prints it."""
    scores = np.full(n, noise / scale)
    scores[0] = relevant / scale
    e_x = np.exp(scores - np.max(scores))
    weights = e_x / e_x.sum()
    entropy = -np.sum(weights * np.log2(weights + 1e-12))
    return float(weights[0]), float(entropy), float(np.log2(n) - (-np.log2(weights[0] + 1e-12)))


def test_the_computed_columns_are_what_the_articles_code_gives(result: Result) -> None:
    lines = result.tables["table"]
    assert [row["n"] for row in lines] == [5, 10, 50, 100, 500, 1000, 5000, 10_000, 100_000]
    for row in lines:
        n = int(row["n"] or 0)
        computed = [row["weight"], row["entropy, bits"], row["bits lost"]]
        assert computed == pytest.approx(article(n), rel=1e-9)
        assert row["effective tokens"] == pytest.approx(2 ** article(n)[1], rel=1e-9)
        scaled = article(n, scale=1.0)
        assert [row["weight, R = e^4"], row["entropy, R = e^4, bits"]] == pytest.approx(scaled[:2], rel=1e-9)


def test_no_printed_figure_of_the_table_comes_out_and_the_findings_say_so(result: Result) -> None:
    table = [each for each in result.comparisons if each.what.startswith(("weight of", "entropy in", "“bits lost”"))]
    assert len(table) == 27
    assert {each.verdict for each in table} == {"differs"}
    assert result.findings[0].startswith("0 of the 27 figures")
    assert "0.00165 %" in result.findings[0]


def test_a_printed_figure_agrees_within_half_a_unit_of_its_last_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put what the code gives, rounded as the article rounds, in the place of one printed line: it must agree."""
    from undilute_papers.audit import blog

    weight, entropy, lost = article(50)
    correct = blog.TableRow(round(weight, 8), round(entropy, 2), round(lost, 2))
    monkeypatch.setitem(blog.PRINTED, 50, correct)
    comparisons = {each.what: each.verdict for each in Dilution().run().comparisons}
    assert [what for what, verdict in comparisons.items() if verdict == "agrees" and what.endswith("n = 50")] == [
        "weight of the relevant token, n = 50",
        "entropy in bits, n = 50",
        "“bits lost”, n = 50",
    ]
    monkeypatch.setitem(blog.PRINTED, 50, correct._replace(alpha=correct.alpha + 2e-8, entropy=correct.entropy + 0.01))
    moved = Dilution().run()
    verdicts = {each.what: each.verdict for each in moved.comparisons}
    assert verdicts["weight of the relevant token, n = 50"] == "differs"
    assert verdicts["entropy in bits, n = 50"] == "differs"
    assert moved.findings[0].startswith("1 of the 27")


def test_the_implied_ratios_are_those_of_the_audit(result: Result) -> None:
    implied = [float(row["R implied by the printed weight"] or 0) for row in result.tables["table"]]
    assert [round(each, 1) for each in implied] == [25.0, 28.9, 38.3, 40.3, 40.8, 41.1, 40.9, 40.9, 41.0]
    assert "from 25.0 to 41.1" in result.findings[1]


def test_the_law_is_softmax_of_the_row_itself() -> None:
    found = Dilution(gaps=(0.0, 3.0, 7.5), longest=100_000).run().tables["law"]
    assert {row["gap"] for row in found} == {0.0, 3.0, 7.5}
    for row in found:
        n, gap = int(row["n"] or 0), float(row["gap"] or 0)
        weights = np.exp(np.r_[gap, np.zeros(n - 1)] - np.logaddexp(gap, math.log(n - 1) if n > 1 else -np.inf))
        assert row["weight"] == pytest.approx(weights[0], rel=1e-12)
        entropy = -np.sum(weights * np.log(np.maximum(weights, 1e-300)))
        assert row["effective tokens"] == pytest.approx(np.exp(entropy), rel=1e-9)


def test_the_gap_that_is_said_to_hold_a_weight_does(result: Result) -> None:
    for row in result.tables["gap to hold a weight"]:
        for held in (0.1, 0.5, 0.9):
            gap, n = float(row[f"gap to hold {held:g}"] or 0), int(row["n"] or 0)
            assert 1 / (1 + (n - 1) * math.exp(-gap)) == pytest.approx(held, rel=1e-12)
    assert "ln(n − 1) = 13.8" in result.findings[-1]


def test_the_lengths_up_to_which_a_gap_holds_one_half() -> None:
    finding = Dilution(gaps=(4.0, 80.0)).run().findings[-1]
    assert "one of 4 up to 55 tokens" in finding
    assert 1 / (1 + 54 * math.exp(-4)) > 0.5 > 1 / (1 + 55 * math.exp(-4))
    assert "5.5e+34 tokens" in finding


def test_charts_show_the_tables(result: Result) -> None:
    charts = {chart.name: chart for chart in result.charts}
    lines = result.tables["table"]
    assert list(charts["weights"].series[0].y) == [row["weight printed"] for row in lines]
    assert [series.printed for series in charts["weights"].series] == [True, False, False, False]
    assert [series.bound for series in charts["law"].series] == [False] * 4 + [True]
    assert list(charts["entropy"].series[1].y) == [row["entropy, bits"] for row in lines]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gaps": ()}, "gaps is empty"),
        ({"gaps": (1.0, -0.5)}, "gap = -0.5: must be from 0 to 100"),
        ({"gaps": (math.nan,)}, "gap = nan"),
        ({"gaps": (101.0,)}, "gap = 101"),
        ({"longest": 99_999}, "longest = 99999: must be at least 100,000"),
    ],
)
def test_options_are_checked_before_the_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Dilution(**options)


def test_settings_and_command_tell_how_to_run_it_again() -> None:
    result = Dilution(gaps=(1.0, 2.0)).run()
    assert result.settings == {"gaps": (1.0, 2.0), "longest": 1_000_000}
    assert result.command == "undilute reproduce dilution --gaps 1.0,2.0"
