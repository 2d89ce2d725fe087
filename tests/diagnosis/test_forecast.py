"""Forecasts of curves whose law is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from undilute.diagnosis import fit
from undilute.diagnosis.forecast import Curves, checked, forecast

N = np.array([32.0, 64.0, 128.0, 256.0, 512.0, 1024.0])
HEADS = 60


def curves(
    *,
    slope: float = 0.0,
    between: float = 0.0,
    noise: float = 0.1,
    texts: tuple[int, ...] = (0, 1, 2, 3),
    of_text: float = 0.1,
    heads: int = HEADS,
    n: NDArray[np.float64] = N,
    seed: int = 0,
) -> Curves:
    """Laws logit α = level + slope·ln n of many heads.

    slope, between : of the heads on average, and how much it differs from head to head
    noise, of_text : of each weight by itself, and of a head's level in a text
    texts : which one each window is of
    """
    level, slopes = _heads(slope, between, heads)
    generator = np.random.default_rng([1, seed])
    shifts = of_text * generator.standard_normal((max(texts) + 1, heads))
    logits = level[:, None] + slopes[:, None] * np.log(n / n[0])
    own = logits + shifts[list(texts)][..., None] + noise * generator.standard_normal((len(texts), heads, len(n)))
    return Curves(n, fit.sigmoid(own), np.array(texts), int(n[-1]), float(n[-1]))


def _heads(slope: float, between: float, heads: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Level and slope of each head: the same whatever the texts are."""
    generator = np.random.default_rng(0)
    return generator.uniform(-1.0, 1.5, heads), slope + between * generator.standard_normal(heads)


# ---------------------------------------------------------------- which way wins


def test_one_law_for_all_heads_is_pooled() -> None:
    check = checked(curves(slope=-0.6))
    assert check.way == "pooled law"
    assert check.errors["pooled law"] <= 0.85 * check.errors["no change"]
    assert check.errors["pooled law"] <= check.errors["shrunk law"]
    assert check.sentence.startswith("pooled law, validated to 1,024 on texts left out: median error ×1.")
    assert "no-change ×" in check.sentence


def test_a_law_for_each_head_is_kept() -> None:
    check = checked(curves(slope=-0.4, between=0.4))
    assert check.way == "shrunk law"
    assert check.errors["shrunk law"] <= 0.85 * check.errors["no change"]
    assert check.errors["shrunk law"] < check.errors["pooled law"]


@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_where_nothing_changes_no_change_is_used_and_said(noise: float) -> None:
    check = checked(curves(noise=noise, of_text=noise))
    assert check.way == "no change"
    assert check.sentence.startswith("no change, validated to 1,024 on texts left out: median error ×")
    assert "no law beats it by 15% (pooled law ×" in check.sentence
    found = curves(noise=noise, of_text=noise)
    ahead = forecast(found, 4096.0)
    assert np.allclose(ahead.weight, fit.sigmoid(fit.logit(found.weights[..., -1]).mean(0)))


def test_heads_are_drawn_to_the_median_as_far_as_their_slopes_are_chance() -> None:
    """With a lot of noise and one true slope, what is forecast for single heads hardly differs from the pooled law."""
    given = curves(slope=-0.6, noise=0.4)
    pooled, shrunk = (
        fit.logit(forecast(given, 4096.0, replace(checked(given), way=way)).weight)
        for way in ("pooled law", "shrunk law")
    )
    level = fit.logit(given.weights).mean(0)[:, -1]
    raw = np.mean(
        [[np.polyfit(np.log(N), own, 1)[0] for own in unit] for unit in fit.logit(given.weights)], 0
    ) * math.log(4)
    assert np.std(shrunk - pooled) < 0.6 * np.std(raw)
    assert np.allclose(pooled - level, (pooled - level)[0])


def test_an_exact_law_is_forecast_exactly() -> None:
    for options in ({"slope": -1.0}, {"slope": -1.0, "between": 0.3}):
        given = curves(**options, noise=0.0, of_text=0.0)
        ahead = forecast(given, 4096.0)
        level, slopes = _heads(options["slope"], options.get("between", 0.0), HEADS)
        assert np.allclose(ahead.weight, fit.sigmoid(level + slopes * math.log(4096 / 32)), atol=1e-6)
        assert ahead.check.width < 1e-6


# ---------------------------------------------------------------- intervals


@pytest.mark.parametrize(
    ("slope", "between", "texts"),
    [(0.0, 0.0, (0, 1, 2)), (-0.6, 0.0, (0, 1, 2, 3)), (-0.4, 0.4, (0, 0, 1, 1, 2, 2)), (-0.6, 0.3, (0, 1, 2, 3, 4))],
)
def test_on_fresh_texts_intervals_cover_what_they_say(slope: float, between: float, texts: tuple[int, ...]) -> None:
    """Known up to a quarter of what fresh texts are then measured at, as it was checked."""
    inside, said = [], []
    longer = np.append(N, 4 * N[-1])
    for seed in range(12):
        options = {"slope": slope, "between": between, "noise": 0.2, "of_text": 0.2}
        ahead = forecast(curves(**options, texts=texts, seed=seed), float(longer[-1]))
        fresh = curves(**options, texts=(0,), n=longer, seed=1000 + seed).weights[0, :, -1]
        inside.append((ahead.low <= fresh) & (fresh <= ahead.high))
        said.append(ahead.check.coverage)
        assert ahead.is_checked
    assert 0.85 <= np.mean(inside) <= 0.97
    assert np.mean(said) == pytest.approx(np.mean(inside), abs=0.06)


