"""The page of results: its text here, its behaviour in a real browser."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.report.browser import launched, opened, wait_until
from tests.report.results import EVIL, ROWS, dilution, evil, hostile, temperature
from undilute.errors import MissingExtra
from undilute.report import result_page
from undilute.report.result import Chart, Comparison, HeatMap, Result, Series
from undilute_papers.report import comparisons, reproduction_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

RESULTS = [dilution(), temperature()]


class Elements(HTMLParser):
    """Every tag with its attributes, the text of scripts, and the text outside of them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, text: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += text
        elif self.cdata_elem is None:
            self.text += text


@pytest.fixture(scope="module")
def text() -> str:
    return reproduction_page.page(RESULTS)


@pytest.fixture(scope="module")
def elements(text: str) -> Elements:
    return Elements(text)


# ---------------------------------------------------------------- the text of the page


def test_the_same_results_give_the_same_page(text: str) -> None:
    assert reproduction_page.page(RESULTS) == text


def test_everything_in_a_result_is_on_the_page(elements: Elements) -> None:
    for result in RESULTS:
        for finding in result.findings:
            assert finding in elements.text
        for each in result.comparisons:
            for part in (each.what, comparisons.printed(each), comparisons.computed(each), each.note):
                assert part in elements.text
        for chart in result.charts:
            assert chart.title in elements.text
            assert chart.note in elements.text
            assert f"{chart.name}.png" in elements.text
        for name in (*result.tables, *result.settings, *result.made, *result.made.values(), result.command):
            assert name in elements.text
    assert "1 min 15 s" in elements.text
    plots = [each["aria-label"] for _, each in elements.tags if "data-chart" in each]
    assert plots == [f"Chart: {chart.title}" for result in RESULTS for chart in result.charts]


def test_the_top_counts_the_verdicts_of_all_experiments(elements: Elements) -> None:
    verdicts = [each.verdict for result in RESULTS for each in result.comparisons]
    agree, differ = verdicts.count("agrees"), verdicts.count("differs")
    assert f"Of {len(verdicts)} printed values and claims {agree} agree, {differ} differ, 0 are of" in elements.text


def test_titles_say_what_an_experiment_shows_and_contents_lead_there(elements: Elements) -> None:
    links = [each["href"] for tag, each in elements.tags if tag == "a"]
    ids = [each["id"] for _, each in elements.tags if "id" in each]
    assert {"#experiment-1", "#experiment-2"} <= set(links)
    assert len(set(ids)) == len(ids)
    assert {str(link)[1:] for link in links if str(link).startswith("#")} <= set(ids)
    assert "What a lower temperature gives to one relevant token" in elements.text


def test_only_its_own_scripts_may_run_and_nothing_is_loaded(elements: Elements) -> None:
    (policy,) = [each["content"] for tag, each in elements.tags if tag == "meta" and "http-equiv" in each]
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy).split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in elements.scripts]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in digests]
    assert len(digests) == 1
    assert not {"img", "iframe", "object", "base"} & {tag for tag, _ in elements.tags}
    loading = [each[name] for tag, each in elements.tags if tag != "a" for name in ("src", "href") if name in each]
    assert loading == ["data:,"]


def test_a_page_without_charts_has_no_script_at_all() -> None:
    page = Elements(reproduction_page.page([replace(temperature(), charts=[])]))
    assert page.scripts == []
    (policy,) = [each["content"] for tag, each in page.tags if tag == "meta" and "http-equiv" in each]
    assert "script-src 'none'" in str(policy)


def test_a_long_table_shows_its_first_rows_and_names_its_file(elements: Elements) -> None:
    rows = [{"number of the row": n, "x": n / 7} for n in range(5000)]
    page = Elements(reproduction_page.page([replace(temperature(), tables={"Long one": rows}, charts=[])]))
    assert "The first 200 of 5,000 rows; all of them are in long-one.csv" in re.sub(r"\s+", " ", page.text)
    assert sum(tag == "tr" for tag, _ in page.tags) < 220
    assert "The first" not in (reproduction_page.page([replace(temperature(), tables={"t": rows[:200]}, charts=[])]))


