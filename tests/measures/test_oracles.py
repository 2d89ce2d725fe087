"""Every registered measure equals its dense float64 oracle, in single and double precision, in every odd case."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.measures.oracles import ORACLES, Row, deviation, tolerance
from undilute import theory
from undilute.measures import registry
from undilute.measures.attention_rows import Rows, Settings
from undilute_papers.theory import distance, separability

HEADS, KEY_HEADS, KEYS, FEATURES = 4, 2, 14, 6
MEASURES = registry.every()
SETTINGS = Settings(top=3, sinks=1, recent=4)


@dataclass(frozen=True)
class Case:
    """Rows in float64, to be measured in any precision."""

    logits: Tensor
    visible: Tensor | None = None
    own: Tensor | None = None
    first: int = 0
    outside: Tensor | None = None
    reach: Tensor | None = None
    x: Tensor | None = None
    settings: Settings = SETTINGS
    cancelling: bool = False

    def rows(self, dtype: torch.dtype = torch.float64) -> Rows:
        def to(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(dtype)

        count, keys = self.logits.shape[1:]
        own = torch.arange(keys - count, keys) if self.own is None else self.own
        x = vectors(keys) if self.x is None else self.x
        return Rows(
            self.logits.to(dtype),
            self.visible,
            own,
            self.first,
            to(self.outside),
            to(self.reach),
            x.to(dtype),
            self.settings,
        )


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logits(count: int = 5, keys: int = KEYS, *, spread: float = 2.0, seed: int = 0) -> Tensor:
    return spread * normal(HEADS, count, keys, seed=seed)


def vectors(keys: int, seed: int = 9) -> Tensor:
    return normal(KEY_HEADS, keys, FEATURES, seed=seed)


def causal(count: int, keys: int) -> Tensor:
    return torch.arange(keys) <= torch.arange(keys - count, keys)[:, None]


def padded(count: int, keys: int, left: int) -> Tensor:
    return causal(count, keys) & (torch.arange(keys) >= left)


def with_holes(*shape: int, seed: int) -> Tensor:
    """Random masks in which each row sees its last key."""
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask[..., -1] = True
    return mask


SINK = torch.zeros(KEYS, dtype=torch.float64).index_fill(0, torch.tensor([0]), 60.0)
CASES = {
    "random": Case(logits()),
    "sharp": Case(logits(spread=12.0)),
    "flat": Case(logits(spread=1e-3)),
    "causal": Case(logits(KEYS), causal(KEYS, KEYS)),
    "left padding": Case(logits(KEYS - 4), padded(KEYS - 4, KEYS, left=4), first=4),
    "right padding": Case(
        logits(7), causal(7, 7).repeat(1, 2).index_fill(1, torch.arange(7, 14), False), torch.arange(7)
    ),
    "both sides seen": Case(logits(KEYS), None, torch.arange(KEYS)),
    "window": Case(logits(KEYS), causal(KEYS, KEYS) & ~torch.ones(KEYS, KEYS).tril(-4).bool(), torch.arange(KEYS)),
    "holes": Case(logits(), with_holes(5, KEYS, seed=3)),
    "holes per head": Case(logits(), with_holes(HEADS, 5, KEYS, seed=4)),
    "one key": Case(logits(1, 1)),
    "one visible key": Case(logits(1), torch.arange(KEYS)[None] == 6),
    "two keys": Case(logits(2, 2)),
    "fewer keys than top": Case(logits(2, 3), settings=Settings(top=5, sinks=1, recent=4)),
    "equal logits": Case(torch.full((HEADS, 3, 7), 1.5, dtype=torch.float64), causal(3, 7)),
    "equal logits and vectors": Case(
        torch.zeros(HEADS, 3, 7, dtype=torch.float64), x=torch.ones(KEY_HEADS, 7, FEATURES, dtype=torch.float64)
    ),
    "equal logits and vectors, top of one": Case(
        torch.zeros(HEADS, 3, 7, dtype=torch.float64),
        x=torch.full((KEY_HEADS, 7, FEATURES), 0.3, dtype=torch.float64),
        settings=Settings(top=1),
        cancelling=True,
    ),
    "some equal logits": Case(logits().round()),
    "huge logits": Case(1e4 * logits()),
    "huge equal logits": Case(torch.full((HEADS, 3, 7), -1e4, dtype=torch.float64)),
    "huge offset": Case(logits() + 1e4),
    "a row that sees nothing": Case(logits(), causal(5, KEYS).index_fill(0, torch.tensor([2]), False)),
    "no row sees anything": Case(logits(), torch.zeros(5, KEYS, dtype=torch.bool)),
    "sink takes everything": Case(logits() + SINK),
    "sink takes all but nothing": Case(logits() - SINK),
    "no sinks": Case(logits(), settings=Settings(top=3, sinks=0, recent=4)),
    "four sinks": Case(logits(), padded(5, KEYS, left=2), first=2, settings=Settings(top=3, sinks=4, recent=2)),
    "sinks partly dropped": Case(logits(), first=-2, settings=Settings(top=3, sinks=4, recent=2)),
    "sinks dropped": Case(logits(), first=-4, settings=Settings(top=3, sinks=4, recent=2)),
    "nothing but sinks": Case(logits(), settings=Settings(top=3, sinks=KEYS, recent=4)),
    "top of one": Case(logits(), settings=Settings(top=1, sinks=1, recent=1)),
    "top of one of huge logits": Case(1e4 * logits(), settings=Settings(top=1, sinks=1, recent=1)),
    "sink outside": Case(logits(), causal(5, KEYS), outside=normal(HEADS, 1, seed=5)),
    "sink outside takes most": Case(logits(), causal(5, KEYS), outside=30.0 + normal(HEADS, 1, seed=5)),
    "sink outside takes everything": Case(logits(), causal(5, KEYS), outside=1e3 + normal(HEADS, 1, seed=5)),
    "sink outside takes nothing": Case(logits(), causal(5, KEYS), outside=-1e3 + normal(HEADS, 1, seed=5)),
    "sink outside and nothing else": Case(
        logits(), torch.zeros(5, KEYS, dtype=torch.bool), outside=normal(HEADS, 1, seed=5)
    ),
    "reach is known": Case(logits(), reach=9.0 + normal(HEADS, 5, seed=6).abs()),
    "one key head": Case(logits(), x=normal(1, KEYS, 3, seed=7)),
    "a key head for each head": Case(logits(), x=normal(HEADS, KEYS, 3, seed=8)),
    "many keys": Case(logits(6, 80), causal(6, 80), settings=Settings(top=5, sinks=1, recent=16)),
    "more keys than torch sorts a part of": Case(logits(2, 600), causal(2, 600)),
    "many keys, and few are seen": Case(
        logits(2, 80), torch.arange(80).expand(2, -1) < torch.tensor([[3], [9]]), torch.tensor([2, 8])
    ),
    "many keys and a sink that takes everything": Case(
        logits(6, 80) + 60.0 * (torch.arange(80) < 2), causal(6, 80), settings=Settings(top=5, sinks=2, recent=16)
    ),
    "a row sees nothing but sinks": Case(
        logits(KEYS), causal(KEYS, KEYS), torch.arange(KEYS), settings=Settings(top=3, sinks=3, recent=4)
    ),
    "long vectors": Case(logits(), causal(5, KEYS), x=1e3 * vectors(KEYS)),
}


def oracle_row(rows: Rows, head: int, row: int) -> Row:
    """The oracle's view of one row: what it sees, in float64."""
    keys, dtype = rows.logits.shape[-1], rows.logits.dtype
    seen = torch.ones(keys, dtype=torch.bool)
    if rows.visible is not None:
        seen = rows.visible[row] if rows.visible.ndim == 2 else rows.visible[head, row]
    index = torch.arange(keys)[seen]
    assert rows.x is not None
    group = rows.logits.shape[0] // rows.x.shape[0]
    return Row(
        z=rows.logits[head, row, seen].double().numpy(),
        key=index.numpy(),
        own=int(rows.own[row]),
        is_sink=((index >= rows.first) & (index < rows.first + rows.settings.sinks)).numpy(),
        x=rows.x[head // group, seen].double().numpy(),
        outside=-math.inf if rows.outside is None else float(rows.outside[head]),
        reach=math.nan if rows.reach is None else float(rows.reach[head, row]),
        top=rows.settings.top,
        recent=rows.settings.recent,
        hair=8 * math.sqrt(torch.finfo(dtype).eps),
    )


def test_every_measure_has_an_oracle_and_no_oracle_is_idle() -> None:
    assert ORACLES.keys() == MEASURES.keys()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_measures_equal_their_oracles(case: Case, dtype: torch.dtype) -> None:
    rows = case.rows(dtype)
    heads, count = rows.logits.shape[:2]
    got = {name: measure.compute(rows) for name, measure in MEASURES.items()}
    assert {tuple(each.shape) for each in got.values()} == {(heads, count)}
    for head in range(heads):
        for row in range(count):
            seen = oracle_row(rows, head, row)
            for name, values in got.items():
                off = deviation(float(values[head, row]), name, seen)
                allowed = tolerance(name, seen, torch.finfo(dtype).eps, cancelling=case.cancelling)
                assert off <= allowed, f"{name}, head {head}, row {row}: {values[head, row]}, off by {off:.3g}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", MEASURES)
