"""Tensor parallelism and data parallelism, in two real processes: what one process does, two do together.

Both are started once and do all checks, since starting them takes longer than all of these.
"""

from __future__ import annotations

import json
import os
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from transformers.distributed import DistributedConfig

import undilute as ud
from tests.models.attending import CONFIGURATIONS, random_model, tokens
from undilute.errors import InvalidValue

IDS = tokens(2, 12)
RANKS = 2
PER_HEAD = ud.rules.LogLength(torch.tensor([0.1, 0.4, 0.7, 1.0]))
TREATMENTS: dict[str, Any] = {
    "a rule for all heads": "ssmax",
    "one head": {"layers.*.heads.1": "hard"},
    "a head of each process": {"layers.0.heads.1": "hard", "layers.1.heads.2": "entmax15"},
    "heads by their parameters": PER_HEAD,
    "some heads by their parameters": {"layers.*.heads.[1-3]": ud.rules.LogLength(torch.tensor([0.1, 0.5, 1.5]))},
}


class Two:
    """A model in this process, and the same one split between both."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.whole = transformers.LlamaForCausalLM.from_pretrained(folder)
        split = DistributedConfig(tp_plan="auto", tp_size=RANKS)
        self.split: Any = transformers.LlamaForCausalLM.from_pretrained(folder, distributed_config=split)

    def check_same(self, what: str = "") -> None:
        with torch.no_grad():
            torch.testing.assert_close(self.split(IDS).logits, self.whole(IDS).logits, atol=1e-5, rtol=1e-5, msg=what)


def check_heads_have_the_models_numbers(two: Two) -> None:
    for what, treatment in TREATMENTS.items():
        with ud.apply(two.whole, treatment), ud.apply(two.split, treatment):
            two.check_same(what)
        two.check_same("undone")


def check_plans_are_for_all_processes(two: Two) -> None:
    for what, treatment in TREATMENTS.items():
        with ud.apply(two.whole, treatment) as whole:
            plan, path = whole.plan, two.folder / f"plan-{distributed.get_rank()}.json"
            plan.save(path)
            with ud.apply(two.split, path):
                two.check_same(what)
                found = ud.Plan.of(two.split)
        assert found.layers == plan.layers
        assert found.heads == plan.heads
        for head in plan.heads:
            one, other = (ud.rules.to_data(each.rule_of(*head) or ud.rules.Rule()) for each in (found, plan))
            assert one == other, what


def check_what_is_learned(two: Two) -> None:
    given = {"layers.*.heads.[0-2]": "ssmax"}
    with ud.apply(two.whole, given, learn=("s",)) as whole, ud.apply(two.split, given, learn=("s",)) as split:
        for model in (two.whole, two.split):
            model(IDS, labels=IDS).loss.backward()
        mine = slice(0, 2) if distributed.get_rank() == 0 else slice(2, 3)
        for one, other in zip(split.parameters(), whole.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            assert bool(one.grad.all())
            torch.testing.assert_close(one.grad, other.grad[mine], atol=1e-6, rtol=1e-4)
        with pytest.raises(InvalidValue, match=r"Plan.of\(model\), called in all of them"):
            _ = split.plan
        for parameter in split.parameters():
            parameter.data += 0.25
        expected = ud.rules.get("ssmax").scale.s + 0.25
        assert [float(ud.Plan.of(two.split).rule_of(1, head).scale.s) for head in (0, 1, 2)] == [
            pytest.approx(expected)
        ] * 3
        two.split.save_pretrained(two.folder / "saved")
    if distributed.get_rank() == 0:
        assert ud.Plan.load(two.folder / "saved" / "undilute_plan.json").heads == whole.plan.heads
        weights = load_file(two.folder / "saved" / "model.safetensors")
        assert weights.keys() == load_file(two.folder / "model.safetensors").keys()


def check_refusals(two: Two) -> None:
    own = ud.rules.LogLength(nn.Parameter(torch.tensor(0.4)))
    with pytest.raises(InvalidValue, match="the rule learns a parameter of its own, which each of them"):
        ud.apply(two.split, {"layers.*.heads.0": own})
    text = torch.arange(512) % 50
    for use in (lambda: ud.diagnose(two.split, None, text[:96]), lambda: ud.calibrate(two.split, None, text)):
        with pytest.raises(InvalidValue, match="has 2 of its 4 heads in this process"):
            use()
    with pytest.raises(InvalidValue, match="measure it in one process"), ud.capture(two.split):
        two.split(IDS)
    two.check_same("as it was")


def check_gathered_heads_are_whole(two: Two) -> None:
    """The plan of Phi-3 gives all heads to every process."""
    folder = two.folder / "phi3"
    split = DistributedConfig(tp_plan="auto", tp_size=RANKS)
    model: Any = transformers.Phi3ForCausalLM.from_pretrained(folder, distributed_config=split)
    whole = transformers.Phi3ForCausalLM.from_pretrained(folder)
    given = {"layers.*.heads.1": "hard"}
    with ud.apply(model, given), ud.apply(whole, given), torch.no_grad():
        torch.testing.assert_close(model(IDS).logits, whole(IDS).logits, atol=1e-5, rtol=1e-5)
        with ud.capture(model, measures=["top_weight"]) as c:
            model(IDS)
    assert c.layers[0].heads == 4


def check_rules_that_were_there_first_stay_the_same(two: Two) -> None:
    model = random_model("llama", dtype=torch.float32).train()
    treated = ud.apply(model, "ssmax", learn=("s",))
    wrapped = DistributedDataParallel(model)
    optimiser = torch.optim.SGD(wrapped.parameters(), 0.1)
    for step in range(3):
        ids = tokens(1, 10, seed=10 * step + distributed.get_rank())
        wrapped(ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    learned = torch.cat(treated.parameters()).detach()
    assert not bool((learned == ud.rules.get("ssmax").scale.s).any())
    everywhere = [torch.empty_like(learned) for _ in range(RANKS)]
    distributed.all_gather(everywhere, learned)
    assert torch.equal(*everywhere)


def check_accelerate_wraps_too(two: Two) -> None:
    from accelerate import Accelerator

    model = random_model("llama", dtype=torch.float32)
    prepared: Any = Accelerator(cpu=True).prepare(model)
    assert isinstance(prepared, DistributedDataParallel)
    with pytest.raises(InvalidValue, match="is already in a DistributedDataParallel"):
        ud.apply(model, "ssmax", learn=("s",))


CHECKS: dict[str, Callable[[Two], None]] = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_") and callable(check)
}


def work(rank: int, folder: str) -> None:
    """All checks in one of the processes; what failed goes into a file."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    store = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", store, timedelta(seconds=60), rank=rank, world_size=RANKS)
    two, failed = Two(folder), {}
    for name, check in CHECKS.items():
        try:
            check(two)
        except (Exception, pytest.fail.Exception):  # whatever it is, the test shows it
            failed[name] = traceback.format_exc()
    Path(folder, f"failed-{rank}.json").write_text(json.dumps(failed))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    folder = tmp_path_factory.mktemp("two")
    random_model("llama", dtype=torch.float32).save_pretrained(folder)
    sizes = CONFIGURATIONS["llama"]().to_dict()
    torch.manual_seed(0)
    kept = {name: sizes[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")}
    phi3 = transformers.Phi3Config(**kept, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0)
    transformers.Phi3ForCausalLM(phi3).save_pretrained(folder / "phi3")
    multiprocessing.spawn(work, (str(folder),), RANKS)
    return [json.loads((folder / f"failed-{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("check", CHECKS)
def test_in_two_processes(check: str, failed: list[dict[str, str]]) -> None:
    for each in failed:
        assert check not in each, each[check]


def test_the_oracle_tells_heads_apart() -> None:
    """Each treatment, and each head, makes a difference of its own."""
    model = random_model("llama", dtype=torch.float32)
    outputs: list[Tensor] = []
    with torch.no_grad():
        outputs.append(model(IDS).logits)
        for treatment in (*TREATMENTS.values(), *({f"layers.*.heads.{head}": "hard"} for head in (0, 2, 3))):
            with ud.apply(model, treatment):
                outputs.append(model(IDS).logits)
    for number, one in enumerate(outputs):
        assert all((one - other).abs().max() > 1e-3 for other in outputs[:number])