def test_the_quantile_is_conformal() -> None:
    """Of a thousand misses, the interval leaves out a tenth, not more."""
    given = curves(heads=250, texts=(0, 1, 2, 3))
    check = checked(given)
    assert check.count == 1000
    assert check.coverage == pytest.approx(0.9, abs=0.03)


def test_few_weights_give_an_interval_as_wide_as_the_largest_miss() -> None:
    given = curves(heads=1, texts=(0, 1, 2), noise=0.3)
    check = checked(given)
    assert check.count == 3
    logits = fit.logit(given.weights[:, 0])
    known = int((N <= 256).sum()) - 1
    misses = [abs(logits[each, -1] - np.delete(logits, each, 0)[:, known].mean()) for each in range(3)]
    assert check.way == "no change"
    assert check.width == pytest.approx(max(misses))


def test_a_longer_step_is_wider_and_marked() -> None:
    given = curves(slope=-0.6)
    near, same, far = (forecast(given, n) for n in (1024.0, 4096.0, 16_384.0))
    widths = [fit.logit(each.high) - fit.logit(each.weight) for each in (near, same, far)]
    assert np.allclose(widths[0], widths[1])
    assert np.allclose(widths[2], 2 * widths[1])  # twice the logarithm
    assert (near.is_checked, same.is_checked, far.is_checked) == (True, True, False)


# ---------------------------------------------------------------- what is left out


def test_a_text_counts_alike_however_many_windows_it_has() -> None:
    """One text has one window, the other three, and their levels differ: the middle is halfway."""
    levels = np.array([-1.0, 1.0, 1.0, 1.0])
    weights = fit.sigmoid(np.broadcast_to(levels[:, None, None], (4, 5, len(N))).copy())
    given = Curves(N, weights, np.array([0, 1, 1, 1]), 1024, 1024.0)
    assert np.allclose(forecast(given, 2048.0).weight, 0.5)
    check = checked(given)
    assert check.left_out == "texts"
    assert check.count == 2 * 5
    assert check.width == pytest.approx(2.0)


def test_one_text_with_several_windows() -> None:
    check = checked(curves(slope=-0.6, texts=(0, 0, 0)))
    assert (check.left_out, check.way) == ("windows", "pooled law")
    assert check.count == 3 * HEADS
    assert "on windows of the same text, left out in turn" in check.sentence


def test_one_window() -> None:
    check = checked(curves(slope=-0.6, texts=(0,)))
    assert (check.left_out, check.way) == ("nothing", "pooled law")
    assert check.count == HEADS
    assert "on the same window, for want of another" in check.sentence
    assert check.errors["shrunk law"] == pytest.approx(check.errors["pooled law"])  # one window says nothing of chance


def test_what_was_not_measured_is_left_out() -> None:
    given = curves(slope=-0.6)
    plain = checked(given)
    given.weights[:, 0] = np.nan  # a head without any weight
    given.weights[0, 1, -1] = np.nan  # one window of another
    given.weights[:, 2, 0] = np.nan  # the shortest rows of a third: no slope of its own
    check, ahead = checked(given), forecast(given, 4096.0)
    assert check.way == plain.way
    assert check.count == plain.count - 4 - 1
    assert check.coverage == pytest.approx(plain.coverage, abs=0.03)  # what is missing is no miss
    assert check.width == pytest.approx(plain.width, rel=0.2)
    assert math.isnan(ahead.weight[0])
    assert np.isfinite(ahead.weight[1:]).all()
    shrunk = forecast(given, 4096.0, replace(check, way="shrunk law"))
    assert np.isfinite(shrunk.weight[1:]).all()


@pytest.mark.parametrize("lengths", [2, 3])
def test_too_few_lengths_for_a_law(lengths: int) -> None:
    given = curves(slope=-0.6, n=N[-lengths:])
    check = checked(given)
    assert check.way == "no change"
    assert list(check.errors) == ["no change"]
    assert "too few lengths for a law" in check.sentence
    assert check.step == pytest.approx(2 ** (lengths - 1))  # two lengths check less of a step
    assert forecast(given, 4096.0).is_checked == (lengths == 3)
    assert forecast(given, 2048.0).is_checked
    widths = [fit.logit(each.high) - fit.logit(each.weight) for each in (forecast(given, n) for n in (2048.0, 4096.0))]
    assert np.allclose(widths[1], widths[0] * (2 if lengths == 2 else 1))


def test_certain_weights_are_finite() -> None:
    given = curves(texts=(0, 1))
    given.weights[:, 0], given.weights[:, 1] = 0.0, 1.0
    ahead = forecast(given, 8192.0)
    assert np.isfinite([ahead.weight, ahead.low, ahead.high]).all()
    assert ahead.weight[0] == pytest.approx(0.0, abs=1e-5)
    assert ahead.weight[1] == pytest.approx(1.0, abs=1e-5)


def test_one_length_checks_nothing() -> None:
    given = curves(n=N[-1:])
    now, ahead = forecast(given, 1024.0), forecast(given, 4096.0)
    assert now.is_checked
    assert not ahead.is_checked
    assert (ahead.low == 0.0).all()
    assert (ahead.high == 1.0).all()
    assert np.array_equal(ahead.weight, now.weight)