def test_a_masked_key_is_a_key_that_is_not_there(name: str, dtype: torch.dtype) -> None:
    """Hidden keys before and after, with any logits and vectors, against rows cut to what they see."""
    before, after = 3, 4
    cut = Case(logits(6, 8), causal(6, 8), outside=normal(HEADS, 1, seed=5), reach=normal(HEADS, 6, seed=6).abs())
    for garbage in (0.0, 50.0, -1e4, 1e4):
        whole = torch.nn.functional.pad
        masked = replace(
            cut,
            logits=whole(cut.logits, (before, after), value=garbage),
            visible=whole(causal(6, 8), (before, after), value=False),
            own=torch.arange(2, 8) + before,
            first=before,
            x=whole(vectors(8), (0, 0, before, after), value=garbage),
        )
        torch.testing.assert_close(
            MEASURES[name].compute(masked.rows(dtype)), MEASURES[name].compute(cut.rows(dtype)), equal_nan=True
        )


def test_a_mask_that_hides_nothing_is_no_mask() -> None:
    case = CASES["random"]
    everything = replace(case, visible=torch.ones(5, KEYS, dtype=torch.bool))
    per_head = replace(case, visible=torch.ones(HEADS, 5, KEYS, dtype=torch.bool))
    for name, measure in MEASURES.items():
        expected = measure.compute(case.rows())
        for same in (everything, per_head):
            assert torch.allclose(measure.compute(same.rows()), expected, rtol=1e-12, equal_nan=True), name