def test_many_comparisons_are_folded_but_there() -> None:
    many = [Comparison(f"value number {number};", 1.0, 1.0, "agrees") for number in range(40)]
    page = reproduction_page.page([replace(temperature(), comparisons=many, charts=[])])
    folded = page[page.index("<summary>28 more</summary>") :]
    assert "value number 11;" not in folded
    assert all(f"value number {number};" in folded for number in range(12, 40))


def test_sources_on_arxiv_are_links() -> None:
    linked = str(reproduction_page._linked("arXiv:2508.17821v1, Fig. 3 & <b> of arXiv:2410.01104"))
    assert linked == (
        '<a href="https://arxiv.org/abs/2508.17821v1">arXiv:2508.17821v1</a>, Fig. 3 &amp; &lt;b&gt; of '
        '<a href="https://arxiv.org/abs/2410.01104">arXiv:2410.01104</a>'
    )


def test_hostile_text_is_shown_and_makes_no_element() -> None:
    page = Elements(reproduction_page.page([hostile()]))
    for number in (*range(1, 7), 13, 16, 17, 18, 19, 20, *range(21, 31), 38):
        assert evil(number) in page.text
    assert len(page.scripts) == 1
    assert not any("pwned" in script for script in page.scripts)
    assert not {"img"} & {tag for tag, _ in page.tags}
    assert "nan" not in re.findall(r"\w+", page.text.lower())
    assert f"The first 200 of {ROWS:,} rows" in re.sub(r"\s+", " ", page.text)
    assert "No rows." in page.text
    page.text.encode()  # no half of a character is left


def test_no_result_at_all_still_makes_a_page() -> None:
    assert "Of 0 printed values and claims" in reproduction_page.page([])


def test_an_experiment_that_is_not_known_is_named_by_its_id() -> None:
    page = Elements(reproduction_page.page([replace(temperature(), id="from-the-future", charts=[])]))
    assert page.text.count("from-the-future") >= 2


RECALL = HeatMap(
    "recall",
    "Recall by length",
    "tokens of the haystack",
    "rule",
    ["512", "1,024", "2,048"],
    ["softmax", "ssmax, calibrated"],
    [[80.0, 60.5, 40.0], [75.0, None, 60.0]],
    "recall, %",
    better="higher",
    centre="softmax",
)
TREATED = replace(
    temperature(),
    id="treat",
    settings={"model": "<smollm2>", "rules": "adaptive"},
    findings=["Loss is lower."],
    tables={"losses": [{"tokens": 64, "loss": 3.5}]},
    command="undilute treat",
    comparisons=[],
    charts=[RECALL, temperature().charts[0]],
)


def test_a_treatment_is_named_by_its_model_and_rule_and_nothing_was_printed() -> None:
    page = Elements(result_page.page([TREATED]))
    assert page.text.count("<smollm2> under adaptive") == 2  # title and heading
    assert "treatment" in page.text
    for absent in ("printed", "Printed", "reproduction", "Other set-up"):
        assert absent not in page.text
    compared = Elements(result_page.page([replace(TREATED, id="compare", settings={"model": "gpt2"})]))
    assert compared.text.count("Rules compared on gpt2") == 2


def test_without_jinja_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r"undilute\[plot\]"):
        reproduction_page.page(RESULTS)


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Page:
    """One for all tests, because a new one is a new process."""
    return browser.new_page()


