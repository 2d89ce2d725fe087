"""The fast routes wherever torch code runs: other threads, forked workers, inference mode, compiled code."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import undilute as ud

ONE_PER_ROUTE = {"ssmax": "flash", "adaptive": "flash", "entmax15": "sparse", "top-k": "sparse", "sigmoid": "rows"}
Q, K, V = torch.randn(3, 1, 2, 300, 16, generator=torch.Generator().manual_seed(0)).unbind()


def attend(name: str) -> torch.Tensor:
    return ud.attention(Q, K, V, rule=name, is_causal=True)


@pytest.fixture(autouse=True)
def two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ONE_PER_ROUTE)
def test_the_route_is_the_one_we_mean(name: str) -> None:
    assert ud.explain(Q, K, V, rule=name, is_causal=True).name == ONE_PER_ROUTE[name]


@pytest.mark.parametrize("name", ONE_PER_ROUTE)
def test_many_threads_at_once_get_the_same_bits(name: str) -> None:
    expected = attend(name)
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: attend(name), range(16)):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("name", ONE_PER_ROUTE)
def test_torchs_settings_survive_success_and_failure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> tuple[object, ...]:
        return (
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            threading.active_count(),
        )

    before = state()
    attend(name)
    assert state() == before

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no")

    for product in ("bmm", "addmm"):
        monkeypatch.setattr(torch, product, broken)
    monkeypatch.setattr("undilute.engine.kernels.flash._Flash.forward", broken)
    with pytest.raises(RuntimeError, match="no"):
        attend(name)
    assert state() == before


def test_two_threads_share_one_head() -> None:
    """Gradients of keys, values and α come together from both threads."""
    q, k, v = (t[:, :1] for t in (Q, K, V))
    grads = []
    for route in ("sparse", "reference"):
        inputs = [t.double().requires_grad_() for t in (q, k, v)]
        alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
        out = ud.attention(*inputs, rule=ud.rules.Entmax(alpha), is_causal=True, route=route)
        grads.append(torch.autograd.grad(out.square().sum(), [*inputs, alpha]))
    for got, expected in zip(*grads, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ONE_PER_ROUTE)
def test_inference_mode_and_inference_tensors(name: str) -> None:
    expected = attend(name)
    with torch.inference_mode():
        assert torch.equal(attend(name), expected)
        inside = [t.clone() for t in (Q, K, V)]
    assert torch.equal(ud.attention(*inside, rule=name, is_causal=True), expected)
    with torch.no_grad():
        assert torch.equal(attend(name), expected)


class Attended(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return len(ONE_PER_ROUTE)

    def __getitem__(self, index: int) -> torch.Tensor:
        return attend(list(ONE_PER_ROUTE)[index])


def test_in_data_loader_workers() -> None:
    for name in ONE_PER_ROUTE:
        attend(name)  # the parent has run its threads before the fork
    loaded = list(DataLoader(Attended(), batch_size=None, num_workers=2))
    for name, got in zip(ONE_PER_ROUTE, loaded, strict=True):
        torch.testing.assert_close(got, attend(name))


@pytest.mark.parametrize("name", ONE_PER_ROUTE)
def test_compiled_code_gives_the_same(name: str) -> None:
    def double(q: torch.Tensor) -> torch.Tensor:
        return 2 * ud.attention(q, K, V, rule=name, is_causal=True)

    q = Q.clone().requires_grad_()
    compiled = torch.compile(double, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        torch.testing.assert_close(compiled(q), double(q))
        a, b = (torch.autograd.grad(f(q).square().sum(), q)[0] for f in (compiled, double))
    torch.testing.assert_close(a, b)


MEMORY = """
import sys, torch, undilute as ud
from undilute.evaluation.cost import extra_memory
torch.set_num_threads(2)
ud.set_memory_budget(16)
def run(inputs, rule, backward):
    out = ud.attention(*(t.detach().requires_grad_(backward) for t in inputs), rule=rule, is_causal=True)
    if backward:
        out.sum().backward()
inputs = torch.randn(3, 1, 2, 4096, 32).unbind()
for rule in sys.argv[1:]:
    run([t[:, :, :600] for t in inputs], rule, True)  # compile outside the measurement
    print(rule, *(extra_memory(lambda: run(inputs, rule, backward)) for backward in (False, True)))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_memory_is_not_quadratic() -> None:
    """4,096 tokens and two heads are 128 MB of logits in float32; no route may hold anything near that."""
    names = ["ssmax", "adaptive", "entmax15", "sigmoid"]
    result = subprocess.run([sys.executable, "-c", MEMORY, *names], capture_output=True, text=True, check=True)
    found = {name: (float(forward), float(back)) for name, forward, back in map(str.split, result.stdout.splitlines())}
    assert list(found) == names
    assert all(0 < max(each) < 64 for each in found.values()), found


def test_an_unwritable_cache_directory_is_no_error() -> None:
    code = (
        "import torch, undilute as ud; q = torch.randn(1, 1, 300, 8); "
        "print(ud.attention(q, q, q, rule='entmax15', route='sparse').isfinite().all().item())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": "/proc/nowhere"},
    )
    assert result.stdout.strip() == "True", result.stderr
