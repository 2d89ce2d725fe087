"""Every verdict reproduces from any seed, and a wrong formula in any place makes its check fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.papers.audit import (
    wrong_blog,
    wrong_dispersion_lemmas,
    wrong_focus,
    wrong_geometry,
    wrong_gradients,
    wrong_selection,
    wrong_sharp,
    wrong_sparse_rules,
)
from undilute_papers.audit import Statement, statements

WRONG = [
    *wrong_blog.WRONG,
    *wrong_dispersion_lemmas.WRONG,
    *wrong_selection.WRONG,
    *wrong_geometry.WRONG,
    *wrong_gradients.WRONG,
    *wrong_sharp.WRONG,
    *wrong_sparse_rules.WRONG,
    *wrong_focus.WRONG,
]


@pytest.mark.parametrize("seed", [0, 1, 2026])
@pytest.mark.parametrize("each", statements(), ids=lambda each: each.id)
def test_verdicts_reproduce(each: Statement, seed: int) -> None:
    result = each.run(seed)
    assert result.reproduces, [finding for finding in result.findings if not finding.as_stated]


@pytest.mark.parametrize(
    ("id", "form", "wrong"), WRONG, ids=[f"{id}-{form}-{i}" for i, (id, form, _) in enumerate(WRONG)]
)
def test_a_wrong_formula_is_noticed(id: str, form: str, wrong: Any) -> None:
    [each] = statements(id)
    assert not each.run(0, **{form: wrong}).reproduces


def test_every_formula_is_put_to_the_test() -> None:
    assert {(each.id, form) for each in statements() for form in each.forms} == {(id, form) for id, form, _ in WRONG}


@pytest.mark.parametrize("each", [each for each in statements() if each.curve], ids=lambda each: each.id)
def test_curves_are_finite_lines_over_their_axis(each: Statement) -> None:
    assert each.curve is not None
    curve = each.curve()
    for line in curve.lines.values():
        assert len(line) == len(curve.x)
        assert torch.tensor(line).isfinite().all()
