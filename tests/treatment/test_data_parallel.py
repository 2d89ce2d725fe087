"""Parameters that rules learn are refused where data-parallel training would not share them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import undilute as ud
from tests.models.attending import random_model
from undilute.errors import InvalidValue

REFUSAL = r"the model is already in a {}, .* drift apart .*: apply the rules first, then wrap the model\.$"


@pytest.fixture(autouse=True)
def one_process() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    distributed.destroy_process_group()


class Around(nn.Module):
    """A model of one's own with a Hugging Face model in it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


WRAPPERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "ddp": (DistributedDataParallel, "DistributedDataParallel"),
    "ddp of a part": (lambda model: DistributedDataParallel(model.model), "DistributedDataParallel"),
    "ddp of more": (lambda model: DistributedDataParallel(Around(model)), "DistributedDataParallel"),
    "fully_shard": (fully_shard, "FSDPLlamaForCausalLM"),
    "fully_shard of a part": (lambda model: fully_shard(model.model.layers[1]), "FSDPLlamaDecoderLayer"),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_learns_must_be_there_before_the_model_is_wrapped(wrapper: str) -> None:
    wrap, name = WRAPPERS[wrapper]
    model = random_model("llama", dtype=torch.float32)
    with ud.apply(model, ud.rules.LogLength(nn.Parameter(torch.tensor(0.4)))) as treated:
        own = treated.plan
    wrapped = wrap(model)
    rule = own.rule_of(0, 0)
    for treatment, learn in (("ssmax", ("s",)), (rule, ()), ({"layers.1": rule}, ()), (own, ())):
        with pytest.raises(InvalidValue, match=REFUSAL.format(name)):
            ud.apply(model, treatment, learn=learn)
    assert model.config._attn_implementation == "sdpa"
    del wrapped


def test_numbers_may_come_later() -> None:
    model = random_model("llama", dtype=torch.float32)
    wrapped = DistributedDataParallel(model)
    ud.apply(model, "ssmax").undo()  # the same in all processes
    with pytest.raises(
        InvalidValue, match=r"model is a DistributedDataParallel around a LlamaForCausalLM: .*module\.$"
    ):
        ud.apply(wrapped, "ssmax")  # type: ignore[arg-type]
    del wrapped
    ud.apply(model, "ssmax", learn=("s",))


def test_another_model_is_free_to_learn() -> None:
    wrapped = DistributedDataParallel(random_model("llama", dtype=torch.float32))
    ud.apply(random_model("llama"), "ssmax", learn=("s",))
    del wrapped