def put(folder: Path, *results: Result) -> Path:
    path = folder / "page.html"
    page = result_page.page if results[0].id in result_page.TREATMENTS else reproduction_page.page
    path.write_text(page(results), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put(tmp_path_factory.mktemp("real"), *RESULTS)


@pytest.fixture
def page(tab: Page, file: Path) -> Iterator[Page]:
    tab.mouse.move(0, 0)
    tab.set_viewport_size({"width": 1280, "height": 720})
    tab.emulate_media(color_scheme="light")
    with opened(tab, file) as page:
        yield page


def draw_all(page: Page) -> None:
    """Scroll to every chart until it is drawn."""
    for plot in page.locator("[data-chart]").all():
        plot.scroll_into_view_if_needed()
        plot.locator("> svg").wait_for()


def test_every_chart_is_drawn_with_names_and_numbers(page: Page) -> None:
    draw_all(page)
    plots = page.locator("[data-chart]").all()
    assert len(plots) == 6
    charts = [chart for result in RESULTS for chart in result.charts]
    for plot, chart in zip(plots, charts, strict=True):
        drawn = plot.inner_text()
        for part in (chart.x_label, chart.y_label, *(series.name for series in chart.series)):
            assert part in drawn
        assert "NaN" not in plot.inner_html()
    assert "100,000" in plots[0].inner_text()
    assert page.evaluate("new Set([...document.querySelectorAll('[id]')].map(e => e.id)).size") == page.evaluate(
        "document.querySelectorAll('[id]').length"
    )


def test_charts_far_below_wait_until_they_are_near(page: Page) -> None:
    page.locator("[data-chart]").first.scroll_into_view_if_needed()
    page.locator("[data-chart] > svg").first.wait_for()
    assert page.locator("[data-chart]").last.locator("svg").count() == 0


def test_a_printed_curve_is_drawn_where_its_numbers_are(page: Page) -> None:
    """Hollow markers, on log-log axes whose own numbers tell pixels from values."""
    plot = page.locator("[data-chart]").first
    plot.scroll_into_view_if_needed()
    plot.locator("> svg").wait_for()
    from math import log10

    import numpy as np

    places = plot.locator(".x-tick").evaluate_all("all => all.map(t => [t.textContent, t.getBoundingClientRect()])")
    at = {text.replace(",", ""): (box["left"] + box["right"]) / 2 for text, box in places}
    across = np.polyfit([log10(float(text)) for text in at], list(at.values()), 1)
    hollow = "all => all.map(p => [p.getBoundingClientRect(), getComputedStyle(p).fill])"
    markers = plot.locator(".curve .marker.hollow").evaluate_all(hollow)
    printed = dilution().charts[0].series[0]
    assert len(markers) == len(printed.x)
    for (box, fill), x in zip(markers, printed.x, strict=True):
        assert (box["left"] + box["right"]) / 2 == pytest.approx(np.polyval(across, log10(x)), abs=1)
        assert fill == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [1280, 320])
