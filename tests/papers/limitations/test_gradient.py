"""Steps in the logits against their definition, norms against dense matrices, bounds against rows that reach them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.testing import assert_close

from tests.models import small
from undilute.errors import InvalidValue
from undilute.theory.jacobian import mean_square_sensitivity, worst_direction
from undilute_papers.limitations.gradient import Gradient
from undilute_papers.limitations.gradient.gradient_findings import comparisons
from undilute_papers.limitations.gradient.steps import (
    Steps,
    TopTwo,
    moved,
    moved_at_once,
    printed_bound,
    random_directions,
)
from undilute_papers.reproduction.attended import Layer
from undilute_papers.theory.finite_steps import largest_sensitivity, sensitivity

HEADS, ROWS = 3, 12


def saved_gpt2(folder: Path) -> tuple[str, str]:
    """A small random GPT-2 with logits that are not all alike, and a text for it: both paths."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(**{**small.GPT2.to_dict(), "n_positions": 128, "initializer_range": 0.4})
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "model")
    small.tokenizer().save_pretrained(folder / "model")
    drawn = torch.randint(2, len(small.WORDS), (200,), generator=torch.Generator().manual_seed(1)).tolist()
    (folder / "text.txt").write_text(" ".join(small.WORDS[each] for each in drawn), encoding="utf-8")
    return str(folder / "model"), str(folder / "text.txt")


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def causal_logits(spread: float = 3.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(heads, rows, keys) with −∞ where hidden, and what is visible; the first row sees one key."""
    visible = torch.ones(ROWS, ROWS, dtype=torch.bool).tril()
    return (spread * draw(seed, HEADS, ROWS, ROWS)).masked_fill(~visible, -torch.inf), visible


def layer_of(logits: Tensor, visible: Tensor) -> Layer:
    heads, rows, keys = logits.shape
    return Layer(0, "layer", logits, visible, draw(9, heads, keys, 4), torch.arange(rows))


def shown(logits: Tensor) -> Tensor:
    """Logits that the definition takes: anything finite where hidden."""
    return logits.masked_fill(logits.isneginf(), 0.0)


def swap_of(logits: Tensor) -> Tensor:
    """The direction that lowers the largest logit of each row and raises the second."""
    two = logits.topk(2).indices
    return torch.zeros_like(logits).scatter(-1, two, torch.tensor([-1.0, 1.0], dtype=torch.float64).expand(two.shape))


@pytest.mark.parametrize("temperature", [1e-3, 0.05, 1.0, 30.0])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 10.0])
def test_a_step_is_the_definitions(temperature: float, epsilon: float) -> None:
    logits, visible = causal_logits()
    v = random_directions(visible.expand_as(logits), torch.Generator().manual_seed(3))
    z = logits / temperature
    got = moved(z, z.softmax(-1), v, epsilon / temperature) / epsilon
    expected = sensitivity(shown(logits), v, epsilon, temperature, visible)
    assert_close(got, expected, atol=1e-12, rtol=1e-9)
    assert (got[:, 0] == 0).all()  # one key cannot move


@pytest.mark.parametrize("temperature", [1e-3, 0.05, 1.0, 30.0])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 10.0])
def test_the_two_largest_against_each_other(temperature: float, epsilon: float) -> None:
    logits, visible = causal_logits()
    z, places = logits / temperature, logits.topk(2).indices
    got = TopTwo(z, z.softmax(-1), places).moved(epsilon / temperature) / epsilon
    expected = sensitivity(shown(logits[:, 1:]), swap_of(logits)[:, 1:], epsilon, temperature, visible[1:])
    assert_close(got[:, 1:], expected, atol=1e-12 / epsilon, rtol=1e-9)
    assert (got[:, 0] == 0).all()


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
def test_the_norm_is_that_of_the_dense_jacobian(spread: float) -> None:
    p = causal_logits(spread)[0].softmax(-1)
    dense = torch.diag_embed(p) - p[..., None] * p[..., None, :]
    assert_close(moved_at_once(p, worst_direction(p)), torch.linalg.svdvals(dense)[..., 0], atol=1e-14, rtol=1e-10)


def test_random_directions_are_uniform_over_what_is_seen() -> None:
    logits, visible = causal_logits()
    v = random_directions(visible.expand(4000, *logits.shape), torch.Generator().manual_seed(0))
    assert (v[..., ~visible] == 0).all()
    assert_close(v.norm(dim=-1), torch.ones(v.shape[:-1], dtype=torch.float64))
    p = logits.softmax(-1)
    found = moved_at_once(p, v).square().mean(0)
    assert_close(found, mean_square_sensitivity(p, visible=visible), atol=1e-12, rtol=0.15)


def test_lines_are_the_definition_row_by_row() -> None:
    logits, visible = causal_logits(spread=2.0, seed=4)
    temperatures, epsilons = [0.03, 1.0], [0.01, 5.0]
    steps = Steps(temperatures, epsilons, directions=2, seed=7)
    steps.add(layer_of(logits, visible))
    v = random_directions(visible.expand(2, *logits.shape), torch.Generator().manual_seed(7))
    lines = steps.lines()
    assert [(line["temperature"], line["epsilon"]) for line in lines] == [
        (t, e) for t in temperatures for e in epsilons
    ]
    for line in lines:
        T, epsilon = float(line["temperature"] or 0), float(line["epsilon"] or 0)
        random = sensitivity(shown(logits), v, epsilon, T, visible).mean((0, -1))
        assert line["published"] == pytest.approx(float(random.max()), rel=1e-9)
        assert line["published_median_head"] == pytest.approx(float(random.median()), rel=1e-9)
        back = -worst_direction((logits / T).softmax(-1))
        worst = torch.maximum(
            sensitivity(shown(logits), back, epsilon, T, visible)[:, 1:],  # the first row sees one key: it stays
            sensitivity(shown(logits[:, 1:]), swap_of(logits)[:, 1:], epsilon, T, visible[1:]),
        )
        assert line["worst_row"] == pytest.approx(float(worst.max()), rel=1e-9)
        assert line["worst_mean"] == pytest.approx(float((worst.sum(-1) / ROWS).max()), rel=1e-9)
    p = (logits / 1.0).softmax(-1)
    dense = torch.linalg.svdvals(torch.diag_embed(p) - p[..., None] * p[..., None, :])[..., 0]
    norms = steps.norm_lines()[1]
    assert norms["norm_highest_head"] == pytest.approx(float(dense.mean(-1).max()))
    assert norms["norm_highest_row"] == pytest.approx(float(dense.max()))
    assert norms["rows_above_printed"] == int((dense > 0.25).sum())
    assert norms["heads_with_a_row_above_printed"] == int((dense > 0.25).any(-1).sum())
    assert norms["rows"] == HEADS * ROWS


@pytest.mark.parametrize(("temperature", "epsilon"), [(1.0, 0.1), (0.1, 0.1), (0.01, 1.0), (1.0, 10.0)])
def test_rows_that_reach_the_supremum(temperature: float, epsilon: float) -> None:
    gap = epsilon / math.sqrt(2)
    logits = torch.tensor([[[0.0, gap, -1e4], [0.0, 0.0, -1e4]]], dtype=torch.float64)
    steps = Steps([temperature], [epsilon], directions=1, seed=0)
    steps.add(layer_of(logits, torch.ones(2, 3, dtype=torch.bool)))
    found, norm = steps.lines()[0], steps.norm_lines()[0]
    assert found["worst_row"] == pytest.approx(float(largest_sensitivity(epsilon, temperature)), rel=1e-9)
    assert norm["norm_highest_row"] == pytest.approx(1 / (2 * temperature), rel=1e-12)
    assert int(norm["rows_above_printed"] or 0) >= 1
    assert norm["printed_bound"] == printed_bound(temperature) == min(0.25 / temperature, 2**0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return saved_gpt2(tmp_path_factory.mktemp("gradient"))


def test_a_run_says_what_it_found(folder: tuple[str, str]) -> None:
    from tests.papers.limitations.test_separability import check_result

    name, text = folder
    told: list[float] = []
    result = Gradient(model=name, text=(text,), length=64, rows=16).run(lambda share, doing: told.append(share))
    check_result(result, ["random", "worst", "jacobian"])
    assert result.findings[0].startswith(f"{name} on 64 tokens of text.txt: the printed bound")
    assert told == [0.5, 1.0]
    assert len(result.tables["heads"]) == 8
    assert len(result.tables["steps"]) == 39
    for row in result.tables["steps"]:
        assert float(row["worst_row"] or 0) <= float(row["supremum"] or 0) * (1 + 1e-9)
        assert float(row["supremum"] or 0) <= float(row["bound"] or 0) * (1 + 1e-12)
    for row in result.tables["jacobian"]:
        assert float(row["norm_highest_row"] or 0) <= float(row["bound"] or 0) * (1 + 1e-9)
    assert result.comparisons[0].verdict == "differs"  # some row of 64 has ‖J‖₂ above 1/(4T)


def test_the_scale_of_the_logits_is_that_of_the_temperature(folder: tuple[str, str]) -> None:
    name, text = folder
    root = math.sqrt(small.GPT2.n_embd // small.GPT2.n_head)
    options: dict[str, Any] = {"model": name, "text": (text,), "length": 64, "rows": 4}
    scaled = Gradient(temperatures=(0.5,), epsilons=(0.1,), **options).run().tables["steps"][0]
    plain = Gradient(temperatures=(0.5 * root,), epsilons=(0.1 * root,), scaled=False, **options)
    found = plain.run().tables["steps"][0]
    for column in ("published", "worst_mean", "worst_row"):
        assert float(found[column] or 0) * root == pytest.approx(scaled[column], rel=1e-5)
    assert "--no-scaled" in plain.command()


def test_runs_with_few_options(folder: tuple[str, str]) -> None:
    name, text = folder
    result = Gradient(model=name, text=(text,), length=64, rows=2, temperatures=(2.0,), epsilons=(0.1,)).run()
    assert len(result.comparisons) == 1  # nothing below T = 0.1, nothing to order
    assert len(result.findings) == 2


def lines(values: dict[float, tuple[float, float]]) -> list[dict[str, float]]:
    """Published estimates by temperature, for ε = 0.001 and 10."""
    return [
        {
            "temperature": T,
            "epsilon": epsilon,
            "published": value,
            "printed_bound": printed_bound(T),
            "worst_mean": value,
        }
        for T, pair in values.items()
        for epsilon, value in zip((1e-3, 10.0), pair, strict=True)
    ]


def test_verdicts() -> None:
    norms = [{"rows_above_printed": 0, "rows": 10}]
    as_published = comparisons(lines({0.05: (1.2, 1.12), 0.08: (0.75, 0.7), 1.0: (0.012, 0.012)}), norms)
    assert [each.verdict for each in as_published] == ["agrees"] * 6
    flat = comparisons(lines({0.001: (0.1, 0.2), 0.01: (0.1, 0.2), 1.0: (0.05, 0.1)}), norms)
    assert [each.verdict for each in flat] == ["agrees", *["differs"] * 5]
    assert comparisons(lines({1.0: (1.0, 1.0)}), [{"rows_above_printed": 1, "rows": 10}])[0].verdict == "differs"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperatures": (0.0,)}, "^--temperatures = 0: must be finite numbers above 0"),
        ({"epsilons": ()}, "^--epsilons is empty"),
        ({"directions": 0}, "^--directions = 0"),
        ({"length": 63}, "^--length = 63: at least 64 tokens"),
        ({"rows": -3}, "^--rows = -3"),
    ],
)
def test_refuses(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        Gradient(model="./not looked at", **options).run()
