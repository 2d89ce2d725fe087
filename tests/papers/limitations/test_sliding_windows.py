"""Layers that see a sliding window only: left out where L is the text's length, counted by their keys elsewhere."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models import small
from tests.models.attending import CLASSES, CONFIGURATIONS, WINDOW
from tests.papers.limitations.test_separability import check_result
from tests.papers.sharpness.test_logit_spread import by_loops
from undilute.errors import InvalidValue
from undilute_papers.limitations.critical_n import CriticalN
from undilute_papers.limitations.critical_n.search import grid
from undilute_papers.limitations.distance import Distance
from undilute_papers.limitations.gradient import Gradient
from undilute_papers.limitations.samples import samples
from undilute_papers.limitations.separability import Separability
from undilute_papers.reproduction.attended import Layer, each_layer, loaded
from undilute_papers.sharpness.logit_spread import LogitSpread
from undilute_papers.theory import separability as theory

LOCAL = "model.layers.0.self_attn"  # the first layer of both has a window
SCALAR = 32  # Gemma 3 divides q·k by its root, not by that of its 8 features


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 with a window in one of two layers, Mistral with one in both, and a text."""
    path = tmp_path_factory.mktemp("windows")
    for kind in ("gemma3", "mistral"):
        torch.manual_seed(0)
        config = CONFIGURATIONS[kind]()
        if kind == "gemma3":
            config.query_pre_attn_scalar = SCALAR
        CLASSES[kind](config).save_pretrained(path / kind)
        small.tokenizer().save_pretrained(path / kind)
    drawn = torch.randint(2, len(small.WORDS), (200,), generator=torch.Generator().manual_seed(1)).tolist()
    (path / "text.txt").write_text(" ".join(small.WORDS[each] for each in drawn), encoding="utf-8")
    return path


def options(folder: Path, kind: str) -> dict[str, Any]:
    return {"model": str(folder / kind), "text": (str(folder / "text.txt"),)}


def left_out(sentence: str) -> bool:
    return sentence.startswith(f"4 of 8 heads, in 1 of 2 layers, see a sliding window of the text only ({LOCAL}: 6")


def test_distance_is_over_the_heads_that_see_the_text(folder: Path) -> None:
    result = Distance(**options(folder, "gemma3"), length=64, tops=(1, 5, 20)).run()
    check_result(result, ["distance_over_length", "distance_over_top", "distance_of_a_share"])
    model, ids = loaded(str(folder / "gemma3"), str(folder / "text.txt"), 64)
    sample = samples(model, ids, {64: {5: ("distance",), 20: ("distance",)}})[64]
    heads = {top: sample.per_head("distance", top)[sample.layer == 1] for top in (5, 20)}
    assert result.tables["by_length"][-1]["distance"] == pytest.approx(float(heads[5].mean()), rel=1e-5)
    assert result.tables["by_top"][-1]["distance"] == pytest.approx(float(heads[20].mean()), rel=1e-5)
    assert {line["layer"] for line in result.tables["heads"]} == {1}
    assert left_out(result.findings[-1])


@pytest.mark.parametrize("short_rows", ["left out", "zero"])
def test_critical_n_is_over_the_heads_that_see_the_text(folder: Path, short_rows: str) -> None:
    few: dict[str, Any] = {"lengths": (32, 64), "points": 8, "rows": 8, "heads": (2,), "subsets": 2}
    result = CriticalN(**options(folder, "gemma3"), **few, short_rows=short_rows).run()
    check_result(result, ["critical_n", "curves"])
    assert "(4 heads, α" in result.findings[0]
    assert left_out(result.findings[-1])
    model, ids = loaded(str(folder / "gemma3"), str(folder / "text.txt"), 64)
    top = grid(64, 64, 8)[-1]
    sample = samples(model, ids, {64: {top: ("distance",)}}, rows=8)[64]
    means = sample.per_head("distance", top, short_rows=short_rows)[sample.layer == 1]
    line = result.tables["tests"][-1]
    assert (line["L"], line["N"], line["mean distance"]) == (64, top, pytest.approx(float(means.mean()), rel=1e-5))


