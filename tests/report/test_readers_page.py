"""The page of a comparison of readers: its text here, its behaviour in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.report.browser import launched, opened, wait_until
from tests.report.test_result_page import Elements
from tests.selection.readers import constructed
from undilute.report import readers_page, result_files
from undilute.selection import Comparison
from undilute.selection.judging import Example

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EVIL = "<script>alert(1)</script>\"'&"
SHARES = {("none", "emblem"): 0.25, ("bm25", "emblem"): 0.75, ("heads", "emblem"): 1.0}
SHARES |= {(reader, "two-hops"): 0.5 for reader in ("none", "bm25", "heads")}
LOST = {("heads", "two-hops"): 0.25}


@pytest.fixture(scope="module")
def found() -> Comparison:
    return constructed(SHARES, lengths=[1024, 4096, 8192], kept=LOST, window=2048)


def test_everything_is_on_the_page(found: Comparison) -> None:
    page = Elements(readers_page.page(found))
    for finding in found.findings:
        assert finding in page.text
    assert "Readers compared on small" in page.text
    for title in (
        "Right answers at 8,192 tokens",
        "Tokens that a model reads for a question, at 8,192",
        "Seconds for a question, at 8,192",
        "What was asked",
        "The emblem of Zoe is the kite.",
        "The emblem of Zoe is the …",
        *(chart.title for chart in found.report().charts),
    ):
        assert title in page.text
    assert found.command in page.text
    for row in found.tables["changes"]:
        assert row["what"] in page.text


def test_the_charts_are_those_of_the_figures(found: Comparison) -> None:
    charts = {chart.name: chart for chart in found.report().charts}
    assert list(charts) == [
        "recall-all",
        "recall-emblem",
        "recall-two-hops",
        "kept-all",
        "kept-two-hops",  # in emblem nothing was lost
        "tokens",
        "seconds",
        "recall-by-task",
    ]
    assert [each.name for each in charts["recall-all"].series] == ["none", "bm25", "heads", "guessing"]  # type: ignore[union-attr]
    heads = charts["recall-emblem"].series[2]  # type: ignore[union-attr]
    assert heads.y == [100.0] * 3
    assert heads.low == pytest.approx([100 - 300 / 32] * 3)
    assert charts["kept-two-hops"].series[2].y == [25.0] * 3  # type: ignore[union-attr]
    assert charts["tokens"].series[2].y == [1024 + 256, 4096 + 256, 8192 + 256]  # type: ignore[union-attr]
    alone = constructed({("none", "emblem"): 0.5}, lengths=[1024])
    assert alone.report().charts == []
    assert "Right answers at 1,024 tokens" in readers_page.page(alone)


def test_hostile_text_is_shown_and_makes_no_element() -> None:
    shares = {("none", EVIL): 0.5, (EVIL, EVIL): 1.0}
    shown = [Example(EVIL, (EVIL,), EVIL, EVIL, 8)]
    page = Elements(readers_page.page(replace(constructed(shares, model=EVIL, text=[EVIL]), examples=shown)))
    assert page.text.count(EVIL) > 10
    assert len(page.scripts) == 1
    assert not any("alert" in script for script in page.scripts)


def test_the_same_comparison_gives_the_same_small_page(found: Comparison) -> None:
    text = readers_page.page(found)
    assert readers_page.page(Comparison.from_json(found.to_json())) == text
    assert len(text) < 150_000


def test_a_folder_holds_everything(found: Comparison, tmp_path: Path) -> None:
    found.save(tmp_path, {tmp_path / "also" / "page.html": "x"})
    assert Comparison.from_json(tmp_path / "readers.json").rows == found.rows
    assert result_files.load(tmp_path).findings == found.findings
    names = {each.name for each in tmp_path.iterdir()}
    assert {"index.html", "results.json", "by-task.csv", "changes.csv", "recall-all.png", "also"} <= names


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_it_is_drawn_in_both_schemes_at_every_width(
    browser: Browser, found: Comparison, tmp_path: Path, scheme: str, width: int
) -> None:
    file = found.save_html(tmp_path / "page.html")
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})  # type: ignore[arg-type]
    with opened(page, file):
        charts = page.locator("[data-chart]")
        for number in range(charts.count()):
            charts.nth(number).scroll_into_view_if_needed()
        wait_until(page, "[...document.querySelectorAll('[data-chart]')].every((each) => each.querySelector('svg'))")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        dots = page.locator(".ranges section").first.locator(".range")
        assert dots.count() == 3
        at = [dots.nth(number).locator(".dot").bounding_box() for number in range(3)]
        assert [round(each["x"]) for each in at if each] == sorted(round(each["x"]) for each in at if each)
        wide = [each["width"] for each in (one.bounding_box() for one in page.locator(".bars .bar").all()) if each]
        assert min(wide) > 0
        ground, ink = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        assert (sum(map(int, ground[4:-1].split(","))) > sum(map(int, ink[4:-1].split(",")))) == (scheme == "light")
    page.close()
