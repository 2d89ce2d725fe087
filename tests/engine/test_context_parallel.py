"""Inside torch's context_parallel a process holds a part of the keys: refused, and fine again outside."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import undilute as ud


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_attention_inside_is_refused_and_outside_it_runs() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: it is experimental
        from torch.distributed.tensor.experimental import context_parallel

        mesh = init_device_mesh("cpu", (1,))
        q = torch.randn(1, 2, 8, 4)
        before = ud.attention(q, q, q)
        with context_parallel(mesh, buffers=[q], buffer_seq_dims=[2]):
            for rule in ("softmax", "entmax15"):
                with pytest.raises(ud.InvalidValue, match=r"inside torch's context_parallel .* part of the keys"):
                    ud.attention(q, q, q, rule=rule)
            with pytest.raises(ud.InvalidValue, match="context_parallel"):
                ud.structures.linear(q, q, q)
        assert torch.equal(ud.attention(q, q, q), before)


@pytest.mark.usefixtures("alone")
def test_measuring_inside_is_refused_too() -> None:
    from tests.models.attending import random_model, tokens

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.tensor.experimental import context_parallel

        ids = tokens(1, 8)
        model = random_model("llama", "eager")  # torch's own has no CPU form in there
        inside = context_parallel(init_device_mesh("cpu", (1,)), buffers=[ids], buffer_seq_dims=[1])
        with inside, ud.capture(model), pytest.raises(ud.InvalidValue, match="context_parallel"):
            model(ids)


def test_another_who_replaces_torchs_attention_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faster kernels are often put there."""
    original = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: original(*a, **k))
    q = torch.randn(1, 2, 8, 4)
    ud.attention(q, q, q)
