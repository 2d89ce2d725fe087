"""The small transformer, its tasks, and runs that survive a kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from docs.tables import experiments
from torch import Tensor
from torch.nn.functional import cross_entropy

import undilute as ud
from undilute.nn.heads import merge_heads, split_heads
from undilute.report.result import Result
from undilute_papers.length_generalisation import LengthGeneralisation
from undilute_papers.length_generalisation.evaluation import Lines, Unit, batches, evaluate, fetching_head, lengths
from undilute_papers.length_generalisation.length_generalisation_findings import charts, comparisons, sentences
from undilute_papers.length_generalisation.summary import Outcomes
from undilute_papers.length_generalisation.tasks import TASKS, VALUES, chance
from undilute_papers.length_generalisation.training import Run, train
from undilute_papers.length_generalisation.transformer import POSITIONS, Rotary, Transformer, last_weights
from undilute_papers.reproduction.checkpoint import Checkpoint
from undilute_papers.reproduction.evaluated import ARGMAX
from undilute_papers.reproduction.training import Job, carry_out
from undilute_papers.reproduction.workers import ignore

SYMBOLS = 160
SMALL = Run("softmax", ("recall", "copying"), 0, 12, 32, 256, 32, 2, 2, "alternating", 64)
RULES = ("softmax", "ssmax", "entmax15", "sparsemax", "as-entmax", "focus")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(rule: str = "softmax", positions: str = "alternating") -> Transformer:
    torch.manual_seed(0)
    return Transformer(rule, SYMBOLS, 32, 2, 2, positions, 32, 256)


def looked_up(tokens: list[int], asking: int) -> int:
    """An oracle that reads the context from the left: what follows the first occurrence of the token that asks?"""
    return tokens[tokens.index(asking) + 1]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("length", [8, 12, 16, 64, 256])
def test_the_context_determines_every_answer(task: str, length: int) -> None:
    batch = TASKS[task](6, length, SYMBOLS, seeded(length))
    assert batch.tokens.shape == (6, length)
    asked = batch.answers.shape[1]
    for tokens, answers in zip(batch.tokens.tolist(), batch.answers.tolist(), strict=True):
        assert [looked_up(tokens[:-asked], asking) for asking in tokens[-asked:]] == answers
        keys = tokens[:-asked][:: 2 if task == "recall" else 1]
        assert len(set(keys)) == len(keys)
    assert torch.equal(batch.tokens.gather(1, batch.sources), batch.answers)
    assert not torch.equal(batch.tokens, TASKS[task](6, length, SYMBOLS, seeded(length + 1)).tokens)


def test_recalled_values_are_no_keys_and_chance_is_what_guessing_gives() -> None:
    recall, copying = (TASKS[task](4000, 16, SYMBOLS, seeded()) for task in ("recall", "copying"))
    assert int(recall.answers.min()) >= SYMBOLS - VALUES > int(recall.tokens[:, 8:].max())
    guessed = torch.randint(SYMBOLS - VALUES, SYMBOLS, recall.answers.shape, generator=seeded(1))
    assert float((guessed == recall.answers).double().mean()) == pytest.approx(chance("recall", 16), rel=0.1)
    picked = copying.tokens.gather(1, torch.randint(10, copying.answers.shape, generator=seeded(1)))
    assert float((picked == copying.answers).double().mean()) == pytest.approx(chance("copying", 16), rel=0.1)


@pytest.mark.parametrize("kind", POSITIONS)
def test_rotary_scores_depend_on_position_differences_only(kind: str) -> None:
    rotary = Rotary(16, kind, 64, 4096)
    q, k = torch.randn(2, 1, 1, 1, 16, generator=seeded()).unbind()

    def score(at_query: int, at_key: int) -> float:
        turned = rotary.turned(q, torch.tensor([at_query])), rotary.turned(k, torch.tensor([at_key]))
        return float((turned[0] * turned[1]).sum())

    for difference in (0, 1, 17, 900):
        scores = [score(start + difference, start) for start in (0, 5, 333, 3000)]
        assert scores == pytest.approx([scores[0]] * 4, abs=1e-4)
    assert score(1, 0) != pytest.approx(score(2, 0), abs=1e-3)


def test_alternating_positions_show_every_angle_in_training() -> None:
    """No pair of features turns slower than once in the training length, and none turns faster than half a turn."""
    per_token = Rotary(32, "alternating", 64, 4096)
    angle = torch.atan2(per_token.sin[1], per_token.cos[1])
    assert float(angle.min()) == pytest.approx(2 * torch.pi / 64)
    assert float(angle.abs().max()) == pytest.approx(torch.pi)


@pytest.mark.parametrize("trained_with", RULES)
@pytest.mark.parametrize("positions", POSITIONS)
def test_the_model_is_causal(trained_with: str, positions: str) -> None:
    model = small(trained_with, positions)
    tokens = torch.randint(SYMBOLS, (2, 24), generator=seeded())
    changed = tokens.clone()
    changed[:, 16:] = (changed[:, 16:] + 1) % SYMBOLS
    before, after = model(tokens, 24), model(changed, 24)
    torch.testing.assert_close(before[:, :16], after[:, :16])
    assert not torch.allclose(before[:, 16:], after[:, 16:])


@pytest.mark.parametrize("trained_with", RULES)
def test_the_watched_weights_are_those_of_the_layer(trained_with: str) -> None:
    for layer in small(trained_with).layers():
        x = torch.randn(2, 40, 32, generator=seeded())
        values = split_heads(layer.v_proj(x), layer.num_heads)
        expected = layer.out_proj(merge_heads(last_weights(layer, x, 8) @ values))
        torch.testing.assert_close(expected, layer(x)[:, -8:], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_heads_of_rotary_layers_begin_by_looking_back() -> None:
    torch.manual_seed(0)
    model = Transformer("softmax", 2560, 128, 4, 4)
    x = model.embedding(torch.randint(2560, (8, 64), generator=seeded()))
    weights = last_weights(model.layers()[0], model.blocks[0].attention_norm(x), 16).mean(0)  # (heads, rows, keys)
    for head in range(4):
        back = torch.stack([weights[head, row, 48 + row - head] for row in range(16)])
        assert float(back.mean()) > 0.5
    assert all(layer.rotate is None for layer in model.layers()[1::2])


def test_the_default_model_has_about_a_million_parameters() -> None:
    model = LengthGeneralisation().planned()[0].transformer()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert 0.9e6 < parameters < 1.2e6


@pytest.mark.parametrize("trained_with", ["ssmax", "as-entmax"])
def test_a_short_training_lowers_the_loss(trained_with: str) -> None:
    run = replace(SMALL, rule=trained_with, steps=24)
    batch = TASKS["recall"](64, 16, SYMBOLS, seeded())

    @torch.no_grad()
    def loss(model: Transformer) -> float:
        return float(cross_entropy(model(batch.tokens, 8).flatten(0, 1), batch.answers.flatten()))

    trained, _ = train(run, Checkpoint(None), ignore)
    assert loss(trained) < loss(run.transformer()) - 0.5


def _one_thread(run: Run, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    carry_out(Job(run, folder, every_seconds=0.0), ignore)


def test_sigkill_and_resume_gives_the_same_numbers(tmp_path: Path) -> None:
    run = replace(SMALL, steps=40)
    process = multiprocessing.get_context("spawn").Process(target=_one_thread, args=(run, tmp_path))
    process.start()
    saved = tmp_path / f"{run.stem}.pt"
    while not saved.exists() and process.is_alive():
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    state = Checkpoint(saved).load()
    assert state is not None
    assert 0 < state["step"] < run.steps
    resumed = LengthGeneralisation(**_options(run), work=tmp_path).run()
    whole = LengthGeneralisation(**_options(run)).run()
    assert resumed.tables == whole.tables
    assert not saved.exists()
    again = LengthGeneralisation(**_options(run), work=tmp_path).run()  # read from what was found
    assert again.tables == whole.tables


def _options(run: Run) -> dict[str, Any]:
    options = {name: value for name, value in asdict(run).items() if name != "rule"}
    return {**options, "rules": (run.rule,), "seeds": 1, "workers": 1}


class Perfect(Transformer):
    """Answers by looking the token up in the context, whatever its weights."""

    def forward(self, tokens: Tensor, last: int) -> Tensor:
        for layer in self.layers():
            layer(self.embedding(tokens))  # so that there is attention to watch
        answers = [[looked_up(row[:-last], asking) for asking in row[-last:]] for row in tokens.tolist()]
        return torch.nn.functional.one_hot(torch.tensor(answers), SYMBOLS + 1).float()


@pytest.mark.parametrize("task", TASKS)
def test_whoever_looks_the_answer_up_has_everything_right(task: str) -> None:
    torch.manual_seed(0)
    model = Perfect("softmax", SYMBOLS, 32, 2, 2, "alternating", 32, 256)
    found = evaluate(model, "softmax", [task], 32, 300, seed=0)
    assert {line["accuracy"] for line in found["accuracy"]} == {100.0}
    assert {line["exact"] for line in found["accuracy"]} == {100.0}
    assert {line["accuracy_error"] for line in found["accuracy"]} == {0.0}
    assert all(line["answers"] >= 300 and line["sequences"] >= 16 for line in found["accuracy"])
    assert [line["length"] for line in found["accuracy"]][:5] == lengths(256) == [16, 32, 64, 128, 256]


class PerfectHalfOfTheTime(Perfect):
    """Knows every answer of the first half of a batch, and none of the others."""

    def forward(self, tokens: Tensor, last: int) -> Tensor:
        logits = super().forward(tokens, last)
        logits[len(tokens) // 2 :] *= -1
        return logits


def test_the_error_of_an_accuracy_counts_sequences_and_not_answers() -> None:
    """What is right in all of a sequence or in none of it says no more than one answer per sequence would."""
    torch.manual_seed(0)
    model = PerfectHalfOfTheTime("softmax", SYMBOLS, 32, 2, 2, "alternating", 32, 256)
    longest = evaluate(model, "softmax", ["recall"], 32, 64, seed=0)["accuracy"][4]
    assert (longest["length"], longest["sequences"], longest["answers"]) == (256, 16, 16 * 128)
    assert longest["accuracy"] == 50
    assert longest["accuracy_error"] == pytest.approx(100 * (16 * 0.25 / 15) ** 0.5 / 4)


def test_few_answers_are_asked_of_no_fewer_sequences() -> None:
    for length in (16, 256):
        tested = list(batches(small(), "copying", length, 1, seed=0))
        assert sum(len(batch.tokens) for batch in tested) == 16


def test_what_is_tested_can_be_tested_one_by_one_in_any_order() -> None:
    def backwards(units: Sequence[Unit], test: Callable[[Unit], Lines]) -> list[Lines]:
        return [test(unit) for unit in reversed(units)][::-1]

    model = small("ssmax")
    forwards = evaluate(model, "ssmax", ["recall", "copying"], 32, 16, 0)
    assert evaluate(model, "ssmax", ["recall", "copying"], 32, 16, 0, backwards) == forwards


def test_rules_share_their_test_sequences_and_get_back_their_own_rule() -> None:
    model = small("ssmax")
    first, second = (next(batches(model, "recall", 64, 100, seed=3)) for _ in range(2))
    assert torch.equal(first.tokens, second.tokens)
    own = [layer.rule for layer in model.layers()]
    evaluate(model, "ssmax", ["recall"], 32, 64, seed=0)
    assert all(layer.rule is rule for layer, rule in zip(model.layers(), own, strict=True))


def test_argmax_spreads_over_ties_only_and_adaptive_sharpens() -> None:
    found = evaluate(small(), "softmax", ["copying"], 32, 64, seed=0)["attention"]
    entropies = {
        name: [row["entropy"] for row in found if row["evaluated_with"] == name]
        for name in ("softmax", "adaptive", ARGMAX)
    }
    assert max(entropies[ARGMAX]) < min(entropies["softmax"])
    assert all(
        sharper <= plain + 1e-6 for sharper, plain in zip(entropies["adaptive"], entropies["softmax"], strict=True)
    )


def test_the_fetching_head_is_found() -> None:
    """Against every head of every layer, computed one row at a time."""
    model = small()
    layer, head = fetching_head(model, "recall", 32, seed=0)
    batch = next(batches(model, "recall", 32, 1, seed=0))
    x = model.embedding(batch.tokens)
    means = []
    for index, block in enumerate(model.blocks):
        weights = last_weights(model.layers()[index], block.attention_norm(x), 16)
        rows = range(16)
        for h in range(2):
            means.append(torch.stack([weights[range(len(x)), h, row, batch.sources[:, row]] for row in rows]).mean())
        x = block(x)
    assert int(torch.stack(means).argmax()) == 2 * layer + head


def outcome(trained: str, seed: int, evaluated: dict[str, tuple[float, float, float]]) -> dict[str, Any]:
    """What a run finds, made up: accuracies at 64, 128 and 256 tokens, each known to 3 points; the argmax has 70 %."""
    lines = [
        {"task": "recall", "evaluated_with": name, "length": length, "accuracy": accuracy, "accuracy_error": 3.0}
        for name, accuracies in {**evaluated, ARGMAX: (70.0, 70.0, 70.0)}.items()
        for length, accuracy in zip((64, 128, 256), accuracies, strict=True)
    ]
    seen = {"entropy": 0.0, "weight_of_answer": 1.0, "answer_on_top": 1.0}
    return {"run": {"rule": trained, "seed": seed}, "accuracy": lines, "attention": [seen for _ in lines]}


PLAIN, ADAPTIVE = ("softmax", "softmax"), ("softmax", "adaptive")
FOUND = [
    outcome("softmax", 0, {"softmax": (100, 80, 20), "adaptive": (100, 90, 60)}),
    outcome("softmax", 1, {"softmax": (96, 70, 30), "adaptive": (96, 90, 40)}),
    outcome("softmax", 2, {"softmax": (98, 75, 25), "adaptive": (98, 90, 50)}),
]


def test_several_seeds_give_students_intervals() -> None:
    from scipy import stats

    outcomes = Outcomes(FOUND, 64)
    assert outcomes.beyond("recall", PLAIN) == [50, 50, 50]
    assert outcomes.beyond("recall", ADAPTIVE) == [75, 65, 70]
    assert outcomes.learned("recall", ADAPTIVE)
    by_scipy = stats.ttest_rel([75, 65, 70], [50, 50, 50]).confidence_interval(0.95)
    half = (by_scipy.high - by_scipy.low) / 2
    assert outcomes.uncertainty_of_difference("recall", ADAPTIVE, PLAIN) == pytest.approx(half)
    assert outcomes.uncertainty("recall", ADAPTIVE) == pytest.approx(half)
    expected = stats.t.interval(0.95, 2, loc=25, scale=stats.sem([20, 30, 25]))
    assert outcomes.interval("recall", PLAIN, 256) == pytest.approx(expected)
    assert outcomes.interval("recall", PLAIN, 64)[1] == 100  # and not above


def test_a_single_seed_has_its_interval_from_test_sequences() -> None:
    single = Outcomes(FOUND[:1], 64)
    assert single.interval("recall", PLAIN, 256) == pytest.approx((20 - 1.96 * 3, 20 + 1.96 * 3))
    assert single.interval("recall", PLAIN, 64) == pytest.approx((100 - 1.96 * 3, 100))
    of_one = 1.96 * (3**2 + 3**2) ** 0.5 / 2  # of the mean of two lengths
    assert single.uncertainty("recall", PLAIN) == pytest.approx(of_one)
    assert single.uncertainty_of_difference("recall", ADAPTIVE, PLAIN) == pytest.approx(2**0.5 * of_one)


@pytest.mark.parametrize(
    ("seeds", "verdict", "kind"),
    [
        (1, "other set-up", "1.96 standard errors over the test sequences of one seed"),
        (2, "other set-up", "95 % interval by Student's t over 2 seeds"),  # 75 and 65 against 50: ± 63.5 points
        (3, "agrees", "95 % interval by Student's t over 3 seeds"),
    ],
)
def test_claims_and_sentences_say_which_interval_they_use(seeds: int, verdict: str, kind: str) -> None:
    outcomes = Outcomes(FOUND[:seeds], 64)
    experiment = LengthGeneralisation(rules=("softmax",), tasks=("recall",), seeds=seeds, longest=256)
    (claim,) = comparisons(outcomes, experiment)
    assert claim.verdict == verdict
    assert kind in claim.note
    assert ("one training each" in claim.note) == (seeds == 1)
    assert ("leaves open" in claim.note) == (seeds == 2)
    assert kind in sentences(outcomes, experiment)[1]
    shaded = {chart.name: kind in chart.note for chart in charts(outcomes, experiment)}
    assert shaded == {
        "recall-accuracy": True,
        "recall-argmax": True,
        "recall-entropy": False,
        "recall-weight-of-answer": False,
    }


def test_the_first_sentence_puts_the_rules_beside_softmax_at_the_longest_length() -> None:
    experiment = LengthGeneralisation(rules=("softmax", "ssmax", "sigmoid"), tasks=("recall",), seeds=1, longest=256)
    alone = FOUND[:1]
    ssmax = outcome("ssmax", 0, {"ssmax": (100, 95, 90)})
    unlearned = outcome("sigmoid", 0, {"sigmoid": (20, 20, 20)})
    start = "At 256 tokens, 4 times as long as in training, recall: softmax 20.0 % of the answers right, the others "
    said = sentences(Outcomes([*alone, ssmax, unlearned], 64), experiment)[0]
    assert said == start + "60.0 (adaptive on softmax's weights) to 90.0 (ssmax)."
    assert sentences(Outcomes(alone, 64), experiment)[0] == start + "60.0 (adaptive on softmax's weights)."
    assert "as long as in training" not in sentences(Outcomes([ssmax, unlearned], 64), experiment)[0]


def test_seeds_that_train_and_gaps_to_the_argmax_are_told() -> None:
    """The mean at the training length is high enough, and yet one seed did not train."""
    stuck = outcome("as-entmax", 2, {"as-entmax": (75, 20, 20)})
    found = [*FOUND, *(outcome("as-entmax", seed, {"as-entmax": (100, 90, 80)}) for seed in range(2)), stuck]
    experiment = LengthGeneralisation(rules=("softmax", "as-entmax"), tasks=("recall",), seeds=3, longest=256)
    outcomes = Outcomes(found, 64)
    assert outcomes.trained("as-entmax") == {0: 100, 1: 100, 2: 75}
    assert outcomes.learned("recall", ("as-entmax", "as-entmax"))
    said = sentences(outcomes, experiment)
    plateau = "Of 6 trainings 5 left their plateau (90 % or more of the answers to recall at 64 tokens); "
    assert f"{plateau}not as-entmax with seed 2 (2 of 3 trained)." in said
    gaps = "as-entmax +10.0, adaptive on softmax's weights +20.0, softmax +45.0."
    assert f"Recall: what the argmax in every head adds at 256 tokens, in points: {gaps}" in said
    line = next(row for row in outcomes.lines() if (row["trained_with"], row["length"]) == ("as-entmax", 256))
    assert (line["accuracy"], line["worst_seed"], line["best_seed"]) == (60, 20, 80)
    assert (line["argmax_of_the_same_logits"], line["gap_to_argmax"]) == (70, 10)
    assert (line["seeds_that_train"], line["seeds_that_do_not"]) == (2, "2")
    reported = comparisons(outcomes, experiment)[-1]
    assert (reported.printed, reported.computed) == ("leaves its plateau in 1 of 4 runs", "in 2 of 3 runs")


def test_focus_is_compared_seed_by_seed() -> None:
    found = [outcome("focus", seed, {"focus": (99, 80, 60 + seed)}) for seed in range(5)]
    found += [outcome("softmax", seed, {"softmax": (99, 80, 30), "adaptive": (99, 80, 61)}) for seed in range(6)]
    options = LengthGeneralisation(rules=("softmax", "focus"), tasks=("recall",), longest=256)
    said = [each for each in sentences(Outcomes(found, 64), options) if "focus is ahead" in each]
    assert said == [
        "Recall: how far focus is ahead at 256 tokens, in points, with the paired t-test over seeds: "
        "softmax +32.0 (p < 0.001), adaptive on softmax's weights +1.0 (p = 0.230)."
    ]
    assert not any("focus is ahead" in each for each in sentences(Outcomes(found[1:], 64), options))


def test_the_table_for_the_docs() -> None:
    """Read from a result's own table: means with the argmax, the spread of the seeds at the longest length shown."""
    means = Outcomes([*FOUND, outcome("ssmax", 0, {"ssmax": (50, 40, 30)})], 64).lines()
    result = Result("length-generalisation", {}, [], [], {"means": means}, [])
    lines = experiments.lengths(result, "recall", (64, 256)).splitlines()
    assert lines[0] == "| recall | 64 | 256 | seeds at 256 | seeds that train |"
    assert lines[2:] == [
        "| softmax | 98.0 (70.0) | 25.0 (70.0) | 20.0 to 30.0 | 3 of 3 |",
        "| adaptive (on softmax's weights) | 98.0 (70.0) | 50.0 (70.0) | 40.0 to 60.0 | 3 of 3 |",
        "| ssmax | 50.0 (70.0) | 30.0 (70.0) | 30.0 to 30.0 | 0 of 1 |",
    ]


