"""docs/entmax-users.md: what it calls equal is equal, its code runs, and what it says of the package is so."""

from __future__ import annotations

import re
from pathlib import Path

import entmax as package
import pytest
import torch

import undilute as ud
from tests.cases import rows, some_mask

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "entmax-users.md").read_text()
PAIRS = re.findall(r"^\| `(.+)` \| `(ud\..+\(X.*)` \|$", PAGE, re.MULTILINE)
GIVEN = {
    "torch": torch,
    "ud": ud,
    "X": rows(5, 7, seed=1),
    "y": torch.tensor([0, 3, 6, 2, 2]),
    "alphas": torch.tensor([0.3, 0.9, 1.2, 1.5, 2.5], dtype=torch.float64)[:, None],
    "mask": some_mask(5, 7, seed=2),
}
PUBLIC = {name for name in vars(package) if not name.startswith("_") and callable(getattr(package, name))}


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_both_columns_are_the_same(theirs: str, ours: str) -> None:
    expected = eval(theirs, {**GIVEN, **vars(package)})
    torch.testing.assert_close(eval(ours, dict(GIVEN)), expected, rtol=0, atol=1e-9)


def test_the_table_has_everything_the_package_has() -> None:
    assert len(PAIRS) == 26
    assert {re.split(r"\W", theirs)[0] for theirs, _ in PAIRS} == PUBLIC


def test_its_code_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    exec("\n".join(blocks), {})


def test_what_it_says_of_rows_that_see_nothing() -> None:
    nothing = torch.full((1, 4), -torch.inf)
    for exact in (package.sparsemax, package.entmax15):
        with pytest.raises(RuntimeError, match="index -1 is out of bounds"):
            exact(nothing)
    for bisected in (package.entmax_bisect, package.normmax_bisect, package.budget_bisect):
        assert bisected(nothing).isnan().all()
    assert package.budget_bisect(torch.tensor([[0.5, 0.1, -torch.inf]])).isnan().all()
    for name in ("sparsemax", "entmax15", "entmax", "normmax", "budget"):
        assert (ud.rules.get(name)(nothing) == 0).all()


def test_what_it_says_of_alphas() -> None:
    z = rows(6, 50, seed=3, spread=1.0)
    exact = ud.rules.get("entmax", alpha=1 + 1e-6)(z)
    assert 1e-3 < (package.entmax_bisect(z.float(), 1 + 1e-6) - exact).abs().max() < 1e-2
    assert (ud.rules.get("entmax", alpha=1 + 1e-6)(z.float()) - exact).abs().max() < 1e-6
    assert package.entmax_bisect_loss(z, torch.zeros(6).long(), torch.full((6, 1), 1.5).double()).shape == (6, 6)


def test_what_it_says_of_normmax_below_one() -> None:
    z = rows(6, 50, seed=3, spread=1.0)
    theirs, best = package.normmax_bisect(z, 0.5), ud.rules.Hard()(z, torch.ones_like(z).bool())
    objective, largest = ((p * z).sum(-1) - p.sqrt().sum(-1) ** 2 for p in (theirs, best))
    assert (objective < largest - 1).all()
    assert package.normmax_bisect(3 * z[:, :4], 0.5).isnan().any()


def test_what_it_says_of_ignored_rows() -> None:
    with pytest.raises(RuntimeError, match="index -100 is out of bounds"):
        package.SparsemaxLoss()(torch.zeros(2, 3), torch.tensor([0, -100]))
    assert ud.losses.SparsemaxLoss()(torch.zeros(2, 3), torch.tensor([0, -100])).isfinite()