@pytest.mark.parametrize("case", ["random", "causal", "left padding", "holes", "sharp", "long vectors"])
def test_selection_measures_are_the_theorys(case: str) -> None:
    """``undilute.theory`` computes the same quantities with other formulas."""
    rows = CASES[case].rows()
    heads = rows.logits.shape[0]
    assert rows.x is not None
    x = rows.x.repeat_interleave(heads // rows.x.shape[0], 0)[:, None]  # (heads, 1, keys, features)
    p, top = rows.probabilities, rows.settings.top
    visible = None if rows.visible is None else rows.visible.expand(p.shape)
    expected = distance.expected_distance(p, x, top, visible)
    selected = distance.top_set(p, top, visible)
    theirs = {
        "distance": distance.selection_distance(p, x, selected, visible),
        "expected_distance": expected.lower,
        "expected_distance_upper": expected.upper,
        "separable_fraction": separability.separable_fraction(p, x, top, visible=visible).fraction,
        "jacobian_norm": theory.jacobian.spectral_norm(p, visible=visible),
    }
    for name, values in theirs.items():
        assert torch.allclose(MEASURES[name].compute(rows), values, rtol=1e-9), name
    bound = distance.top_distance_bound(p, x, top, visible)
    assert (MEASURES["distance_bound"].compute(rows) >= bound * (1 - 1e-9)).all()


def test_bounds_hold() -> None:
    """What the measures say of each other: no weight above its ceiling, no distance above its bound."""
    for rows in (case.rows() for case in CASES.values()):
        got = {name: measure.compute(rows).numpy() for name, measure in MEASURES.items()}
        slack = 1 + 1e-12
        assert (got["top_weight"] <= got["weight_ceiling"] * slack).all()
        assert (got["distance"] <= got["distance_bound"] * slack + 1e-7).all()
        assert (got["expected_distance"] <= got["expected_distance_upper"] * slack).all()
        assert (got["jacobian_norm"] <= 0.5 * slack).all()
        assert (got["n_eff"] <= np.maximum(rows.n.numpy(), 1) * slack).all()
        assert (got["n_eff"] >= 1).all()
        assert (got["normalised_entropy"] <= slack).all()