@pytest.mark.parametrize(
    ("experiment", "option"),
    [(Distance(length=64), "--length"), (CriticalN(lengths=(32, 64), points=8, rows=4), "--lengths")],
)
def test_no_head_that_sees_the_text(folder: Path, experiment: Any, option: str) -> None:
    windowed = type(experiment)(**{**experiment.settings(), **options(folder, "mistral")})
    says = f"^{option} = 64: no layer .*, {LOCAL} only the 6 of a sliding window; --model must be one with a layer"
    with pytest.raises(InvalidValue, match=says):
        windowed.run()


def test_separability_counts_heads_for_what_they_see(folder: Path) -> None:
    tops = (1, 4, 5, 6, 16)
    result = Separability(**options(folder, "gemma3"), length=64, tops=tops, rows=0).run()
    check_result(result, ["separability", "controls"])
    model, ids = loaded(str(folder / "gemma3"), str(folder / "text.txt"), 64)
    expected: list[list[float | None]] = []

    def use(layer: Layer) -> None:
        x = torch.nn.functional.normalize(layer.x.double(), dim=-1)[:, None]
        seen = layer.visible.expand(layer.logits.shape)
        for head in range(len(seen)):
            shares: list[float | None] = []
            for top in tops:
                found = theory.separable_fraction(layer.weights.double(), x, top, visible=seen).fraction[head]
                rows = found[seen[head].sum(-1) > top]
                shares.append(float(rows.mean()) if len(rows) else None)
            expected.append(shares)

    each_layer(model, ids, use, x="embedding")
    assert [line[f"N={tops[-1]}"] is None for line in result.tables["heads"]] == [True] * 4 + [False] * 4
    for line, shares in zip(result.tables["heads"], expected, strict=True):
        assert [line[f"N={top}"] for top in tops] == pytest.approx(shares, abs=1e-6)
    told = "Heads that see only a sliding window count for smaller N alone: of 8 heads, 4 at N = 6, 4 at N = 16."
    assert told in result.findings


def test_separability_of_windows_alone(folder: Path) -> None:
    result = Separability(**options(folder, "mistral"), length=64, tops=(2, 16), rows=8).run()
    check_result(result, ["separability", "controls"])
    assert [line["median"] is None for line in result.tables["by_top"]] == [False, True]
    with pytest.raises(InvalidValue, match=f"^--tops = .* the 6 keys of a sliding window in {LOCAL}; .* below 6,"):
        Separability(**options(folder, "mistral"), length=64, tops=(6, 16), rows=8).run()


def test_gradient_moves_only_what_a_row_sees_at_the_models_own_scale(folder: Path) -> None:
    """The scale of the logits is that of the temperature, and q·k has none: here it is not the root of the features."""
    few: dict[str, Any] = {**options(folder, "gemma3"), "length": 64, "rows": 8}
    scaled = Gradient(**few, temperatures=(0.5,), epsilons=(0.1,)).run()
    check_result(scaled, ["random", "worst", "jacobian"])
    root = math.sqrt(SCALAR)
    plain = Gradient(**few, temperatures=(0.5 * root,), epsilons=(0.1 * root,), scaled=False).run()
    one, other = scaled.tables["steps"][0], plain.tables["steps"][0]
    for column in ("published", "worst_mean", "worst_row"):
        assert float(one[column] or 0) <= float(one["supremum"] or 0)
        assert float(other[column] or 0) * root == pytest.approx(one[column], rel=1e-5)


def test_logit_spread_of_windows(folder: Path) -> None:
    name, text = str(folder / "gemma3"), str(folder / "text.txt")
    result = LogitSpread(models=(name,), text=(text,), length=64, rows=0, fewest=WINDOW).run()
    check_result(result, ["layers", "ceiling", "keys"])
    heads = by_loops(name, text, 64, WINDOW)
    assert {n for rows in heads[:4] for n, _, _ in rows} == {WINDOW}
    expected = [sum(delta for _, delta, _ in rows) / len(rows) for rows in heads]
    assert [line["mean"] for line in result.tables["heads"]] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(
        InvalidValue, match=rf"^--fewest = 7: .* at most 6 keys \(a .* in {LOCAL}\); .* must be at most 6."
    ):
        LogitSpread(models=(name,), text=(text,), length=64, fewest=WINDOW + 1).run()