def test_a_seed_must_do_every_task() -> None:
    both = outcome("ssmax", 0, {"ssmax": (99, 90, 80)})
    for line in list(both["accuracy"]):
        both["accuracy"].append({**line, "task": "copying", "accuracy": line["accuracy"] - 50})
    both["attention"] *= 2
    assert Outcomes([both], 64).trained("ssmax") == {0: 49}


def test_a_whole_run() -> None:
    """Every table and chart is there, and a model that learned nothing supports no claim."""
    result = LengthGeneralisation(
        rules=("softmax", "ssmax"),
        seeds=1,
        steps=2,
        train_length=32,
        longest=256,
        width=32,
        heads=2,
        layers=2,
        asked=64,
        workers=1,
    ).run()
    assert result.findings[0].startswith("No model learned recall at 32 tokens")
    assert {comparison.verdict for comparison in result.comparisons} == {"other set-up"}
    assert len(result.comparisons) == 4  # two claims, two tasks
    assert len(result.tables["accuracy"]) == len(result.tables["attention"]) == 2 * 5 * (3 + 2)
    assert len(result.charts) == 8
    drawn = [[series for series in chart.series if not series.bound] for chart in result.charts]
    assert all(len(curves) <= 7 for curves in drawn)  # more could not be told apart
    assert len(result.tables["means"]) == 2 * 5 * (3 + 2)
    assert "layer 1 scale.s = " in str(result.tables["training"][1]["learned"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "--steps = 0"),
        ({"seeds": -1}, "--seeds = -1"),
        ({"tasks": ("sorting",)}, "must be of recall, copying"),
        ({"tasks": ()}, "at least one of each"),
        ({"rules": ()}, "at least one of each"),
        ({"positions": "learned"}, "must be one of alternating, plain, random"),
        ({"train_length": 48}, "must be a power of two"),
        ({"longest": 64}, "must be at least 256"),
        ({"longest": 1024, "train_length": 1024}, "must be at least 2048"),
        ({"width": 100}, "must be a multiple of"),
        ({"seed": -1}, "--seed = -1"),
        ({"workers": -1}, "--workers = -1"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ud.InvalidValue, match=message):
        LengthGeneralisation(**options)


def test_an_unknown_rule() -> None:
    with pytest.raises(ud.UnknownName, match="did you mean 'softmax'"):
        LengthGeneralisation(rules=("softmx",))
