"""The article's temperatures against its own code in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from undilute.errors import InvalidValue
from undilute.report.result import Result
from undilute_papers.article.temperature import Temperature


@pytest.fixture(scope="module")
def result() -> Result:
    return Temperature().run()


def article(seed: int, n: int, tau: float) -> tuple[float, float, float]:
    """``attention_with_temperature`` as the article prints it, on seeded scores."""
    scores = np.random.default_rng(seed).standard_normal(n) * 0.5
    scores[0] = 3.0
    e_x = np.exp(scores / tau - np.max(scores / tau))
    weights = e_x / e_x.sum()
    return float(weights.max()), float(weights.min()), float(-np.sum(weights * np.log2(weights + 1e-12)))


def test_every_seed_gives_what_the_articles_code_gives(result: Result) -> None:
    rows = result.tables["every seed"]
    assert len(rows) == 200 * 5
    for row in rows[::37]:
        expected = article(int(row["seed"] or 0), 1000, float(row["temperature"] or 0))
        found = [row["top weight"], row["smallest weight"], row["entropy as printed, bits"]]
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-11)
        assert row["top is the relevant token"] is True


def test_means_and_ranges_are_the_known_ones(result: Result) -> None:
    """theory-audit A8, whose largest values at τ = 1 come from other seeds."""
    two, one, half, tenth, hundredth = result.tables["over seeds"]
    assert [two[f"top weight, {each}"] for each in ("mean", "min", "max")] == pytest.approx(
        [0.00433, 0.00420, 0.00442], abs=5e-6
    )
    assert [one[f"top weight, {each}"] for each in ("mean", "min")] == pytest.approx([0.01745, 0.01649], abs=5e-6)
    assert [one[f"entropy, bits, {each}"] for each in ("mean", "min")] == pytest.approx([9.741, 9.717], abs=5e-4)
    assert [half[f"entropy, bits, {each}"] for each in ("mean", "min", "max")] == pytest.approx(
        [8.140, 8.042, 8.252], abs=5e-4
    )
    assert tenth["top weight, mean"] == pytest.approx(0.999994, abs=5e-7)
    assert hundredth["top weight, mean"] == 1.0


def test_no_entropy_is_below_zero_although_the_printed_one_is(result: Result) -> None:
    last = result.tables["over seeds"][-1]
    assert float(last["entropy as printed, bits, min"] or 0) < 0
    assert float(last["entropy, bits, min"] or 0) >= 0
    assert not str(last["entropy, bits, min"]).startswith("-")
    assert "-0.00" in result.findings[-1]


def test_what_the_others_keep_is_not_lost_to_rounding(result: Result) -> None:
    for row in result.tables["every seed"][:5]:
        assert float(row["top weight"] or 0) + float(row["others"] or 0) == pytest.approx(1, abs=1e-12)
    assert 0 < float(result.tables["over seeds"][-1]["others, max"] or 0) < 1e-20


def test_both_claims_hold_in_every_seed(result: Result) -> None:
    assert [each.verdict for each in result.comparisons] == ["agrees"] * 3
    assert "200 of 200 seeds" in str(result.comparisons[0].computed)
    assert result.findings[0].startswith("3 of 3")


def test_temperatures_that_are_not_low_cannot_test_too_low() -> None:
    found = Temperature(seeds=3, temperatures=(0.5, 2.0)).run()
    focus, spread, ignored = found.comparisons
    assert (focus.verdict, spread.verdict, ignored.verdict) == ("agrees", "agrees", "other set-up")
    assert "τ = 0.5" in str(ignored.computed)
    assert found.findings[0].startswith("2 of 3")
    assert not any("-0.00" in finding for finding in found.findings)


def test_one_temperature_cannot_tell_lower_from_higher() -> None:
    found = Temperature(seeds=2, temperatures=(0.01,)).run()
    assert [each.verdict for each in found.comparisons] == ["other set-up", "other set-up", "agrees"]


def test_equal_scores_at_every_temperature_are_not_called_focus() -> None:
    """Two readings of the same temperature: nothing rises, so the claim is not said to hold."""
    found = Temperature(seeds=2, temperatures=(1.0, 1.0)).run()
    assert [each.verdict for each in found.comparisons[:2]] == ["differs", "differs"]


def test_seeds_start_where_they_are_told_to() -> None:
    rows = Temperature(seeds=2, seed=7, n=10, temperatures=(1.0,)).run().tables["every seed"]
    assert [row["seed"] for row in rows] == [7, 8]
    assert rows[0]["top weight"] == pytest.approx(article(7, 10, 1.0)[0], rel=1e-12)


def test_titles_say_where_the_figures_begin_and_end(result: Result) -> None:
    at_two = [article(seed, 1000, 2.0) for seed in range(200)]
    top, bits = (round(float(np.mean([each[at] for each in at_two])), 4) for at in (0, 2))
    assert [chart.title for chart in result.charts] == [
        f"The largest weight among 1,000 tokens, from {top} at τ = 2 to 1 at τ = 0.01",
        f"The entropy among 1,000 tokens in bits, from {bits} at τ = 2 to 0 at τ = 0.01",
    ]


@pytest.mark.parametrize(
    ("temperatures", "titles"),
    [
        (  # uniform at both: no entropy of 0
            (1e5, 1e6),
            [
                "The largest weight among 2 tokens, from 0.5 at τ = 1e+06 to 0.5 at τ = 100000",
                "The entropy among 2 tokens in bits, from 1 at τ = 1e+06 to 1 at τ = 100000",
            ],
        ),
        (  # no other temperature to come from
            (1e-3, 1e-3),
            [
                "The largest weight among 2 tokens, 1 at τ = 0.001",
                "The entropy among 2 tokens in bits, 0 at τ = 0.001",
            ],
        ),
    ],
)
def test_titles_hold_with_other_options(temperatures: tuple[float, ...], titles: list[str]) -> None:
    found = Temperature(n=2, seeds=1, temperatures=temperatures).run()
    assert [chart.title for chart in found.charts] == titles


def test_progress_goes_from_nothing_to_all() -> None:
    shares: list[float] = []
    Temperature(seeds=4, n=10).run(lambda share, doing: shares.append(share))
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 0}, "seeds = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"n": 1}, "n = 1: must be at least 2"),
        ({"temperatures": ()}, "temperatures is empty"),
        ({"temperatures": (1.0, 0.0)}, "temperature = 0: must be at least 1e-06"),
        ({"temperatures": (math.inf,)}, "temperature = inf"),
    ],
)
def test_options_are_checked_before_the_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Temperature(**options)
