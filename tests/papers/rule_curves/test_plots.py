"""The pictures and the page of the needle experiment: every rule, every figure, every text escaped."""

from __future__ import annotations

from undilute import rules
from undilute_papers.rule_curves import plots
from undilute_papers.rule_curves.curves import needle_curves

EVIL = "<b>rule</b>"
CHOSEN = {"softmax": rules.get("softmax"), EVIL: rules.get("entmax15")}
POINTS = needle_curves(CHOSEN, lengths=[2, 16, 128], seeds=1)


def test_the_page_has_a_chart_of_weight_and_one_of_entropy_and_every_figure() -> None:
    page = plots.page(POINTS, "one logit of 6")
    assert page.count("data-chart=") == 2
    assert plots.TITLE in page
    assert "one logit of 6" in page
    assert page.count("<tr>") == 1 + len(POINTS)
    assert EVIL not in page


def test_the_picture_has_a_panel_for_each_rule() -> None:
    both, one = plots.png(POINTS, "s"), plots.png(POINTS[:3], "s")
    assert both.startswith(b"\x89PNG")
    assert int.from_bytes(both[16:20]) == 2 * int.from_bytes(one[16:20])  # widths
    assert plots.png(POINTS, "s") == both


def test_the_terminal_shows_the_weight_at_each_length() -> None:
    table = plots.terminal(POINTS)
    assert [str(column.header) for column in table.columns] == ["rule", "n = 2", "n = 16", "n = 128"]
    assert table.row_count == 2
