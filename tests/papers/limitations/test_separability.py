"""N_s/N by matrix products against the definition in float64 and in fractions; bounds, controls and the whole run."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.papers.limitations.test_gradient import saved_gpt2
from undilute.errors import InvalidValue
from undilute.report.result import Result
from undilute_papers.audit.geometry import printed_upper
from undilute_papers.audit.geometry import smallest_separation as compared_one_by_one
from undilute_papers.limitations.separability import Separability, controls
from undilute_papers.limitations.separability.balls import BOUNDS, Ball, balls, smallest_separation, theorem, unit
from undilute_papers.limitations.separability.controls import CONTROLS, DRAWS, control_shares
from undilute_papers.limitations.separability.separability_findings import comparisons, sentences
from undilute_papers.reproduction.attended import Layer, each_layer, loaded
from undilute_papers.theory import separability as theory

HEADS, KEYS, FEATURES, TOPS = 3, 20, 6, [1, 2, 5, 13, 19]


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def causal(rows: int, keys: int) -> Tensor:
    return torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)


def vectors(kind: str) -> Tensor:
    x = unit(draw(1, HEADS, KEYS, FEATURES))
    if kind == "anisotropic":
        return unit(x + unit(draw(2, HEADS, 1, FEATURES)))
    if kind == "repeated":
        return x[:, torch.arange(KEYS) % 7]
    if kind == "orthonormal":
        return torch.eye(KEYS, dtype=torch.float64).expand(HEADS, -1, -1)
    return x


@pytest.mark.parametrize("kind", ["independent", "anisotropic", "repeated", "orthonormal"])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 4.0])
def test_shares_are_the_definitions(kind: str, sharpness: float) -> None:
    visible, x = causal(KEYS, KEYS), vectors(kind)
    logits = (sharpness * draw(3, HEADS, KEYS, KEYS)).masked_fill(~visible, -torch.inf)
    logits += 1e-3 * draw(4, HEADS, KEYS, KEYS)  # no ties: the definition's lengths would break them by rounding
    weights = logits.softmax(-1)
    for top, ball in zip(TOPS, balls(weights, x, TOPS, visible), strict=True):
        counted = (visible.sum(-1) > top).expand(HEADS, -1)
        expected = theory.separable_fraction(weights, x[:, None], top, visible=visible.expand_as(weights))
        closed = theory.separable_fraction(weights, x[:, None], top, strict=False, visible=visible.expand_as(weights))
        assert torch.equal(ball.share.isfinite(), counted)
        assert_close(ball.share[counted], expected.fraction[counted], atol=0, rtol=0)
        assert_close(ball.closed[counted], closed.fraction[counted], atol=0, rtol=0)
        assert_close(ball.boundary[counted], closed.intruders[counted].double(), atol=0, rtol=0)
        assert_close(ball.radius[counted], expected.radius[counted], atol=1e-12, rtol=1e-9)
        assert_close(ball.selected, weights.sort(-1, descending=True).values[..., :top])
        if kind == "orthonormal" or top == 1:
            assert (ball.share[counted] == 1).all()


def in_fractions(weights: list[float], x: list[list[int]], top: int) -> tuple[int, int, int]:
    """N_s with the open and the closed ball, and how many of the others the closed one holds; exactly."""
    w = [Fraction(each) for each in weights]
    order = sorted(range(len(w)), key=lambda i: -w[i])
    selected, others = order[:top], order[top:]
    s = [sum((w[i] * x[i][k] for i in selected), Fraction(0)) for k in range(len(x[0]))]
    squared = [sum((s_k - w[i] * x_k) ** 2 for s_k, x_k in zip(s, x[i], strict=True)) for i in range(len(w))]
    r = min(squared[i] for i in others)
    inside, within = sum(squared[i] < r for i in selected), sum(squared[i] <= r for i in selected)
    return inside, within, sum(squared[i] <= r for i in others)


@pytest.mark.parametrize("tail", [2.0**-4, 2.0**-40, 2.0**-100])
@pytest.mark.parametrize("top", [1, 2, 3, 4, 5])
def test_rows_near_one_hot_and_with_ties_are_exact(tail: float, top: int) -> None:
    # beside a weight of 1 lengths differ by less than float64 can say: the definition in float64 would call them equal
    weights = [1.0, 5 * tail, 4 * tail, 3 * tail, 3 * tail, 2 * tail, tail, 0.0]
    x = [[2, 0, 1], [1, 1, 0], [0, -1, 2], [1, 0, 0], [1, 0, 0], [-3, 1, 1], [2, 1, -1], [1, 1, 1]]
    ball = balls(
        torch.tensor([[weights]], dtype=torch.float64),
        torch.tensor([x], dtype=torch.float64),
        [top],
        torch.ones(1, len(weights), dtype=torch.bool),
    )[0]
    inside, within, boundary = in_fractions(weights, x, top)
    assert (within > inside) == (top == 4)  # one of two equal tokens is selected: the closed ball counts it
    assert (ball.share.item() * top, ball.closed.item() * top, ball.boundary.item()) == (inside, within, boundary)


def test_hidden_keys_and_their_vectors_change_nothing() -> None:
    visible, x = causal(8, KEYS), vectors("independent")
    weights = draw(5, HEADS, 8, KEYS).masked_fill(~visible, -torch.inf).softmax(-1)
    wild = x.clone()
    wild[:, -1] = 1e6
    one, other = balls(weights, x, [3], visible)[0], balls(weights, wild, [3], visible)[0]
    assert_close(one.share[:, :-1], other.share[:, :-1], atol=0, rtol=0)
    assert_close(one.radius[:, :-1], other.radius[:, :-1])


def test_heads_that_share_their_vectors() -> None:
    shared = unit(draw(6, KEYS, FEATURES).expand(HEADS, -1, -1))
    assert shared.stride(0) == 0
    weights, visible = draw(7, HEADS, 5, KEYS).softmax(-1), torch.ones(5, KEYS, dtype=torch.bool)
    for one, other in zip(
        balls(weights, shared, TOPS, visible), balls(weights, shared.contiguous(), TOPS, visible), strict=True
    ):
        assert_close(one.share, other.share)
        assert_close(one.radius, other.radius)
    assert_close(smallest_separation(shared), smallest_separation(shared.contiguous()))


@pytest.mark.parametrize("block", [3, 7, 1024])
def test_smallest_separation(block: int) -> None:
    x = vectors("anisotropic")
    assert_close(smallest_separation(x, block), compared_one_by_one(x), atol=1e-12, rtol=1e-9)
    assert smallest_separation(vectors("repeated"), block).max() < 1e-7


def test_theorem_is_evaluated_row_by_row() -> None:
    weights, x = draw(8, HEADS, 4, KEYS).softmax(-1), vectors("independent")
    visible = causal(4, KEYS)
    visible[0, 5:] = False
    ball = balls(weights, x, [5], visible)[0]
    delta = smallest_separation(x)
    found = theorem(ball, delta, FEATURES)
    assert found[:, :, 0].isnan().all()  # that row sees no more than it selects
    for head in range(HEADS):
        for row in range(1, 4):
            alpha, r = ball.selected[head, row], ball.radius[head, row]
            bounds = theory.probability_bounds(alpha, r, FEATURES)
            expected = {
                "certain": theory.certain_fraction(alpha, r, delta[head]),
                "lower": bounds.fraction_lower,
                "upper": bounds.fraction_upper,
                "printed_upper": printed_upper(alpha, r, delta[head]),
            }
            assert_close(found[:, head, row], torch.stack([expected[name] for name in BOUNDS]))
    assert not theorem(Ball(*(part[:, :1] for part in ball)), delta, FEATURES).isfinite().any()


def test_controls_are_the_definition_on_the_same_draws() -> None:
    length, tops, rng = 48, [1, 4, 16], torch.Generator().manual_seed(5)
    lines = control_shares(length, tops, seed=5)
    for name, features in CONTROLS.items():
        drawn = [controls.draw(name, length, features or length, rng) for _ in range(DRAWS)]
        for top in tops:
            shares = torch.cat([theory.separable_fraction(w, x, top).fraction for w, x in drawn])
            line = next(line for line in lines if line["control"] == name and line["N"] == top)
            assert line["mean"] == pytest.approx(float(shares.mean()), abs=1e-12)
            assert (line["lowest"], line["highest"]) == (float(shares.min()), float(shares.max()))
            if name == "orthonormal":
                assert line["lowest"] == 1


def test_what_the_controls_are() -> None:
    rng = torch.Generator().manual_seed(0)
    for name, features in CONTROLS.items():
        weights, x = controls.draw(name, 200, features or 200, rng)
        assert_close(weights.sum(-1), torch.ones(DRAWS, dtype=torch.float64))
        assert_close(x.norm(dim=-1), torch.ones(200, dtype=torch.float64))
        cosines = (x @ x.T)[torch.triu_indices(200, 200, 1).unbind()]
        expected = 0.5 if name.startswith("common") else 0.0
        assert float(cosines.mean()) == pytest.approx(expected, abs=0.03)
        assert bool((weights[:, 0] == 0.97).all()) == name.startswith("sharp")
        assert float(weights[:, 1:].amax()) < 0.2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return saved_gpt2(tmp_path_factory.mktemp("separability"))


@pytest.mark.parametrize("x", ["embedding", "values", "input"])
def test_a_run_is_the_definition_on_every_head(folder: tuple[str, str], x: Any) -> None:
    name, text = folder
    tops = (1, 4, 16, 63)
    result = Separability(model=name, text=(text,), length=64, tops=tops, x=x, rows=0).run()
    model, ids = loaded(name, (text,), 64)
    shares: list[Tensor] = []

    def use(layer: Layer) -> None:
        vectors = torch.nn.functional.normalize(layer.x.double(), dim=-1)[:, None]
        seen = layer.visible.expand(layer.logits.shape)
        found = [theory.separable_fraction(layer.weights.double(), vectors, top, visible=seen).fraction for top in tops]
        counted = [fraction[:, top:].mean(-1) for top, fraction in zip(tops, found, strict=True)]
        shares.append(torch.stack(counted, -1))

    each_layer(model, ids, use, x=x)
    expected = torch.cat(shares)
    heads = torch.tensor([[float(line[f"N={top}"] or 0) for top in tops] for line in result.tables["heads"]])
    assert_close(heads.double(), expected, atol=1e-6, rtol=0)
    lines = result.tables["by_top"]
    assert [line["rows"] for line in lines] == [64 - top for top in tops]
    assert [line["median"] for line in lines] == pytest.approx(expected.quantile(0.5, 0).tolist(), abs=1e-6)
    assert all(line["below_certain"] == 0 for line in lines)
    assert lines[0]["above_printed_upper"] == lines[0]["cases"]  # N = 1: the share is 1, the printed bound less


def test_a_run_says_what_it_found(folder: tuple[str, str]) -> None:
    name, text = folder
    told: list[float] = []
    experiment = Separability(model=name, text=(text,), length=64, tops=(32, 2, 16), rows=8, seed=1)
    result = experiment.run(lambda share, doing: told.append(share))
    check_result(result, ["separability", "controls"])
    assert told == sorted(told)
    assert told[-1] <= 1
    assert [line["N"] for line in result.tables["by_top"]] == [2, 16, 32]
    assert "tokens' embedding" in result.findings[-1]
    assert result.findings[0].startswith(f"{name} on 64 tokens of text.txt: the median head of 8 separates")
    assert not any("sliding window" in each for each in result.findings)


def check_result(result: Result, charts: list[str]) -> None:
    """What every result must be: tables of equal keys, finite charts, sentences."""
    assert [chart.name for chart in result.charts] == charts
    for table in result.tables.values():
        assert table
        assert len({tuple(row) for row in table}) == 1
    for chart in result.charts:
        assert 1 <= len(chart.series) <= 7
        for series in chart.series:
            columns = [series.x, series.y, series.low or series.y, series.high or series.y, series.boxes or series.y]
            assert {len(column) for column in columns} == {len(series.x)}
            assert all(math.isfinite(value) for value in [*series.x, *series.y])
    assert all(sentence.endswith(".") and "nan" not in sentence for sentence in result.findings)


def line(top: int, median: float, highest: float = 0.9, bound: float = 0.95) -> dict[str, float]:
    return {"N": top, "median": median, "highest": highest, "bound_printed_upper": bound}


@pytest.mark.parametrize(
    ("medians", "verdict"),
    [
        ({1: 1.0, 4: 0.9, 16: 0.8, 64: 0.75, 512: 0.8}, "agrees"),
        ({1: 1.0, 4: 0.9, 16: 0.8, 64: 0.60, 512: 0.8}, "differs"),
        ({1: 1.0, 2: 0.8, 4: 0.9, 16: 0.8, 64: 0.75, 512: 0.8}, "differs"),
        ({1: 1.0, 2: 0.8, 4: 0.8, 16: 0.8, 64: 0.8, 512: 0.8}, "differs"),  # flat from N = 2 on: no decline
        ({1: 1.0, 16: 0.8, 64: 0.75, 512: 0.8}, "other set-up"),  # N = 1 is 1 by definition
        ({32: 0.8, 64: 0.75}, "other set-up"),
        ({32: 0.8, 64: 0.65}, "differs"),  # no decline can be told, but neither is this the plateau
        ({2: 0.9, 16: 0.8}, "other set-up"),
        ({2: 0.7, 16: 0.8}, "differs"),
    ],
)
def test_verdict_on_the_plateau(medians: dict[int, float], verdict: str) -> None:
    compared = comparisons([line(top, median) for top, median in medians.items()], [])
    assert compared[0].verdict == verdict
    assert ("does not decline" in str(compared[0].computed)) == (medians.get(2) in (0.7, 0.8))
    assert compared[1].verdict == "agrees"  # no control exceeds the ceiling: none was given


@pytest.mark.parametrize(("highest", "verdict"), [(0.93, "agrees"), (0.96, "differs"), (0.8, "differs")])
def test_verdict_on_the_printed_upper_bound(highest: float, verdict: str) -> None:
    one = line(1, 1.0, 1.0, bound=0.9)  # every head exceeds it, by definition: it does not count
    assert comparisons([one, line(16, 0.8, highest)], [])[-1].verdict == verdict


def counted(top: int, over: int) -> dict[str, float]:
    counts = {"cases": 100, "above_printed_upper": over, "below_certain": 0, "heads": 5, "heads_outside_corrected": 2}
    balls = {"closed_ball_mean": 0.8, "open_ball_mean": 0.8, "left_out_in_closed_ball": 1.0}
    return {"N": top, "median": 0.8, **counts, **balls}


def test_counts_of_missed_bounds_leave_one_token_out() -> None:
    controls = control_shares(64, [2], seed=0)
    told = " ".join(sentences([counted(1, 100), counted(2, 7), counted(4, 0)], controls, 5, "embedding", "m on t"))
    assert "in 7 of 200 cases (a head, a row, an N ≥ 2; N = 1 is left out" in told
    assert "miss the mean of 4 of 10 pairs" in told
    assert "cases" not in " ".join(sentences([counted(1, 100)], controls, 5, "embedding", "m on t"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"x": "keys"}, "^--x = 'keys': must be 'values', 'input' or 'embedding'"),
        ({"tops": (0,)}, "^--tops = 0: must be a whole number of at least 1"),
        ({"tops": ()}, "^--tops = .* numbers of selected tokens below --length"),
        ({"tops": (64,), "length": 64}, "below --length = 64, or nothing is left out"),
        ({"rows": -1}, "^--rows = -1"),
    ],
)
def test_refuses(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=says):
        Separability(model=str(tmp_path / "not looked at"), **options).run()
