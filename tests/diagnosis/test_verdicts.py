"""Several windows of several texts become one verdict on each head: every text counts alike."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import undilute as ud
from tests.diagnosis.finder import FINDER, filler, finder, tokenizer
from undilute.diagnosis import fit
from undilute.diagnosis.heads import Head
from undilute.diagnosis.verdicts import Question, Reading, verdicts, weights_of
from undilute.models.capture import LayerSample

ROWS = np.unique(np.geomspace(16, 1024, 32).round().astype(np.int64))
QUESTION = Question(1024, 4096)
LICENCE = (Path(__file__).parents[2] / "LICENSE").read_text()[:3000]


def reading(text: int, gap: float = 6.0, slope: float = 1.0, sink: float = 0.0, noise: float = 0.0) -> Reading:
    """A window in which the one head of a model follows logit α = gap − slope·ln m."""
    others = QUESTION.others(ROWS)
    shaken = noise * np.random.default_rng([text, int(100 * gap)]).standard_normal(len(ROWS))
    line = gap - slope * np.log(others) + shaken
    weight = fit.sigmoid(line)
    measures = {
        "top_weight_without_sink": weight,
        "top_weight_doubled_without_sink": fit.sigmoid(line + gap),
        "top_weight_quadrupled_without_sink": fit.sigmoid(line + 3 * gap),
        "n_eff_without_sink": 1 + (1 - weight) * others / 10,
        "logit_spread": np.full(len(ROWS), gap),
        "lead_without_sink": np.full(len(ROWS), gap),
        "sink_share": np.full(len(ROWS), sink),
        "recent_share_without_sink": np.full(len(ROWS), 0.1),
    }
    rows = len(ROWS)
    layer = LayerSample(
        name="layers.0",
        index=0,
        batch=np.zeros(rows, np.int64),
        position=ROWS - 1,
        n=ROWS,
        measures={name: values[None] for name, values in measures.items()},
        keys=np.zeros((1, rows, 8), np.int64),
        key_weights=np.zeros((1, rows, 8)),
        looks_ahead=False,
    )
    return Reading(text, [layer])


def verdict(*readings: Reading) -> Head:
    (head,) = verdicts(readings, QUESTION)
    return head


# ---------------------------------------------------------------- weights


def test_windows_of_a_text_share_its_weight() -> None:
    weights = weights_of(np.array([0, 1, 1, 1]), seed=0)
    assert np.allclose(weights[0], [1 / 2, 1 / 6, 1 / 6, 1 / 6])
    assert np.allclose(weights.sum(1), 1.0)
    assert np.allclose(weights[1:].mean(0), weights[0], atol=0.05)


def test_texts_are_drawn_whole_and_windows_within_them() -> None:
    several = weights_of(np.array([0, 0, 1, 1, 2, 2]), seed=1)[1:]
    of_text = several.reshape(-1, 3, 2).sum(-1) * 3
    assert np.allclose(of_text, of_text.round())  # a text is drawn 0, 1, 2 or 3 times
    assert {0, 1, 2, 3} <= set(of_text.round().astype(int).ravel().tolist())
    one = weights_of(np.array([0, 0, 0, 0]), seed=1)[1:]
    assert (one == 0).any()  # with a single text, its windows are what is drawn


# ---------------------------------------------------------------- figures


def test_every_text_counts_alike() -> None:
    alone, several = reading(0, gap=8.0), [reading(1, gap=5.0) for _ in range(3)]
    head = verdict(alone, *several)
    assert head.gap == pytest.approx(6.5, abs=1e-3)
    assert head.slope == pytest.approx(1.0, abs=1e-3)
    assert head.medians["lead_without_sink"] == pytest.approx(6.5)
    assert verdict(*several, alone).gap == pytest.approx(head.gap)
    assert verdict(alone, several[0]).gap == pytest.approx(head.gap)


def test_more_windows_of_the_same_text_change_nothing_but_texts_do() -> None:
    texts = [reading(text, gap=5.0 + text, noise=0.2) for text in range(3)]
    again = [*texts, texts[0], texts[0]]
    assert verdict(*again).gap == pytest.approx(verdict(*texts).gap)
    assert verdict(*texts, reading(3, gap=5.0)).gap != pytest.approx(verdict(*texts).gap, abs=0.1)


def test_the_interval_is_that_of_texts_not_of_rows() -> None:
    """Texts that disagree make it wide, however clean each of them is."""
    alike = verdict(*(reading(text, slope=0.5) for text in range(4)))
    apart = verdict(*(reading(text, slope=slope) for text, slope in enumerate((0.2, 0.4, 0.6, 0.8))))
    assert alike.gamma_high - alike.gamma_low < 1e-3
    assert apart.gamma_high - apart.gamma_low > 0.1
    assert apart.slope == pytest.approx(alike.slope, abs=1e-3)
    assert apart.gamma_low <= apart.gamma <= apart.gamma_high


def test_a_figure_that_a_window_lacks_is_that_of_the_others() -> None:
    lacking = reading(0)
    lacking.layers[0].measures["recent_share_without_sink"][:] = np.nan
    assert verdict(lacking, reading(1)).medians["recent_share_without_sink"] == pytest.approx(0.1)
    assert math.isnan(verdict(lacking).medians["recent_share_without_sink"])


# ---------------------------------------------------------------- kinds


def test_the_share_is_of_windows_with_every_text_alike() -> None:
    """A sink in one text's only window, diluting in all three of the other's."""
    idle = reading(0, sink=0.8)
    busy = [reading(1, gap=4.6, sink=0.0) for _ in range(3)]
    assert verdict(busy[0]).kind == "diluting"
    head = verdict(idle, *busy)
    assert head.kind == "diluting"  # a mean of 0.4 of its attention rests
    assert head.share == pytest.approx(0.5)
    assert not head.is_steady
    two_of_three = verdict(idle, reading(1, gap=4.6), reading(2, gap=4.6))
    assert two_of_three.share == pytest.approx(2 / 3)
    assert two_of_three.is_steady


def test_one_window_is_all_of_them() -> None:
    head = verdict(reading(0, gap=4.6))
    assert (head.kind, head.share, head.is_steady) == ("diluting", 1.0, True)


def test_a_kind_of_the_mean_may_be_that_of_no_window() -> None:
    """Half of the windows rest on the sink, half hold: the share says how little the kind means."""
    head = verdict(reading(0, gap=12.0, sink=0.9), reading(1, gap=3.0, sink=0.3))
    assert head.kind == "sink"
    assert head.share == pytest.approx(0.5)
    assert not head.is_steady


# ---------------------------------------------------------------- what stands before a text


@pytest.fixture(scope="module")
def plain() -> ud.Diagnosis:
    return ud.diagnose(finder(), tokenizer(), filler(0), 512, quick=True)


def test_a_mark_at_its_start_changes_nothing(plain: ud.Diagnosis) -> None:
    marked = ud.diagnose(finder(), tokenizer(), f"\ufeff{filler(0)}", 512, quick=True)
    assert marked.curves().equals(plain.curves())
    assert marked.summary == plain.summary
    assert marked.recall().equals(plain.recall())


def test_a_licence_before_it_changes_no_headline_by_more_than_its_interval(plain: ud.Diagnosis) -> None:
    licensed = ud.diagnose(finder(), tokenizer(), f"{LICENCE}\n\n{filler(0)}", 512, quick=True)
    assert licensed.subject.texts[0].tokens > plain.subject.texts[0].tokens + 400
    assert licensed.steady_counts == plain.steady_counts
    one, other = (each.heads.at(*FINDER).alpha for each in (licensed, plain))
    for length in (256, 512):
        assert one[length].low <= other[length].high
        assert other[length].low <= one[length].high
    for mine, theirs in zip(licensed.recalls, plain.recalls, strict=True):
        assert mine.right.low <= theirs.right.high
        assert theirs.right.low <= mine.right.high


def test_a_licence_is_not_even_read_and_steady_heads_stay_what_they_are() -> None:
    """Heads that look at whatever a text has: those of a small model with large random weights."""
    torch.manual_seed(0)
    config = GPT2Config(n_embd=64, n_layer=2, n_head=8, n_positions=256, vocab_size=400, initializer_range=0.5)
    model, words = GPT2LMHeadModel(config).eval(), filler(0, 1000)
    plain, licensed = (ud.diagnose(model, tokenizer(), text, windows=4) for text in (words, f"{LICENCE}\n\n{words}"))
    before = licensed.subject.texts[0].tokens - plain.subject.texts[0].tokens
    assert before > 400
    assert min(licensed.subject.texts[0].windows) >= before
    assert len({head.kind for head in plain.heads}) > 1
    both = [pair for pair in zip(plain.heads, licensed.heads, strict=True) if all(head.is_steady for head in pair)]
    assert len(both) >= 12
    assert all(one.kind == other.kind for one, other in both)
    for kind, number in plain.steady_counts.items():
        assert abs(licensed.steady_counts[kind] - number) <= len(plain.heads) - len(both)
