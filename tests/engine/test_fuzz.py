"""5,000 calls drawn at random, on every route that accepts them; ``make fuzz`` goes on for as long as one likes."""

from __future__ import annotations

import pytest
import torch

from tests.engine.fuzzing import LAYOUTS, Case, check, hunt


@pytest.mark.parametrize("seed", range(25))
def test_every_route_is_the_reference(seed: int) -> None:
    hunt(seed, examples=200)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("name", ["softmax", "ssmax", "adaptive", "sink", "entmax15", "top-k 2", "sigmoid"])
def test_every_layout_on_every_route(name: str, place: int, layout: str) -> None:
    """Tensors that lie in memory in whatever way; the first stride bug hid behind calls that were small."""
    layouts = ["contiguous"] * 3
    layouts[place] = layout
    shape = {"kv_heads": 2, "groups": 2, "length": 11, "keys": 13, "features": 4, "width": 4, "asks_entropy": False}
    ran = check(Case(name, numbers="ties" if name == "top-k 2" else "normal", layouts=(*layouts,), **shape))  # type: ignore[arg-type]
    fast = {"entmax15": {"sparse"}, "top-k 2": {"sparse"}, "sigmoid": set(), "adaptive": {"flash"}}
    assert set(ran) == {"rows", "reference"} | fast.get(name, {"flash", "sdpa"})


def test_it_would_find_a_kernel_that_misreads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hunt has teeth: without the copy that some strides need, it fails and shows a small case."""
    from undilute.engine.kernels import flash

    monkeypatch.setattr(flash, "readable", lambda t: t)
    with pytest.raises(AssertionError) as found:
        hunt(0, examples=1000)
    shown = "\n".join((str(found.value), *getattr(found.value, "__notes__", [])))
    assert "flash" in shown
    assert "case=Case(" in shown


def test_the_largest_thread_count_is_restored() -> None:
    before = torch.get_num_threads()
    check(Case(threads=before + 1))
    assert torch.get_num_threads() == before
