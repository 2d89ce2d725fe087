"""Distances of the rows of a model: the theory's, at every length, whatever the blocks, threads and windows."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from tests.models.attending import random_model, tokens
from tests.papers.limitations.test_row_distances import expected_of
from undilute.errors import InvalidValue
from undilute_papers.limitations import samples
from undilute_papers.limitations.row_distances import QUANTITIES
from undilute_papers.reproduction.attended import Layer, each_layer, evenly


@pytest.mark.parametrize("kind", ["llama", "mistral", "bert"])
@pytest.mark.parametrize("rows", [0, 5])
def test_samples_of_a_model(kind: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass of a causal model, with or without a window, and several of an encoder, in blocks of a few rows."""
    monkeypatch.setattr(samples, "BLOCK", 60)
    model, ids = random_model(kind), tokens(24)
    names = tuple(set(QUANTITIES) - {"expected"})
    got = samples.samples(model, ids, {12: {2: names}, 24: {2: names, 4: names}}, rows=rows)
    for length, tops in ((12, (2,)), (24, (2, 4))):
        layers: list[Layer] = []
        each_layer(model, ids[:length], layers.append, rows=evenly(length, rows))
        sample = got[length]
        assert torch.equal(sample.positions, evenly(length, rows))
        assert sample.layer.tolist() == [layer.index for layer in layers for _ in range(4)]
        assert sample.head.tolist() == list(range(4)) * len(layers)
        for top in tops:
            for at, (layer, head) in enumerate(zip(sample.layer.tolist(), sample.head.tolist(), strict=True)):
                of = layers[layer]
                expected = expected_of(of.logits[head], of.visible, of.x[head], top)
                long = of.visible.sum(-1) > top
                assert torch.equal(sample.n[at], of.visible.sum(-1))
                for name in names:
                    values = sample.values[name, top][at]
                    assert_close(values[long], expected[name][long], atol=1e-6, rtol=1e-6)
                    assert values[~long].isnan().all()


def test_random_sets_do_not_depend_on_threads_or_blocks_of_other_heads() -> None:
    model, ids, wanted = random_model("llama", dtype=torch.float32), tokens(24), {24: {3: ("expected",)}}
    threads = torch.get_num_threads()
    found = []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            found.append(samples.samples(model, ids, wanted)[24].values["expected", 3])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0].nan_to_num(), found[1].nan_to_num())
    other = samples.samples(model, ids, wanted, seed=1)[24].values["expected", 3]
    assert not torch.equal(found[0].nan_to_num(), other.nan_to_num())


def test_means_over_rows() -> None:
    nan = torch.nan
    sample = samples.Sample(
        layer=torch.tensor([0]),
        head=torch.tensor([0]),
        names=("layer",),
        positions=torch.tensor([0, 4, 9]),
        n=torch.tensor([[1, 5, 10]]),
        values={("distance", 2): torch.tensor([[nan, 3.0, 5.0]])},
    )
    assert sample.per_head("distance", 2).tolist() == [4.0]
    assert sample.per_head("distance", 2, short_rows="zero").tolist() == [pytest.approx(8 / 3)]
    assert sample.at(torch.tensor([9])).per_head("distance", 2).tolist() == [5.0]


def test_heads_with_a_window_are_left_out() -> None:
    def sample(length: int, *widths: int) -> samples.Sample:
        n = torch.stack([torch.arange(1, length + 1).clamp(max=width) for width in widths])
        heads, values = torch.arange(len(widths)), {("distance", 2): n.double()}
        return samples.Sample(heads, heads, ("a", "b", "c"), torch.arange(length), n, values)

    found = {64: sample(64, 128, 70, 100), 128: sample(128, 128, 70, 100)}
    whole, told = samples.of_the_whole_text(found, "--length")
    for length, each in whole.items():
        assert each.layer.tolist() == each.head.tolist() == [0]
        assert torch.equal(each.n[0], torch.arange(1, length + 1))
        assert torch.equal(each.values["distance", 2], each.n.double())
    assert "2 of 3 heads, in 2 of 3 layers, see a sliding window of the text only (b: 70 keys)" in told[0]
    assert samples.of_the_whole_text({64: found[64]}, "--length")[1] == []
    with pytest.raises(
        InvalidValue, match=r"^--length = 128: .* b only the 70 .* must be at most 100, or --model must"
    ):
        samples.of_the_whole_text({128: found[128].of(torch.tensor([False, True, True]))}, "--length")
