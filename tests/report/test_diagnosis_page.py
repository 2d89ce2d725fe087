"""The page of a diagnosis: its text here, its behaviour in a real browser."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers

import undilute as ud
from tests.report.browser import executable, launched, opened, wait_until
from undilute.diagnosis import Diagnosis, diagnose
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


def test_the_page_holds_all_of_the_data(diagnosis: Diagnosis, data: dict[str, Any]) -> None:
    scripts = Elements(diagnosis_page.page(diagnosis)).scripts
    embedded = {attributes["id"]: json.loads(text) for attributes, text in scripts if "id" in attributes}
    overview = embedded.pop("overview")
    details = [head for layer in range(LAYERS) for head in embedded.pop(f"layer-{layer}")]
    assert not embedded
    overview["heads"] = [head | more for head, more in zip(overview["heads"], details, strict=True)]
    assert overview == data


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
    broken = Diagnosis(subject, diagnosis.question, diagnosis.layers, diagnosis.heads)
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

    for measure in ("top_target", "top_now", "entropy", "n_eff"):
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
    n, top = np.log(layer["n"]), np.log(head["points"]["top_weight_without_sink"])
    across, up = np.polyfit(n, x, 1), np.polyfit(top, y, 1)
    assert np.abs(np.polyval(across, n) - x).max() < 0.1
    assert np.abs(np.polyval(up, top) - y).max() < 0.1

    mark = page.locator("#chart-top .mark circle").evaluate("p => [p.cx.baseVal.value, p.cy.baseVal.value]")
    assert mark == pytest.approx(
        [np.polyval(across, math.log(TARGET)), np.polyval(up, math.log(head["top_target"]))], abs=0.5
    )
    for style, ends in (
        ("path.fit:not(.forecast)", ("top_short", "top_now")),
        ("path.fit.forecast", ("top_now", "top_target")),
    ):
        line = page.locator(f"#chart-top .plot > svg {style}").get_attribute("d") or ""
        pixels = np.array(re.findall(r"([\d.]+) ([\d.]+)", line), dtype=float)
        assert pixels[[0, -1], 1] == pytest.approx(np.polyval(up, np.log([head[end] for end in ends])), abs=0.5)
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
    page.fill("#find", "LLAMA4")
    assert len(column(page, "kind")) == sum(head.advice.rule == "llama4" for head in diagnosis.heads)
    page.fill("#find", "nothing has this")
    assert page.locator("#matches").inner_text() == f"0 of {LAYERS * HEADS} heads"


def test_a_row_of_the_table_selects_its_head(page: Page) -> None:
    page.click('#table tbody tr[data-head="7"] td[data-column="advice"]')
    assert page.locator("#head-title").inner_text() == "Layer 1, head 3"
    assert page.locator('#table tr[aria-current="true"]').get_attribute("data-head") == "7"
    page.locator('#table tbody tr[tabindex="0"]').focus()
    page.keyboard.press("ArrowDown")
    second = page.evaluate("document.activeElement.dataset.head")
    page.keyboard.press("Enter")
    assert page.locator("#head-title").inner_text() == f"Layer {int(second) // HEADS}, head {int(second) % HEADS}"


def test_many_heads_are_shown_a_page_at_a_time(tab: Page, diagnosis: Diagnosis, tmp_path: Path) -> None:
    times = 5
    layers = [replace(layer, index=place) for place, layer in enumerate(diagnosis.layers * times)]
    heads = [replace(head, layer=place // HEADS) for place, head in enumerate([*diagnosis.heads] * times)]
    many = Diagnosis(diagnosis.subject, diagnosis.question, layers, heads)
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


def test_advice_can_be_copied(page: Page, diagnosis: Diagnosis) -> None:
    advised = next(head for head in diagnosis.heads if head.advice.rule)
    left_alone = next(head for head in diagnosis.heads if not head.advice.rule)
    page.click(cell(advised.layer, advised.head))
    code = page.locator("#advice-code").inner_text()
    meant = ud.rules.get(advised.advice.rule, **advised.advice.parameters)
    assert ud.rules.to_data(eval(code, {"undilute": ud})) == ud.rules.to_data(meant)
    page.click("#copy")
    wait_until(page, "['Copied', 'Selected'].includes(document.getElementById('copy').textContent)")
    assert page.evaluate("getSelection().toString()") == code
    page.click(cell(left_alone.layer, left_alone.head))
    assert not page.locator("#advice-line").is_visible()


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
def test_text_is_legible_in_both_themes_and_the_button_switches(browser: Browser, file: Path, scheme: Any) -> None:
    with opened(browser.new_page(color_scheme=scheme), file) as page:
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


def test_nothing_sticks_out_at_any_width(page: Page) -> None:
    for width in (1280, 760, 400):
        page.set_viewport_size({"width": width, "height": 800})
        wait_until(page, f"document.querySelector('#chart-top .plot > svg').viewBox.baseVal.width < {width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_control_has_a_name_and_a_visible_focus(page: Page) -> None:
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
        assert "γ ≥ 0.25" in page.locator(".prose").inner_text()


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


@pytest.mark.parametrize(
    "made",
    [lambda: gpt2(measures=[]), lambda: gpt2(sinks=2, length=64), bert],
    ids=["only what verdicts need", "short, two sinks", "encoder, no forecast"],
)
def test_other_diagnoses_are_drawn_too(tab: Page, made: Any, tmp_path: Path) -> None:
    found = made()
    with opened(tab, found.save_html(tmp_path / "page.html")) as page:
        drawn = page.evaluate(
            """() => data.measures.map(({ name }) => {
              for (const id of ["measure", "colour"]) {
                byId(id).value = name;
                byId(id).dispatchEvent(new Event("change"));
              }
              return [name, byId("charts").innerHTML.includes("NaN"), byId("map-legend").textContent !== ""];
            })"""
        )
        assert [each[1:] for each in drawn] == [[False, True]] * len(found.layers[0].measures)
        assert page.locator("#chart-top .plot > svg path.median").count() == 1
        assert page.locator("#keys li").count() > 0
        assert (page.locator("#chart-top .mark").count() == 1) == (found.question.target > found.question.length)
