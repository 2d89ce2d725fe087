"""Every measure once more, from its formula: one row at a time, dense, float64, obvious and slow.

A row here holds only the keys that it sees, so that a masked key is a key that is not there by construction. Where a
formula leaves a choice (which of several equal keys are the N heaviest) or turns on a comparison of equal lengths (the
open ball of N_s/N), the oracle gives every admissible answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One query of one head and the keys it sees.

    Attributes
    ----------
    z : (n,), logits
    key : (n,), the keys' indices
    own : index of the query's own key
    is_sink : (n,) bool, which keys count as sink
    x : (n, features), what the weights select from
    outside : logit of a learned sink that is no key; −∞ without one
    reach : ‖q‖·max‖k‖·scale, or NaN
    top, recent : what is counted
    hair : lengths that differ by less than this share of the longest may compare either way
    """

    z: Vector
    key: NDArray[np.int64]
    own: int
    is_sink: NDArray[np.bool_]
    x: Vector
    outside: float = -math.inf
    reach: float = math.nan
    top: int = 5
    recent: int = 64
    hair: float = 1e-7

    @property
    def n(self) -> int:
        return len(self.z)

    @property
    def p(self) -> Vector:
        """Softmax over the keys."""
        if self.n == 0:
            return np.zeros(0)
        e = np.exp(self.z - self.z.max())
        return np.asarray(e / e.sum())

    @property
    def kept(self) -> float:
        """The share of the attention that goes to keys: Σe^z / (Σe^z + e^outside)."""
        if self.n == 0:
            return 1.0 if self.outside == -math.inf else 0.0
        highest = max(self.z.max(), self.outside)
        keys = np.exp(self.z - highest).sum()
        return float(keys / (keys + math.exp(self.outside - highest)))

    @property
    def weights(self) -> Vector:
        """What each value is multiplied by."""
        return self.p * self.kept

    @property
    def without_sink(self) -> Row:
        rest = ~self.is_sink
        return replace(
            self, z=self.z[rest], key=self.key[rest], is_sink=self.is_sink[rest], x=self.x[rest], outside=-math.inf
        )


@dataclass(frozen=True)
class Between:
    """An answer that rounding may move: anything from ``low`` to ``high``."""

    low: float
    high: float


Answer = float | Between
Oracle = Callable[[Row], Answer | list[Answer]]


def entropy(row: Row) -> float:
    p = row.p[row.p > 0]
    return float(-(p * np.log(p)).sum())


def normalised_entropy(row: Row) -> float:
    return 1.0 if row.n <= 1 else entropy(row) / math.log(row.n)


def heaviest_share(weights: Vector) -> float:
    return float(weights.max(initial=0.0))


def top_mass(row: Row) -> float:
    return float(np.sort(row.weights)[::-1][: row.top].sum())


def attended_distance(row: Row) -> float:
    return float((row.p * np.abs(row.own - row.key)).sum())


def recent_share(row: Row) -> float:
    return float(row.p[np.abs(row.own - row.key) < row.recent].sum())


def logit_spread(row: Row) -> float:
    return 0.0 if row.n == 0 else float(row.z.max() - row.z.min())


def weight_ceiling(row: Row) -> float:
    return 1.0 if row.n == 0 else 1.0 / (1.0 + (row.n - 1) * math.exp(-logit_spread(row)))


def lead(row: Row) -> float:
    z = np.sort(row.z)
    return math.inf if row.n < 2 else float(z[-1] - z[-2])


def sink_share(row: Row) -> float:
    return float(row.weights[row.is_sink].sum()) + 1.0 - row.kept


def multiplied(row: Row, beta: float) -> float:
    """What softmax(β·z) over the keys gives the heaviest."""
    return heaviest_share(replace(row, z=beta * row.z).p)


def jacobian_norm(row: Row) -> float:
    """The largest eigenvalue of the dense diag(p) − ppᵀ; a learned sink counts as one more key."""
    p = np.append(row.weights, 1.0 - row.kept)
    return float(np.linalg.eigvalsh(np.diag(p) - np.outer(p, p))[-1])


def heaviest_sets(row: Row) -> Iterator[NDArray[np.bool_]]:
    """Every set of the N keys with the largest logits: more than one where logits are equal at the border."""
    count = min(row.top, row.n)
    if count == 0:
        yield np.zeros(row.n, dtype=bool)
        return
    border = np.sort(row.z)[::-1][count - 1]
    sure, equal = np.flatnonzero(row.z > border), np.flatnonzero(row.z == border)
    for chosen in itertools.combinations(equal, count - len(sure)):
        selected = np.zeros(row.n, dtype=bool)
        selected[[*sure, *chosen]] = True
        yield selected


def lengths_to_context(row: Row, selected: NDArray[np.bool_]) -> Vector:
    """‖pᵢxᵢ − s‖ of every key."""
    v = row.p[:, None] * row.x
    return np.asarray(np.linalg.norm(v - v[selected].sum(0), axis=-1))


def distance(row: Row) -> list[Answer]:
    return [float(lengths_to_context(row, selected)[~selected].sum()) for selected in heaviest_sets(row)]