def test_a_heat_map_shows_every_value_in_its_place(tab: Page, tmp_path: Path, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 800})
    tab.emulate_media(color_scheme="light")
    with opened(tab, put(tmp_path, TREATED)) as page:
        table = page.get_by_role("region", name="Heat map: Recall by length").locator("table")
        inside = "all => all.map(t => [t.textContent, t.getBoundingClientRect().toJSON()])"
        written = table.locator("tbody td").evaluate_all(inside)
        assert [text for text, _ in written] == ["80", "60.5", "40", "75", "–", "60"]
        at = {text: (box["x"], box["y"]) for text, box in written}
        assert at["80"][1] == pytest.approx(at["40"][1], abs=1)
        assert at["80"][1] < at["75"][1]
        assert at["80"][0] < at["60.5"][0] < at["40"][0]
        assert table.locator("th").all_inner_texts() == [
            *(RECALL.x_label, RECALL.y_label, *RECALL.x),
            *RECALL.y,
        ]
        outside = table.locator("xpath=..").bounding_box()
        assert outside is not None
        assert all(outside["x"] <= box["x"] and box["x"] + box["width"] <= width for _, box in written)  # all in sight
        fill = "all => all.map(t => getComputedStyle(t).backgroundColor)"
        assert table.locator("tbody td").evaluate_all(fill)[5] == "rgb(91, 167, 219)"  # the best is the deepest blue
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("width", [400, 320])
def test_a_phone_shows_everything_without_scrolling_sideways(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    draw_all(page)
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for plot in page.locator("[data-chart]").all():
        inside, outside = plot.locator("> svg").bounding_box(), plot.bounding_box()
        legend = plot.locator(".key").bounding_box()
        assert inside is not None
        assert outside is not None
        assert legend is not None
        assert inside["width"] <= outside["width"] + 1
        assert legend["y"] >= inside["y"] + inside["height"]  # hides nothing
        assert legend["y"] + legend["height"] <= outside["y"] + outside["height"] + 2
        assert inside["height"] > 150


def test_charts_follow_the_width_of_the_window(page: Page) -> None:
    draw_all(page)
    plot = page.locator("[data-chart]").first
    page.set_viewport_size({"width": 500, "height": 800})
    wait_until(page, "document.querySelector('[data-chart] > svg').clientWidth < 480")
    box = plot.locator("> svg").bounding_box()
    assert box is not None
    assert box["width"] <= 500


def luminance(colour: str) -> float:
    channels = [float(number) / 255 for number in re.findall(r"[\d.]+", colour)[:3]]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return sum(part * value for part, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground_in_both_schemes(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    draw_all(page)
    ground = page.locator("article").first.evaluate("e => getComputedStyle(e).backgroundColor")
    assert (luminance(ground) < 0.1) == (scheme == "dark")
    texts = {".x-tick": "fill", ".key button": "color", ".across": "color", ".verdict": "color", ".answer": "color"}
    for selector, part in texts.items():
        colour = page.locator(f"article {selector}").first.evaluate(f"e => getComputedStyle(e).{part}")
        light, dark = sorted((luminance(colour), luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 4.5, selector
    fill = page.locator(".curve .marker.hollow").first.evaluate("e => getComputedStyle(e).fill")
    assert fill == ground  # hollow


def test_the_keyboard_reaches_the_results_and_opens_a_table(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "results"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.startsWith('law')"):
            break
    page.keyboard.press("Enter")
    table = page.locator("details[open] table")
    assert table.count() == 1
    assert table.locator("tbody tr").count() == len(dilution().tables["law"])


def test_hostile_text_runs_nothing_and_is_shown_as_it_is(tab: Page, tmp_path: Path) -> None:
    tab.set_viewport_size({"width": 1280, "height": 720})
    tab.emulate_media(color_scheme="light")
    with opened(tab, put(tmp_path, hostile())) as page:
        draw_all(page)
        assert page.evaluate("window.pwned") is None
        assert page.locator("img").count() == 0
        assert page.locator("[data-chart] a").count() == 0
        legend = page.locator("[data-chart] .key button").first.text_content() or ""
        assert "<script>window.pwned=1</script>" in legend
        assert "no finite value to draw" in page.locator("[data-chart]").last.inner_text()
        assert page.locator(".answer").inner_text().startswith(EVIL[:40])


def test_printing_draws_what_was_never_on_screen(page: Page) -> None:
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    for plot in page.locator("[data-chart]").all():
        assert plot.locator("> svg").count() > 0


def test_clicking_a_name_hides_its_curve_and_clicking_twice_shows_it_alone(page: Page) -> None:
    plot = page.locator("[data-chart]").first
    plot.scroll_into_view_if_needed()
    names = plot.locator(".key button")
    names.first.wait_for()
    many = names.count()
    assert plot.locator(".curve").count() == many == len(dilution().charts[0].series)
    ticks = plot.locator(".y-tick").all_inner_texts()
    names.nth(0).focus()
    page.keyboard.press("Enter")
    assert names.nth(0).get_attribute("aria-pressed") == "false"
    assert plot.locator(".curve").count() == many - 1
    assert plot.locator(".marker.hollow").count() == 1  # the sample in the legend
    page.keyboard.press("Enter")
    assert plot.locator(".curve").count() == many
    assert plot.locator(".y-tick").all_inner_texts() == ticks
    names.nth(0).dblclick()
    assert plot.locator(".curve").count() == 1
    assert names.evaluate_all("all => all.map(each => each.ariaPressed)") == ["true"] + ["false"] * (many - 1)
    names.nth(0).dblclick()
    assert plot.locator(".curve").count() == many


def test_values_are_read_at_the_points_by_mouse_and_keyboard(page: Page) -> None:
    plot = page.locator("[data-chart]").first
    plot.scroll_into_view_if_needed()
    printed = dilution().charts[0].series[0]
    marker = plot.locator(".curve .marker.hollow").nth(3).bounding_box()
    assert marker is not None
    page.mouse.move(marker["x"] + marker["width"] / 2 + 3, marker["y"])
    tip = page.locator("#tip")
    assert f"{printed.x[3]:,.0f}" in tip.inner_text().splitlines()[0]
    pairs = dict(zip(*[iter(tip.inner_text().splitlines()[1:])] * 2, strict=True))
    assert float(pairs[printed.name]) == pytest.approx(printed.y[3], rel=1e-5)
    page.mouse.move(1, 1)
    assert not tip.is_visible()
    svg = plot.get_by_role("img", name=f"{dilution().charts[0].title}. Arrow keys read values.")
    svg.focus()
    page.keyboard.press("ArrowLeft")  # from where the pointer was
    assert f"{printed.x[2]:,.0f}" in tip.inner_text().splitlines()[0]
    assert tip.get_attribute("aria-live") == "polite"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert f"{printed.x[4]:,.0f}" in tip.inner_text().splitlines()[0]


def test_boxes_are_drawn_where_their_numbers_are(tab: Page, tmp_path: Path) -> None:
    tab.set_viewport_size({"width": 1280, "height": 720})
    sides = Series("real", [1, 10, 100], [0.5] * 3, boxes=[(0.1, 0.3, 0.5, 0.6, 0.9)] * 3)
    chart = Chart("boxes", "Boxes", "n", "weight", [sides, replace(sides, name="sphere")], x_log=10)
    with opened(tab, put(tmp_path, replace(TREATED, charts=[chart]))) as page:
        draw_all(page)
        rects = "all => all.map(r => ['x', 'y', 'width', 'height'].map(name => r[name].baseVal.value))"
        drawn = page.locator(".box rect").evaluate_all(rects)
        ticks = page.locator(".x-tick").evaluate_all("all => all.map(t => [t.textContent, t.x.baseVal[0].value])")
        assert [text for text, _ in ticks] == ["1", "10", "100"]
        heights = dict(
            page.locator(".y-tick").evaluate_all("all => all.map(t => [t.textContent, t.y.baseVal[0].value - 4])")
        )
        unit = (heights["0.2"] - heights["0.8"]) / 0.6
        line = "e => [e.x1.baseVal.value, e.x2.baseVal.value]"
        start, end = page.locator("[data-chart] .axis").evaluate(line)
        assert all(start <= left and left + width <= end for left, _, width, _ in drawn)
        for (left, top, width, height), (_, at) in zip(drawn[3:], ticks, strict=True):  # real, left of sphere
            assert left + width < at < left + 2 * width
            assert height == pytest.approx(0.3 * unit, abs=0.5)
            assert top == pytest.approx(heights["0.2"] - 0.4 * unit, abs=0.5)


def test_a_heat_map_without_cells_and_a_page_of_heat_maps_need_no_script() -> None:
    page = Elements(result_page.page([replace(TREATED, charts=[replace(RECALL, x=[], y=[], values=[], centre=None)])]))
    assert page.scripts == []
    assert "no finite value to draw" in page.text
