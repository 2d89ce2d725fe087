"""The page of a diagnosis: its text here, its behaviour in a real browser."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers

from tests.evaluation.tokenizers import PROSE, tokenizer
from tests.report.browser import executable, launched, opened, wait_until
from undilute.diagnosis import Diagnosis, diagnose
from undilute.diagnosis.heads import Heads
from undilute.diagnosis.kinds import Thresholds
from undilute.errors import MissingExtra
from undilute.measures import registry
from undilute.report import diagnosis_data, diagnosis_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LAYERS, HEADS, LENGTH, TARGET = 3, 4, 256, 65_536
EVIL = ["<script>window.pwned=1</script>", "</script>", "\"&'", "<!--", "🦉", " שלום", "\n", " plain", "\u2028", "\t}"]
EVIL_NAME = "<img src=x onerror=window.pwned=1>/small&wide"


def gpt2(**settings: Any) -> Diagnosis:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=32,
        n_layer=LAYERS,
        n_head=HEADS,
        vocab_size=50,
        n_positions=LENGTH,
        initializer_range=0.5,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    return diagnose(model, None, torch.randint(50, (LENGTH,)), target=TARGET, **({"rows": 128} | settings))


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    """Of a small random model, with text that tries to break out."""
    found = gpt2()
    words = [EVIL[place % len(EVIL)] for place in range(LENGTH)]
    found.subject = replace(found.subject, tokens=words, model=EVIL_NAME)
    assert {head.kind for head in found.heads} >= {"diluting", "sharp"}
    return found


@pytest.fixture(scope="module")
def data(diagnosis: Diagnosis) -> dict[str, Any]:
    return diagnosis_data.data(diagnosis)


def evil(words: Sequence[str]) -> tuple[str, ...]:
    """As many words that try to break out."""
    return tuple(EVIL[place % len(EVIL)] for place in range(len(words)))


@pytest.fixture(scope="module")
def probed() -> Diagnosis:
    """Of a small random model that was asked: a head that is a little better than chance counts as a retrieval head."""
    torch.manual_seed(0)
    reads = tokenizer("byte-level")
    config = transformers.GPT2Config(
        n_embd=32,
        n_layer=LAYERS,
        n_head=HEADS,
        vocab_size=len(reads),
        n_positions=1024,
        initializer_range=0.5,
        bos_token_id=0,
        eos_token_id=0,
    )
    found = diagnose(
        transformers.GPT2LMHeadModel(config).eval(),
        reads,
        {EVIL_NAME: PROSE, "</script>": PROSE[5000:]},
        haystacks=4,
        thresholds=Thresholds(found=1.0, found_in_one=1.0, errors=0.0),
    )
    assert found.probe is not None
    assert 2 <= len(found.heads.retrieval) < LAYERS * HEADS
    return found


@pytest.fixture(scope="module")
def asked(probed: Diagnosis) -> dict[str, Any]:
    return diagnosis_data.data(probed)


class Elements(HTMLParser):
    """Every tag with its attributes, and the text of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.scripts.append((dict(attributes), ""))

    def handle_data(self, text: str) -> None:
        if self.cdata_elem == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + text)


# ---------------------------------------------------------------- the text of the page


def test_the_same_diagnosis_gives_the_same_page(diagnosis: Diagnosis) -> None:
    assert diagnosis_page.page(diagnosis) == diagnosis_page.page(diagnosis)


def test_the_page_holds_all_of_the_data(diagnosis: Diagnosis) -> None:
    scripts = Elements(diagnosis_page.page(diagnosis)).scripts
    embedded = {attributes["id"]: json.loads(text) for attributes, text in scripts if "id" in attributes}
    overview = embedded.pop("overview")
    details = [head for layer in range(LAYERS) for head in embedded.pop(f"layer-{layer}")]
    assert not embedded
    overview["heads"] = [head | more for head, more in zip(overview["heads"], details, strict=True)]
    assert overview == json.loads(diagnosis_data.to_json(diagnosis))


def test_the_bulk_of_the_data_is_kept_small(data: dict[str, Any], diagnosis: Diagnosis) -> None:
    layer, head, sample = data["layers"][1], data["heads"][HEADS], diagnosis.layers[1]
    assert len(sample.n) > diagnosis_data.MOST_POINTS
    assert len(layer["drawn"]) == diagnosis_data.MOST_POINTS
    assert {sample.n.argmin(), sample.n.argmax()} <= set(layer["drawn"])
    assert head["points"]["n_eff_without_sink"] == pytest.approx(
        sample.measures["n_eff_without_sink"][0, layer["drawn"]].tolist(), rel=0.006
    )
    drawn = [each["name"] for each in data["measures"] if each["drawn"]]
    assert len(head["curves"]) == len(drawn) < len(data["measures"])
    median = diagnosis_data.quartiles(sample)["entropy"][0, 0]
    assert head["curves"][drawn.index("entropy")][0] == pytest.approx(median.tolist(), rel=0.006)


def test_layers_may_differ_in_heads() -> None:
    layers = [{"heads": 2}, {"heads": 1}, {"heads": 3}]
    assert diagnosis_page._by_layer([*"abcdef"], layers) == [["a", "b"], ["c"], ["d", "e", "f"]]


def test_only_its_own_script_may_run_and_nothing_is_loaded(diagnosis: Diagnosis) -> None:
    page = Elements(diagnosis_page.page(diagnosis))
    (script,) = [text for attributes, text in page.scripts if attributes.get("type") != "application/json"]
    (policy,) = [each["content"] for tag, each in page.tags if tag == "meta" and "http-equiv" in each]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert not {"img", "iframe", "object", "base"} & {tag for tag, _ in page.tags}
    loading = [each[name] for tag, each in page.tags if tag != "a" for name in ("src", "href") if name in each]
    assert loading == ["data:,"]