def distance_bound(row: Row) -> list[Answer]:
    def bound(selected: NDArray[np.bool_]) -> float:
        if selected.all():
            return 0.0
        A, lengths = row.p[selected].sum(), np.linalg.norm(row.x, axis=-1)
        return float((1 - A) * lengths[~selected].max() + A * (~selected).sum() * lengths[selected].max())

    return [bound(selected) for selected in heaviest_sets(row)]


def separable_fraction(row: Row) -> list[Answer]:
    """Between the counts inside a ball a hair smaller and a hair larger than the open one."""

    def fraction(selected: NDArray[np.bool_]) -> Answer:
        if row.n == 0:
            return 0.0
        lengths = lengths_to_context(row, selected)
        radius = lengths[~selected].min(initial=math.inf)
        hair = row.hair * lengths.max()
        low, high = (int((lengths[selected] < radius + move).sum()) / int(selected.sum()) for move in (-hair, hair))
        return Between(low, high)

    return [fraction(selected) for selected in heaviest_sets(row)]


def expected_distance(row: Row, *, upper: bool) -> float:
    """(1−N/n) Σ cᵢ or (1−N/n) Σ √(cᵢ² + Vᵢ), Vᵢ the variance of a sample of N of the others without replacement."""
    n, N = row.n, min(row.top, row.n)
    if n == N:
        return 0.0
    v, q = row.p[:, None] * row.x, N / (n - 1)
    total = 0.0
    for i in range(n):
        c = np.linalg.norm((1 + q) * v[i] - q * v.sum(0))
        others = np.delete(v, i, axis=0)
        scatter = ((others - others.mean(0)) ** 2).sum()
        variance = q * (n - 1 - N) / (n - 2) * scatter if n > 2 else 0.0
        total += math.sqrt(c**2 + variance) if upper else float(c)
    return (1 - N / n) * total


def without_sink(oracle: Oracle) -> Oracle:
    return lambda row: oracle(row.without_sink)


ORACLES: dict[str, Oracle] = {
    "entropy": entropy,
    "n_eff": lambda row: math.exp(entropy(row)),
    "normalised_entropy": normalised_entropy,
    "top_weight": lambda row: heaviest_share(row.weights),
    "top_mass": top_mass,
    "collision": lambda row: float((row.p**2).sum()),
    "attended_distance": attended_distance,
    "recent_share": recent_share,
    "lead": lead,
    "top_weight_doubled": lambda row: multiplied(row, 2.0),
    "top_weight_quadrupled": lambda row: multiplied(row, 4.0),
}
ORACLES |= {f"{name}_without_sink": without_sink(oracle) for name, oracle in ORACLES.items()}
ORACLES |= {
    "sink_share": sink_share,
    "logit_spread": logit_spread,
    "spread_bound": lambda row: 2 * row.reach,
    "weight_ceiling": weight_ceiling,
    "jacobian_norm": jacobian_norm,
    "distance": distance,
    "expected_distance": lambda row: expected_distance(row, upper=False),
    "expected_distance_upper": lambda row: expected_distance(row, upper=True),
    "distance_bound": distance_bound,
    "separable_fraction": separable_fraction,
}


def deviation(got: float, name: str, row: Row) -> float:
    """How far ``got`` is from the nearest admissible answer; 0 for two NaNs or two equal infinities."""
    answer = ORACLES[name](row)
    answers = answer if isinstance(answer, list) else [answer]
    return min(_apart(got, each) for each in answers)


def _apart(got: float, answer: Answer) -> float:
    if isinstance(answer, Between):
        return max(answer.low - got, got - answer.high, 0.0)
    if got == answer or (math.isnan(got) and math.isnan(answer)):
        return 0.0
    return math.inf if math.isnan(got) else abs(got - answer)


def tolerance(name: str, row: Row, eps: float, *, cancelling: bool = False) -> float:
    """The largest deviation that rounding explains, for arithmetic of precision ``eps``.

    A weight e^(z−m)/Σ has a relative error of about (|z−m| + n)·eps, and is 0 once |z−m| > 750; a logit q·k has an
    error of eps times the ``reach``, whatever it is itself. Lengths come from expanded squares: where vectors are equal
    (``cancelling``), nothing but the rounding is left under the root.
    """
    reach = 0.0 if math.isnan(row.reach) else row.reach
    share = 2 * eps * (1 + min(logit_spread(row), 750.0) + row.n + reach)
    stem = name.removesuffix("_without_sink")
    if stem in ("logit_spread", "lead", "spread_bound"):
        return 4 * eps * float(np.abs(row.z).max(initial=0.0) + reach)
    if stem in ("distance", "expected_distance", "expected_distance_upper", "distance_bound"):
        longest = float(np.linalg.norm(row.x, axis=-1).max(initial=0.0))
        return (1 + row.n) * longest * (share + (2 * math.sqrt(eps) if cancelling else 0.0))
    if stem in ("n_eff", "entropy"):
        return share * (1 + row.n)
    if stem == "attended_distance":
        return share * (1 + float(np.abs(row.own - row.key).max(initial=0)))
    return share
