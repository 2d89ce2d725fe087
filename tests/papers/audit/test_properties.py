"""What follows from what was measured; and that the search finds the steepness that is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from docs.tables import properties as property_table

from undilute.rules import Rule, get
from undilute.theory import focus
from undilute_papers.audit.properties import KEPT, LEAD, Properties, class_rows, properties

GOOD = Properties("good", (100, 1000), (0.1, 0.1), (16, 16), (2.0, 2.0), 2.0, True, 0.0)


def test_what_counts_as_having_a_property() -> None:
    assert GOOD.all_three
    assert not replace(GOOD, top_weight=(0.1, 0.01)).length_adaptive
    assert not replace(GOOD, support=(16, 17)).sparse
    assert not replace(GOOD, support=(100, 100)).sparse
    unsettled = replace(GOOD, settled=False)
    assert unsettled.gradient_stable is None
    assert not unsettled.all_three
    assert replace(unsettled, steepest=(2.0, 3.0)).gradient_stable is False
    assert replace(unsettled, steepest=(1e6, 1e6)).gradient_stable is False


def test_the_rows_are_of_the_class() -> None:
    z = class_rows(300, LEAD)
    ranked = z.sort(-1, descending=True).values
    assert (ranked[:, 0] - ranked[:, KEPT] >= LEAD * (1 - 1e-9)).all()
    assert torch.equal(z[:, 0], ranked[:, 0])
    assert (ranked.diff() < 0).all()


@pytest.mark.parametrize(
    ("name", "least"),
    [("softmax", 0.499), ("ssmax", 0.99), ("top-k", 1e4), ("focus", 0.95 * 16 * focus.steepest(1.5, 16))],
)
def test_the_search_finds_what_is_known(name: str, least: float) -> None:
    chosen: dict[str, Rule] = {name: get(name)}
    [found] = properties(chosen, lengths=(60, 100), tries=16)
    assert least < found.steepest[-1] <= found.declared * (1 + 1e-6)


def test_tables_say_what_was_found() -> None:
    table = property_table.markdown([GOOD, replace(GOOD, name="other", settled=False, declared=float("inf"))])
    assert "| good | 0.1 → 0.1 | **yes** | 16 → 16 | **yes** | 2 → 2 | 2 | **yes** | 0 % |" in table
    assert "| 2 → 2 | ∞ | not known | 0 % |" in table
    assert property_table.summary([GOOD, replace(GOOD, name="other", settled=False)]).startswith(
        "All three properties on these rows: good (0 % one-hot rows); none of the other 1"
    )