@pytest.mark.parametrize("text", [*EVIL, EVIL_NAME, "\u2029]]>", "\\u003c", "\ud83e", "\x00"])
def test_embedded_text_cannot_end_its_element(text: str) -> None:
    made = diagnosis_page.embedded({text: [text]})
    assert json.loads(made) == {text: [text]}
    assert not set(made) & set("<>&\u2028\u2029")


def test_a_lone_surrogate_does_not_stop_the_page(diagnosis: Diagnosis, tmp_path: Path) -> None:
    subject = replace(diagnosis.subject, tokens=["\ud83e"] * LENGTH)
    broken = Diagnosis(subject, diagnosis.question, diagnosis.readings, diagnosis.heads)
    broken.save_html(tmp_path / "page.html")
    assert "\\ud83e" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_without_jinja_the_error_names_the_extra(diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r"undilute\[plot\]"):
        diagnosis_page.page(diagnosis)


def test_without_a_browser_tests_are_skipped_but_not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        executable()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        executable()


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def file(diagnosis: Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return diagnosis.save_html(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Page:
    """One for all tests, because a new one is a new process."""
    return browser.new_page()


@pytest.fixture
def page(tab: Page, file: Path) -> Iterator[Page]:
    tab.mouse.move(0, 0)
    tab.set_viewport_size({"width": 1280, "height": 720})
    with opened(tab, file) as page:
        yield page


def cell(layer: int, head: int) -> str:
    return f'.cell[data-head="{layer * HEADS + head}"]'


def column(page: Page, name: str) -> list[str]:
    return page.locator(f'#table td[data-column="{name}"]').all_inner_texts()


def as_number(text: str) -> float:
    return float(text.split()[0].replace("−", "-").replace(",", ""))


def luminance(colour: str) -> float:
    """Of a computed colour, "rgb(r, g, b)" or "color(srgb r g b)"."""
    channels = [float(number) for number in re.findall(r"[\d.]+", colour)[:3]]
    scale = 1.0 if colour.startswith("color(") else 255.0
    parts = zip((0.2126, 0.7152, 0.0722), channels, strict=True)
    return sum((part * math.pow(value / scale, 2.2) for part, value in parts), 0.0)


def test_the_map_has_a_cell_for_each_head(page: Page, data: dict[str, Any]) -> None:
    labels = [each.get_attribute("aria-label") or "" for each in page.locator('[role="grid"] [role="gridcell"]').all()]
    assert len(labels) == LAYERS * HEADS
    for label, head in zip(labels, data["heads"], strict=True):
        assert label.startswith(f"Layer {head['layer']}, head {head['head']}, {head['kind']}")
    assert page.locator('[role="grid"] [role="row"]').count() == LAYERS + 1


def test_a_measure_recolours_the_map_brighter_for_more(page: Page, data: dict[str, Any]) -> None:
    def colours() -> Any:
        return page.locator(".cell").evaluate_all("cells => cells.map(cell => getComputedStyle(cell).backgroundColor)")

    for measure in ("top_target", "entropy", "top_now", "n_eff"):
        before = colours()
        page.select_option("#colour", measure)
        after = colours()
        assert before != after
        values = [head.get(measure, head["medians"].get(measure)) for head in data["heads"]]
        by_value = [luminance(after[i]) for i in np.argsort(values)]
        assert by_value == sorted(by_value)
        assert by_value[-1] > 5 * by_value[0]
        assert len(page.locator("#map-legend .ticks span").all_inner_texts()) == 5


def test_the_exponent_has_opposite_colours_around_zero(page: Page) -> None:
    page.select_option("#colour", "gamma")
    colours = page.evaluate("[-0.5, 0, 0.5].map((gamma) => colourScale().colour(gamma))")
    assert ["--below" in each for each in colours] == [True, False, False]
    assert "--above" in colours[2]
    assert page.locator("#map-legend .ticks").inner_text().split("\n")[2] == "0"


def test_at_first_the_worst_head_is_shown(page: Page, diagnosis: Diagnosis) -> None:
    worst = diagnosis.heads.diluting[0]
    assert page.locator("#head-title").inner_text() == f"Layer {worst.layer}, head {worst.head}"
    assert page.locator("#head-kind").inner_text() == "diluting"


def test_clicking_a_head_shows_its_curves_and_verdict(page: Page, data: dict[str, Any]) -> None:
    for head in (data["heads"][6], data["heads"][11]):
        page.click(cell(head["layer"], head["head"]))
        assert page.locator("#head-title").inner_text() == f"Layer {head['layer']}, head {head['head']}"
        assert head["sentence"] in page.locator("#head-sentence").inner_text()
        assert page.locator(cell(head["layer"], head["head"])).get_attribute("aria-selected") == "true"
        assert page.locator('[aria-selected="true"]').count() == 1
        for chart in ("top", "keys", "measure"):
            svg = page.locator(f"#chart-{chart} .plot > svg")
            assert f"for Layer {head['layer']}, head {head['head']}" in (svg.get_attribute("aria-label") or "")
            assert svg.locator("path.median").count() == 1
            assert "NaN" not in svg.inner_html()


def test_points_and_forecast_lie_where_the_numbers_say(page: Page, data: dict[str, Any]) -> None:
    """The axes' own ticks tell pixels from numbers, on log-log axes; points, law and interval must agree with them."""
    head, layer = data["heads"][5], data["layers"][1]
    page.click(cell(1, 1))
    circles = page.locator("#chart-top .plot > svg circle.point").evaluate_all(
        "all => all.map(p => [p.cx.baseVal.value, p.cy.baseVal.value])"
    )
    x, y = np.array(circles).T
    n = np.log(np.array(layer["n"])[layer["drawn"]])
    top = np.log(head["points"]["top_weight_without_sink"])
    across, up = np.polyfit(n, x, 1), np.polyfit(top, y, 1)
    assert np.abs(np.polyval(across, n) - x).max() < 0.1
    assert np.abs(np.polyval(up, top) - y).max() < 0.1

    mark = page.locator("#chart-top .mark circle").evaluate("p => [p.cx.baseVal.value, p.cy.baseVal.value]")
    assert mark == pytest.approx(
        [np.polyval(across, math.log(TARGET)), np.polyval(up, math.log(head["top_target"]))], abs=0.5
    )
    whiskers = page.locator("#chart-top .mark line").first.evaluate(
        "line => [line.y1, line.y2].map(y => y.baseVal.value)"
    )
    limits = np.log([max(head["top_target_low"], 1e-9), head["top_target_high"]])
    assert whiskers == pytest.approx(np.polyval(up, limits), abs=0.5)
    for style, ends in (
        ("path.fit:not(.continued)", (min(layer["n"]), LENGTH)),
        ("path.fit.continued", (LENGTH, TARGET)),
    ):
        line = page.locator(f"#chart-top .plot > svg {style}").get_attribute("d") or ""
        pixels = np.array(re.findall(r"([\d.]+) ([\d.]+)", line), dtype=float)
        assert pixels[[0, -1], 0] == pytest.approx(np.polyval(across, np.log(ends)), abs=0.5)
        at = np.exp((pixels[:, 0] - across[1]) / across[0])
        law = 1 / (1 + np.exp(-(head["gap"] - head["slope"] * np.log(at - 2))))
        assert np.abs(np.polyval(up, np.log(law)) - pixels[:, 1]).max() < 0.5

    ticks = page.locator("#chart-top .plot > svg text").evaluate_all(
        "all => all.map(t => [t.textContent, t.x.baseVal[0].value])"
    )
    places = {text: place for text, place in ticks if re.fullmatch(r"\d+k?", text)}
    for text, value in (("64", 64), ("256", 256), ("1k", 1024), ("16k", 16384)):
        assert places[text] == pytest.approx(np.polyval(across, math.log(value)), abs=0.5)


def test_the_third_chart_draws_the_chosen_measure_with_its_bounds(page: Page) -> None:
    legend = page.locator("#chart-measure .key")
    for name in ("expected_distance", "expected_distance_upper", "distance_bound"):
        assert registry.every()[name].label in legend.inner_text()
    page.select_option("#measure", "logit_spread")
    assert registry.every()["spread_bound"].label in legend.inner_text()
    before = page.locator("#chart-measure .plot > svg path.median").get_attribute("d")
    page.select_option("#measure", "entropy")
    assert page.locator("#chart-measure .plot > svg path.median").get_attribute("d") != before
    assert page.locator("#measure-formula").inner_text() == registry.every()["entropy"].formula


def test_values_can_be_read_off_a_chart_by_mouse_and_keyboard(page: Page) -> None:
    page.locator("#chart-top .plot > svg").hover(position={"x": 200, "y": 120})
    assert re.match(r"n = \d+", page.locator("#tip").inner_text())
    page.mouse.move(1, 1)
    assert not page.locator("#tip").is_visible()
    page.locator("#chart-top .plot > svg").focus()
    page.keyboard.press("ArrowLeft")
    first = page.locator("#tip").inner_text()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#tip").inner_text() != first
    assert "fitted law" in first


def test_the_law_continued_is_not_called_a_forecast(page: Page) -> None:
    legend = page.locator("#chart-top .key").inner_text()
    assert "fitted law continued" in legend
    assert "forecast" not in legend
    assert "is the forecast at 64k" in page.locator("#chart-top .means").inner_text()
    assert page.locator("#chart-top .plot > svg .mark").count() == 1


def test_the_map_by_keyboard(page: Page) -> None:
    def focused() -> list[str]:
        return str(page.evaluate("document.activeElement.getAttribute('aria-label')")).split(",")[:2]

    page.click(cell(1, 1))
    page.locator(cell(1, 1)).focus()
    for key, layer, head in (
        ("ArrowRight", 1, 2),
        ("ArrowDown", 2, 2),
        ("ArrowDown", 2, 2),
        ("End", 2, 3),
        ("ArrowUp", 1, 3),
        ("ArrowLeft", 1, 2),
        ("Home", 1, 0),
    ):
        page.keyboard.press(key)
        assert focused() == [f"Layer {layer}", f" head {head}"], key
    assert page.locator('.cell[tabindex="0"]').count() == 1
    assert page.locator("#head-title").inner_text() == "Layer 1, head 1"
    page.keyboard.press("Enter")
    assert page.locator("#head-title").inner_text() == "Layer 1, head 0"
    page.keyboard.press("ArrowRight")
    page.keyboard.press(" ")
    assert page.locator("#head-title").inner_text() == "Layer 1, head 1"


def test_sorting_orders_the_table_both_ways(page: Page) -> None:
    for name in ("gamma", "top_target", "keys", "layer"):
        header = page.locator(f'th[data-column="{name}"]')
        orders = {}
        for _ in range(2):
            header.locator("button").click()
            orders[header.get_attribute("aria-sort")] = [as_number(text) for text in column(page, name)]
        assert orders["ascending"] == sorted(orders["ascending"])
        assert orders["descending"] == sorted(orders["ascending"], reverse=True)
        assert len(orders["ascending"]) == LAYERS * HEADS
        assert page.locator('th[aria-sort="ascending"], th[aria-sort="descending"]').count() == 1


def test_filters_by_kind_and_by_text(page: Page, diagnosis: Diagnosis) -> None:
    counts = diagnosis.counts
    page.click('button.kind[data-kind="diluting"]')
    assert column(page, "kind") == ["diluting"] * counts["diluting"]
    assert page.locator(".cell.dim").count() == LAYERS * HEADS - counts["diluting"]
    page.click('button.kind[data-kind="diluting"]')
    assert len(column(page, "kind")) == LAYERS * HEADS
    page.uncheck('#chips input[value="diluting"]')
    assert set(column(page, "kind")) == {"sharp"}
    page.check('#chips input[value="diluting"]')
    page.fill("#find", "2.1")
    assert list(zip(column(page, "layer"), column(page, "head"), strict=True)) == [("2", "1")]
    page.fill("#find", "2")
    found = list(zip(column(page, "layer"), column(page, "head"), strict=True))
    assert len(found) == HEADS + LAYERS - 1
    assert all("2" in pair for pair in found)
    page.fill("#find", "DILUT")
    assert len(column(page, "kind")) == counts["diluting"]
    page.fill("#find", "nothing has this")
    assert page.locator("#matches").inner_text() == f"0 of {LAYERS * HEADS} heads"


def test_a_row_of_the_table_selects_its_head(page: Page) -> None:
    page.click('#table tbody tr[data-head="7"] td[data-column="keys"]')
    assert page.locator("#head-title").inner_text() == "Layer 1, head 3"
    assert page.locator('#table tr[aria-current="true"]').get_attribute("data-head") == "7"
    page.locator('#table tbody tr[tabindex="0"]').focus()
    page.keyboard.press("ArrowDown")
    second = page.evaluate("document.activeElement.dataset.head")
    page.keyboard.press("Enter")
    assert page.locator("#head-title").inner_text() == f"Layer {int(second) // HEADS}, head {int(second) % HEADS}"


def test_many_heads_are_shown_a_page_at_a_time(tab: Page, diagnosis: Diagnosis, tmp_path: Path) -> None:
    times = 5
    (reading,) = diagnosis.readings
    layers = [replace(layer, index=place) for place, layer in enumerate([*reading.layers] * times)]
    heads = Heads(replace(head, layer=place // HEADS) for place, head in enumerate([*diagnosis.heads] * times))
    many = Diagnosis(diagnosis.subject, diagnosis.question, [replace(reading, layers=layers)], heads)
    with opened(tab, many.save_html(tmp_path / "many.html")) as page:
        assert page.locator("#table tbody tr").count() == 50
        page.click("#more")
        assert page.locator("#table tbody tr").count() == len(heads) == 60
        assert not page.locator("#more").is_visible()


def test_evil_text_stays_text(page: Page, data: dict[str, Any]) -> None:
    assert page.locator("h1").inner_text() == EVIL_NAME
    shown = set()
    for button in page.locator("#rows button").all():
        button.click()
        shown.update(page.locator("#keys mark, #query mark").all_text_contents())
    as_shown = {"\n": "⏎", " plain": "·plain", " שלום": "·שלום", "\t}": "⇥}"}
    assert shown <= {as_shown.get(text, text) for text in EVIL}
    assert EVIL[0] in shown
    assert page.locator("#keys").get_by_text(EVIL[0]).first.is_visible()
    assert set(page.locator("#keys li *, #query *").evaluate_all("all => all.map(each => each.localName)")) <= {
        "span",
        "b",
        "bdi",
        "mark",
    }
    assert page.evaluate("window.pwned === undefined")


def test_the_token_view_shows_the_heaviest_keys_of_the_row(page: Page, data: dict[str, Any]) -> None:
    head = data["heads"][9]
    page.click(cell(2, 1))
    page.locator("#rows button").nth(2).click()
    row = head["shown"][2]
    position = data["layers"][2]["position"][row["row"]]
    assert f"position {position} sees {position + 1} keys" in page.locator("#query").inner_text()
    weights = [as_number(text) for text in page.locator("#keys .weight b").all_inner_texts()]
    assert weights == pytest.approx(row["weights"], rel=0.06)
    for key, where in zip(row["keys"], page.locator("#keys .where").all_inner_texts(), strict=True):
        assert where == ("sink" if key == 0 else "itself" if key == position else f"{position - key} back")
    assert page.locator('#rows button[aria-pressed="true"]').count() == 1


# ---------------------------------------------------------------- when asked


@pytest.fixture(scope="module")
def probed_file(probed: Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return probed.save_html(tmp_path_factory.mktemp("asked") / "report.html")


@pytest.fixture
def probed_page(tab: Page, probed_file: Path) -> Iterator[Page]:
    tab.mouse.move(0, 0)
    tab.set_viewport_size({"width": 1280, "height": 720})
    with opened(tab, probed_file) as page:
        yield page


def finders(asked: dict[str, Any]) -> list[dict[str, Any]]:
    found = [head for head in asked["heads"] if head["kind"] == "retrieval"]
    return sorted(found, key=lambda head: -float(head["asked"]["score"]["value"]))


def others(asked: dict[str, Any]) -> dict[str, Any]:
    return next(head for head in asked["heads"] if head["kind"] != "retrieval")


def pixels(page: Page, path: str) -> Any:
    """(points, 2): where a line goes, as the browser draws it."""
    line = page.locator(path).get_attribute("d") or ""
    return np.array(re.findall(r"(-?[\d.]+) (-?[\d.]+)", line), dtype=float)


def test_the_headline_says_what_was_read_and_asked(probed_page: Page, asked: dict[str, Any]) -> None:
    facts = probed_page.locator(".facts").inner_text()
    assert "4 windows of 1,024 tokens of 2 texts" in facts
    assert "asked at 512, 1,024 tokens" in facts
    assert probed_page.locator(".summary").inner_text() == asked["summary"]
    assert probed_page.locator("#caution").count() == 0
    texts = probed_page.locator(".texts tbody th").all_text_contents()
    assert texts == [EVIL_NAME, "</script>"]
    retrieval = probed_page.locator('button.kind[data-kind="retrieval"] .count').inner_text()
    assert retrieval == f"{len(finders(asked))} {asked['kinds'][0]['steady']} steady"


def test_one_window_is_marked(page: Page, data: dict[str, Any]) -> None:
    assert page.locator("#caution").inner_text() == data["caution"]
    assert "One window" in data["caution"]


def test_retrieval_heads_come_first_with_a_curve_each(probed_page: Page, asked: dict[str, Any]) -> None:
    best = finders(asked)
    chart = probed_page.locator("#chart-alpha .plot > svg")
    assert chart.locator("path.line.single").count() == len(best)
    assert chart.locator("path.line.together").count() == chart.locator("path.band.together").count() == 1
    assert chart.locator("path.line.chosen").count() == chart.locator("path.line.law").count() == 1
    assert probed_page.locator("#chart-alpha .key button").count() == 4  # single heads have one place together
    assert probed_page.locator("#head-title").inner_text() == f"Layer {best[0]['layer']}, head {best[0]['head']}"
    buttons = probed_page.locator("#finders button")
    assert [text.split()[0] for text in buttons.all_inner_texts()] == [
        f"{each['layer']}.{each['head']}" for each in best
    ]
    buttons.nth(1).click()
    assert probed_page.locator("#head-title").inner_text() == f"Layer {best[1]['layer']}, head {best[1]['head']}"
    assert buttons.nth(1).get_attribute("aria-pressed") == "true"
    assert f"Layer {best[1]['layer']}, head {best[1]['head']}" in probed_page.locator("#chart-alpha .key").inner_text()
    other = others(asked)
    probed_page.click(cell(other["layer"], other["head"]))
    assert chart.locator("path.line.chosen").count() == 0
    assert probed_page.locator('#finders [aria-pressed="true"]').count() == 0


def test_it_opens_at_the_top_and_choosing_a_retrieval_head_stays_there(probed_page: Page) -> None:
    assert probed_page.evaluate("scrollY") == 0
    probed_page.locator("#finders button").nth(1).scroll_into_view_if_needed()
    before = probed_page.evaluate("scrollY")
    probed_page.locator("#finders button").nth(1).click()
    assert probed_page.evaluate("scrollY") == before
    probed_page.locator("#table tbody tr").first.click()
    wait_until(probed_page, "document.activeElement === byId('panel') && scrollY > 0")


def test_the_laws_line_has_slope_minus_one_from_the_means_first_point(probed_page: Page, asked: dict[str, Any]) -> None:
    svg = "#chart-alpha .plot > svg"
    mean, law = pixels(probed_page, f"{svg} path.line.together"), pixels(probed_page, f"{svg} path.line.law")
    values = np.array([each["value"] for each in asked["probe"]["together"]["alpha"]])
    lengths = np.array(asked["probe"]["lengths"], dtype=float)
    assert law[0] == pytest.approx(mean[0], abs=0.1)
    assert law[:, 0] == pytest.approx(mean[:, 0], abs=0.1)
    ticks = probed_page.locator(f"{svg} text.y-tick").evaluate_all(
        "all => all.map(t => [Number(t.textContent), t.y.baseVal[0].value - 4])"
    )
    marks, heights = np.array(ticks).T
    up = np.polyfit(marks, heights, 1)
    assert mean[:, 1] == pytest.approx(np.polyval(up, values), abs=0.3)
    odds = values[0] / (1 - values[0]) * lengths[0] / lengths
    assert law[:, 1] == pytest.approx(np.polyval(up, odds / (1 + odds)), abs=0.3)


def test_recall_stands_under_it_on_the_same_axis(probed_page: Page, asked: dict[str, Any]) -> None:
    chart = probed_page.locator("#chart-recall .plot > svg")
    tasks = {each["task"] for each in asked["probe"]["recall"]}
    assert len(tasks) == 2
    assert chart.locator("path.line.recall").count() == chart.locator("path.band.recall").count() == len(tasks)
    places = [
        probed_page.locator(f"#chart-{name} .plot > svg text.x-tick").evaluate_all(
            "all => all.map(t => [t.textContent, t.getBoundingClientRect().x])"
        )
        for name in ("alpha", "recall")
    ]
    assert dict(places[0]) == pytest.approx(dict(places[1]), abs=0.1)
    above, below = (probed_page.locator(f"#chart-{name}").bounding_box() for name in ("alpha", "recall"))
    assert above is not None
    assert below is not None
    assert above["y"] + above["height"] <= below["y"]
    chart.focus()
    probed_page.keyboard.press("ArrowLeft")
    assert re.match(r".*tokens: \d+", probed_page.locator("#tip").inner_text())


def test_right_and_wrong_answers_have_two_colours(probed_page: Page, asked: dict[str, Any]) -> None:
    for chart, figures in (("answers", asked["probe"]["together"]), ("asked", finders(asked)[0]["asked"])):
        strokes = []
        for look in ("right", "wrong"):
            line = probed_page.locator(f"#chart-{chart} .plot > svg path.line.{look}")
            assert line.count() == 1
            assert len(pixels(probed_page, f"#chart-{chart} .plot > svg path.line.{look}")) == len(
                figures[f"when_{look}"]
            )
            strokes.append(line.evaluate("path => getComputedStyle(path).stroke"))
        assert strokes[0] != strokes[1]


def test_the_map_shows_retrieval_scores_at_first_and_steadiness_as_opacity(
    probed_page: Page, asked: dict[str, Any]
) -> None:
    assert probed_page.locator("#colour").input_value() == "score"
    legend = probed_page.locator("#map-legend").inner_text()
    assert "retrieval score, chance" in legend
    assert "Opacity: the share of windows" in legend

    def colours() -> list[str]:
        return list(
            probed_page.locator(".cell").evaluate_all("all => all.map(cell => getComputedStyle(cell).backgroundColor)")
        )

    def opacity(colour: str) -> float:
        numbers = re.findall(r"[\d.]+", colour)
        return float(numbers[3]) if len(numbers) > 3 else 1.0

    shares = [head["share"] for head in asked["heads"]]
    assert len(set(shares)) > 2
    scores = [head["asked"]["score"]["value"] for head in asked["heads"]]
    shown = colours()
    by_score = [luminance(shown[i]) for i in np.argsort(scores)]
    assert by_score == sorted(by_score)
    for choice in ("score", "kind", "entropy"):
        probed_page.select_option("#colour", choice)
        assert [opacity(each) for each in colours()] == pytest.approx([0.25 + 0.75 * each for each in shares], abs=0.01)
        assert "Opacity" in probed_page.locator("#map-legend").inner_text()


def test_a_retrieval_heads_panel_has_its_figures(probed_page: Page, asked: dict[str, Any]) -> None:
    head = finders(asked)[0]
    figures = head["asked"]
    tiles = dict(
        zip(
            probed_page.locator("#asked-facts dt").all_inner_texts(),
            probed_page.locator("#asked-facts dd:not(.quiet)").all_inner_texts(),
            strict=True,
        )
    )
    assert as_number(tiles["Retrieval score"]) == pytest.approx(figures["score"]["value"], rel=0.06)
    assert as_number(tiles["Retrieval score"].split("± ")[1]) == pytest.approx(figures["score"]["error"], rel=0.06)
    assert as_number(tiles["Slope of logit α* on ln n"]) == pytest.approx(figures["law"]["slope"]["value"], abs=0.006)
    assert [as_number(each) for each in tiles["Lead R"].split("→ ")] == pytest.approx(
        [figures["ratio"][place]["value"] for place in (0, -1)], rel=0.06
    )
    assert (
        tiles["AUC"] == "–"
        if figures["auc"] is None
        else as_number(tiles["AUC"]) == pytest.approx(figures["auc"], rel=0.06)
    )
    assert tiles["On plain text"] == head["plain_kind"]
    assert probed_page.locator("#chart-asked .plot > svg path.line.together").count() == 1
    assert probed_page.locator("#chart-top .plot > svg path.median").count() == 1
    other = others(asked)
    probed_page.click(cell(other["layer"], other["head"]))
    assert not probed_page.locator("#head-asked").is_visible()
    assert "does not look for it" in probed_page.locator("#head-not-asked").inner_text()
    factor = probed_page.locator("#head-facts div", has_text="Factor that would hold it").inner_text()
    assert "not tried by itself" in factor
    assert ("none" in factor) == (other["factor"] is None)


def test_what_was_tried_stands_once_and_nothing_else_is_advised(probed_page: Page, asked: dict[str, Any]) -> None:
    trials = asked["trials"]
    assert trials["tried"]
    assert probed_page.locator("#advice").inner_text() == trials["advice"]
    lines = probed_page.locator("#tried li").all_inner_texts()
    assert len(lines) == len(trials["tried"])
    for line, each in zip(lines, trials["tried"], strict=True):
        assert each["sentence"] in line
        assert line.startswith("helped" if each["helps"] else "did not help")
    panel = probed_page.locator("#panel").inner_text().lower()
    assert "advice" not in panel
    assert "llama4" not in panel
    assert probed_page.locator('[data-column="advice"]').count() == 0


def test_what_it_looks_at_when_asked_has_the_fact_marked(probed_page: Page, asked: dict[str, Any]) -> None:
    probe, head = asked["probe"], finders(asked)[1]
    probed_page.locator("#finders button").nth(1).click()
    assert probed_page.locator("#questions button").count() == len(probe["looked"]) == 8
    for place, looked in list(enumerate(probe["looked"]))[::3]:
        probed_page.locator("#questions button").nth(place).click()
        start, stop = looked["span"]
        verdict = probed_page.locator("#asking .verdict").inner_text()
        assert verdict == ("answered rightly" if looked["right"] else "answered wrongly")
        asking = (probed_page.locator("#asking").text_content() or "").replace("·", " ")
        assert "".join(looked["question"]).strip() in asking
        fact = "".join(probe["haystack"][start:stop]).replace("\n", "⏎")
        assert probed_page.locator("#fact .fact").text_content() == fact
        own = next(each for each in looked["heads"] if (each["layer"], each["head"]) == (head["layer"], head["head"]))
        weights = [as_number(text) for text in probed_page.locator("#looked-keys .weight b").all_inner_texts()]
        assert weights == pytest.approx(own["weights"], rel=0.06)
        inside = [start <= key < stop for key in own["keys"]]
        marked = probed_page.locator("#looked-keys li").evaluate_all("all => all.map(li => li.matches('.in-fact'))")
        assert marked == inside
        where = probed_page.locator("#looked-keys .where").all_inner_texts()
        for text, key in zip(where, own["keys"], strict=True):
            asked_itself = key >= len(probe["haystack"])
            plain = "the question" if asked_itself else f"token {key:,}"
            assert text == ("sink" if key == 0 else "the fact" if start <= key < stop else plain)
        around = probed_page.locator("#looked-keys mark").all_text_contents()
        words = [*probe["haystack"], *looked["question"]]
        assert [each.replace("·", " ").replace("⏎", "\n") for each in around] == [words[key] for key in own["keys"]]
    other = others(asked)
    probed_page.click(cell(other["layer"], other["head"]))
    assert not probed_page.locator("#looked").is_visible()
    assert probed_page.locator("#keys li").count() > 0


def test_the_fact_begins_and_ends_where_its_span_does(tab: Page, probed: Diagnosis, tmp_path: Path) -> None:
    probe = probed.probe
    assert probe is not None
    looked = probe.looked[-1]
    start, stop = looked.span
    keys = [start, stop - 1, start - 1, stop, 0, len(probe.haystack) - 1, len(probe.haystack), -1]
    planted = replace(looked, keys=np.tile(keys, (len(looked.keys), 1)))
    made = Diagnosis(
        probed.subject, probed.question, probed.readings, probed.heads, replace(probe, looked=(planted,)), None
    )
    with opened(tab, made.save_html(tmp_path / "span.html")) as page:
        last = len(probe.haystack) - 1
        fact = "the fact"
        tokens = [f"token {key:,}" for key in (start - 1, stop, last)]
        expected = [fact, fact, tokens[0], tokens[1], "sink", tokens[2], "the question", "before the text"]
        assert page.locator("#looked-keys .where").all_inner_texts() == expected
        marked = page.locator("#looked-keys li").evaluate_all("all => all.map(li => li.matches('.in-fact'))")
        assert marked == [True, True, *[False] * 6]
        words = probe.haystack[start + 1 : stop][:6]
        assert page.locator("#looked-keys li").first.locator(".after .fact").text_content() == "".join(words)


def test_what_was_asked_stays_text_too(tab: Page, probed: Diagnosis, tmp_path: Path) -> None:
    assert probed.probe is not None
    looked = tuple(replace(each, question=evil(each.question)) for each in probed.probe.looked)
    hostile = replace(probed.probe, haystack=evil(probed.probe.haystack), looked=looked)
    tried = tuple(replace(each, remedy=replace(each.remedy, label=EVIL[0])) for each in probed.trials.tried)
    made = Diagnosis(
        probed.subject,
        probed.question,
        probed.readings,
        Heads(probed.heads, hostile),
        hostile,
        None,
        replace(probed.trials, tried=tried),
    )
    with opened(tab, made.save_html(tmp_path / "evil.html")) as page:
        for button in page.locator("#questions button").all():
            button.click()
        assert EVIL[0] in (page.locator("#asking").text_content() or "")
        assert EVIL[0] in page.locator("#tried li").first.inner_text()
        names = page.locator("#looked-keys li *, #asking *, #fact *").evaluate_all("all => all.map(e => e.localName)")
        assert set(names) <= {"span", "b", "bdi", "mark"}
        assert page.evaluate("window.pwned === undefined")


def test_forecasts_say_how_they_were_checked(probed_page: Page, asked: dict[str, Any]) -> None:
    ahead = probed_page.locator("#ahead")
    assert "4,096 tokens" in ahead.locator("h2").inner_text()
    for which in ("top", "alpha"):
        assert asked["forecast"][which]["sentence"] in ahead.inner_text()
    # facts are long in bytes: they were asked for at 512 and 1,024 tokens only, which checks a step of 2
    assert not asked["forecast"]["is_checked"]
    assert "Attention on what is asked for: 4,096 tokens are beyond what was checked" in ahead.inner_text()


def test_a_target_further_than_checked_is_marked(page: Page, data: dict[str, Any]) -> None:
    assert not data["forecast"]["is_checked"]
    assert "65,536 tokens are beyond what was checked" in page.locator("#ahead").inner_text()


def test_without_a_probe_it_says_why(page: Page, data: dict[str, Any]) -> None:
    assert data["probe"] is None
    assert data["why_no_probe"] in page.locator("#why-no-probe").inner_text()
    assert page.locator("#asked svg").count() == 0
    assert page.locator("#colour").input_value() == "kind"
    assert page.locator('#colour option[value="score"]').count() == 0
    assert not page.locator("#looked").is_visible()
    assert not page.locator("#head-asked").is_visible()
    assert page.locator('[data-column="score"]').count() == 0
    assert page.locator("#advice").inner_text() == data["trials"]["advice"]
    assert page.locator("#tried li").count() == 0


def test_without_retrieval_heads_recall_is_still_shown(tab: Page, probed: Diagnosis, tmp_path: Path) -> None:
    heads = Heads((replace(head, kind=head.plain_kind) for head in probed.heads), probed.probe)
    none = Diagnosis(probed.subject, probed.question, probed.readings, heads, probed.probe)
    with opened(tab, none.save_html(tmp_path / "none.html")) as page:
        assert page.locator("#no-finders").is_visible()
        assert page.locator("#chart-recall .plot > svg path.line.recall").count() == 2
        assert page.locator("#chart-alpha, #chart-answers, #finders").count() == 0
        assert page.locator("#colour").input_value() == "score"
        assert not page.locator("#looked").is_visible()
        assert page.locator("#ahead h3").all_inner_texts() == ["Top weight on plain text"]


def test_figures_that_are_missing_are_dashes(tab: Page, probed: Diagnosis, tmp_path: Path) -> None:
    """No AUC, no right answers at some lengths, and an error that is not a number, as with a single haystack."""

    def poor(head: Any) -> Any:
        score = head.asked.score._replace(error=math.nan)
        return replace(head, asked=replace(head.asked, auc=None, score=score, when_right={}))

    heads = Heads((poor(head) for head in probed.heads), probed.probe)
    made = Diagnosis(probed.subject, probed.question, probed.readings, heads, probed.probe)
    with opened(tab, made.save_html(tmp_path / "poor.html")) as page:
        tiles = page.locator("#asked-facts").inner_text()
        assert "±" not in tiles
        assert "too few right or wrong answers" in tiles
        assert page.locator("#chart-asked .plot > svg path.line.right").count() == 0
        assert page.locator("#chart-asked .plot > svg path.line.wrong").count() == 1
        page.click('th[data-column="auc"] button')
        assert set(column(page, "auc")) == {"–"}


CONTRASTS = """() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const paint = (colour) => { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); };
  const luminance = () => [...context.getImageData(0, 0, 1, 1).data].slice(0, 3)
    .map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const low = [];
  for (const each of document.querySelectorAll("body *")) {
    const text = [...each.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!text || !each.checkVisibility() || each.closest(":disabled, option, script, .sign")) continue;
    const around = [];
    for (let node = each; node; node = node.parentElement) around.unshift(getComputedStyle(node).backgroundColor);
    paint("white");
    around.forEach(paint);
    const behind = luminance();
    paint(getComputedStyle(each)[each.namespaceURI.endsWith("svg") ? "fill" : "color"]);
    const ink = luminance();
    const ratio = (Math.max(ink, behind) + 0.05) / (Math.min(ink, behind) + 0.05);
    if (ratio < 4.5) low.push([each.localName, each.className, each.textContent.slice(0, 30), ratio]);
  }
  return low;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible_in_both_themes_and_the_button_switches(
    browser: Browser, probed_file: Path, scheme: Any
) -> None:
    with opened(browser.new_page(color_scheme=scheme), probed_file) as page:
        paper = "() => getComputedStyle(document.body).backgroundColor"
        at_first = page.evaluate(paper)
        assert (luminance(at_first) > 0.5) == (scheme == "light")
        assert page.evaluate(CONTRASTS) == []
        chart = page.locator("#chart-top svg text").first
        ink = chart.evaluate("text => getComputedStyle(text).fill")
        page.click("#theme")
        assert (luminance(page.evaluate(paper)) > 0.5) == (scheme == "dark")
        assert chart.evaluate("text => getComputedStyle(text).fill") != ink
        assert page.evaluate(CONTRASTS) == []
        page.click("#theme")
        assert page.evaluate(paper) == at_first


def test_nothing_sticks_out_at_any_width(probed_page: Page) -> None:
    for width in (1280, 760, 400):
        probed_page.set_viewport_size({"width": width, "height": 800})
        for chart in ("top", "alpha", "recall", "answers", "asked"):
            shown = f"document.querySelector('#chart-{chart} .plot > svg').viewBox.baseVal.width"
            wait_until(probed_page, f"{shown} < {width}")
        assert probed_page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_control_has_a_name_and_a_visible_focus(probed_page: Page) -> None:
    page = probed_page
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input, a, [tabindex]")].filter((each) => {
          const own = each.matches("select, input") ? "" : each.textContent;
          const label = each.labels?.[0]?.textContent.replace(each.textContent, "");
          const name = each.getAttribute("aria-label") ?? label ?? own;
          return each.checkVisibility() && !name.trim();
        }).map((each) => each.outerHTML)"""
    )
    assert nameless == []
    ids = page.evaluate(
        "[...document.querySelectorAll('[aria-labelledby]')].map(each => each.getAttribute('aria-labelledby'))"
    )
    assert all(page.locator(f"#{each}").inner_text().strip() for each in ids)
    for _ in range(12):
        page.keyboard.press("Tab")
        style = page.evaluate(
            "(({outlineStyle, outlineWidth}) => [outlineStyle, outlineWidth])(getComputedStyle(document.activeElement))"
        )
        assert style == ["solid", "2px"], page.evaluate("document.activeElement.outerHTML")


def test_without_scripts_it_says_so_and_keeps_its_words(browser: Browser, file: Path, diagnosis: Diagnosis) -> None:
    with opened(browser.new_page(java_script_enabled=False), file) as page:
        assert page.locator("noscript p").is_visible()
        assert (
            f"{len(diagnosis.heads.diluting)} of {LAYERS * HEADS} heads dilute" in page.locator(".summary").inner_text()
        )
        assert diagnosis.trials.advice in page.locator("#tried").inner_text()
        assert "γ ≥ 0.25" in page.locator(".prose").last.inner_text()


def bert() -> Diagnosis:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        vocab_size=50,
        max_position_embeddings=128,
    )
    return diagnose(transformers.BertModel(config).eval(), None, torch.randint(50, (128,)), target=128)


def sliding() -> Diagnosis:
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=32,
        vocab_size=50,
        sliding_window=32,
        max_position_embeddings=256,
    )
    return diagnose(transformers.MistralForCausalLM(config).eval(), None, torch.randint(50, (800,)), length=128)


@pytest.mark.parametrize(
    "made",
    [lambda: gpt2(measures=[]), lambda: gpt2(sinks=2, length=64), bert, sliding],
    ids=["only what verdicts need", "short, two sinks", "encoder, no forecast", "sliding windows"],
)
def test_other_diagnoses_are_drawn_too(tab: Page, made: Any, tmp_path: Path) -> None:
    found = made()
    with opened(tab, found.save_html(tmp_path / "page.html")) as page:
        drawn = page.evaluate(
            """() => data.measures.map(({ name, drawn }) => {
              for (const id of drawn ? ["measure", "colour"] : ["colour"]) {
                byId(id).value = name;
                byId(id).dispatchEvent(new Event("change"));
              }
              return [name, byId("charts").innerHTML.includes("NaN"), byId("map-legend").textContent !== ""];
            })"""
        )
        assert [each[1:] for each in drawn] == [[False, True]] * len(found.layers[0].measures)
        assert page.locator("#chart-top .plot > svg path.median").count() == 1
        assert page.locator("#keys li").count() > 0
        ahead = found.question.target > found.question.length
        assert page.locator("#ahead").count() == ahead
        sees_more = found.heads[0].n_target > max(found.layers[0].n)
        assert page.locator("#chart-top .mark").count() == sees_more
