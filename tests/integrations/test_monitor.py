"""The monitor reports what dense attention weights say, and leaves the training exactly as it was."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import undilute as ud
from undilute.integrations.monitor import MEASURES, DilutionMonitor, summary
from undilute.models import capture

KEYS = {f"dilution/{name}" for name in (*MEASURES, "top_weight_min")}
SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}


def llama(**options: object) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return sharpened(LlamaForCausalLM(LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2, **options)))


def sharpened(model: nn.Module) -> nn.Module:
    """Heads that differ from each other and from the uniform ones of a fresh model."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                weight.mul_(20)
    return model


def tokens(batch: int = 2, length: int = 40, seed: int = 1) -> Tensor:
    return torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(seed))


def dense(model: nn.Module, ids: Tensor, window: int | None = None) -> list[np.ndarray]:
    """(measures, heads) of each layer from the model's own attention weights, in float64."""
    model = copy.deepcopy(model).double()
    model.set_attn_implementation("eager")
    layers = model(ids, output_attentions=True).attentions
    n = np.arange(1, ids.shape[1] + 1)
    n = n if window is None else n.clip(max=window)
    long = n >= n.max() / 2
    found = []
    for weights in layers:
        p = weights.detach().numpy()[:, :, long]  # (batch, heads, rows, keys)
        entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1)
        rows = [entropy, entropy / np.log(n[long]), np.exp(entropy), p.max(-1), p[..., 0]]
        found.append(np.stack([each.mean((0, 2)) for each in rows]))
    return found


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_the_numbers_are_those_of_the_dense_weights(kind: str) -> None:
    window = 16 if kind == "mistral" else None
    if window:
        config = MistralConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2, sliding_window=window)
        torch.manual_seed(0)
        model = sharpened(MistralForCausalLM(config))
    else:
        model = llama()
    ids = tokens()
    monitor = DilutionMonitor(model, every=1, rows=40, per_layer=True)
    with monitor:
        model(ids)
    layers = dense(model, ids, window)
    expected = {}
    for prefix, heads in [("dilution", np.concatenate(layers, 1))] + [
        (f"dilution/layer_{index:02d}", layer) for index, layer in enumerate(layers)
    ]:
        expected |= {f"{prefix}/{name}": row.mean() for name, row in zip(MEASURES, heads, strict=True)}
        expected[f"{prefix}/top_weight_min"] = heads[3].min()
    assert monitor.latest == pytest.approx(expected, rel=2e-4, abs=1e-5)
    assert expected["dilution/top_weight_min"] < 0.9 * expected["dilution/top_weight"]  # the heads do differ


def test_a_measured_pass_equals_a_direct_capture_of_it() -> None:
    model, ids = llama(), tokens(3, 64)
    monitor = DilutionMonitor(model, every=1, rows=8)
    with monitor:
        model(ids)
    with capture(model, rows=8, measures=MEASURES) as direct:
        model(ids)
    long = direct.frame()[lambda rows: rows.n >= 32]
    assert 0 < len(long) < 3 * 3 * 4 * 8
    assert set(monitor.latest) == KEYS
    for name in MEASURES:
        assert monitor.latest[f"dilution/{name}"] == pytest.approx(long[name].mean(), rel=1e-12)
    worst = long.groupby(["layer", "head"]).top_weight.mean().min()
    assert monitor.latest["dilution/top_weight_min"] == pytest.approx(worst, rel=1e-12)


def test_only_every_third_pass_is_measured_and_the_others_are_not_touched() -> None:
    model, ids, logged = llama(), tokens(), []
    monitor = DilutionMonitor(model, every=3)
    for step in range(1, 8):
        with monitor:
            names = {part.config._attn_implementation for part in model.modules() if hasattr(part, "config")}
            assert (names == {"sdpa"}) == (step % 3 != 0)
            model(ids)
        assert model.config._attn_implementation == "sdpa"
        assert (monitor.latest is None) == (step % 3 != 0)
        monitor.log(lambda values, step=step: logged.append((step, set(values))))
    assert logged == [(3, KEYS), (6, KEYS)]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_takes_the_very_same_path(checkpointing: bool) -> None:
    def trained(every: int | None) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
        monitor = DilutionMonitor(model, every=every) if every else None
        for step in range(6):
            ids = tokens(seed=step)
            if monitor is None:
                loss = model(ids, labels=ids).loss
            else:
                with monitor:
                    loss = model(ids, labels=ids).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
        return model.state_dict()

    plain, monitored = trained(None), trained(2)  # with dropout: one random number more or less would show
    assert all(torch.equal(plain[name], monitored[name]) for name in plain)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_in_the_block_leaves_the_model_as_it_was(error: type[BaseException]) -> None:
    def fail(*_: object) -> None:
        raise error

    model, ids = llama(), tokens()
    before = model(ids).logits
    monitor = DilutionMonitor(model, every=1)
    hook = model.model.layers[1].mlp.register_forward_hook(fail)
    with pytest.raises(error), monitor:
        model(ids)
    hook.remove()
    assert monitor.latest is None
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(ids).logits, before)
    with monitor:
        model(ids)
    assert set(monitor.latest) == KEYS


@pytest.fixture
def process_group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(ids)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrap", [Around, nn.parallel.DistributedDataParallel])
def test_the_model_is_found_inside_a_wrapper(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model, ids = llama(), tokens()
    wrapped = wrap(model)
    monitor = DilutionMonitor(wrapped, every=1)
    assert monitor.model is model
    with monitor:
        wrapped(ids)
    with DilutionMonitor(model, every=1) as direct:
        model(ids)
    assert monitor.latest == direct.latest


def test_a_compiled_model_is_measured_and_not_compiled_again() -> None:
    model, ids = llama(use_cache=False), tokens()
    compiled = torch.compile(model, backend="eager")
    monitor = DilutionMonitor(compiled, every=2)
    with DilutionMonitor(model, every=1) as direct:
        model(ids)
    with monitor:
        first = compiled(ids).logits
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(4):
            with monitor:
                logits = compiled(ids).logits
            torch.testing.assert_close(logits, first)
            assert monitor.latest in (None, direct.latest)
    assert monitor.passes == 5
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DilutionMonitor(llama(), every=0), "every = 0: must be a whole number of at least 1"),
        (lambda: DilutionMonitor(llama(), rows=0), "rows = 0: must be a whole number of at least 1"),
        (lambda: DilutionMonitor(llama(), every=2.5), "every = 2.5: must be a whole number"),
        (lambda: DilutionMonitor(nn.Linear(2, 2)), "model is a Linear: must be a Hugging Face model"),
        (lambda: DilutionMonitor("gpt2"), "model is a str: must be a Hugging Face model"),
        (lambda: DilutionMonitor(nn.DataParallel(llama())), "model is a DataParallel: .* must be a plain model"),
    ],
)
def test_bad_input_is_refused_when_the_monitor_is_made(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ud.InvalidValue, match=message):
        make()


def test_a_measured_block_without_the_model_says_so() -> None:
    monitor = DilutionMonitor(llama(), every=2)
    with monitor:
        pass
    with (
        pytest.raises(ud.InvalidValue, match="no attention of LlamaForCausalLM ran inside the monitor's block"),
        monitor,
    ):
        pass


def test_long_rows_are_those_of_each_layer_and_a_head_counts_once() -> None:
    model = llama()
    with capture(model, rows=4, measures=MEASURES) as c:
        model(tokens(1, 64))
    one, other = c.layers[:2]
    one.n, other.n = np.array([1, 2, 3, 4]), np.array([50, 99, 100, 200])
    one.measures["entropy"][:] = [[9, 1, 2, 3]] * 4
    other.measures["entropy"][:] = [[9, 9, 4, 8]] * 4
    assert summary([one, other])["dilution/entropy"] == (2 + 6) / 2


def test_the_package_can_be_imported_without_transformers() -> None:
    script = """
import sys
sys.modules["transformers"] = None
import torch, undilute
from undilute.integrations import DilutionMonitor
for use in (lambda: DilutionMonitor(torch.nn.Linear(2, 2)), lambda: undilute.integrations.DilutionCallback):
    try:
        use()
    except undilute.MissingExtra as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    expected = "this needs 'transformers', which is not installed: pip install 'undilute[models]'."
    assert done.stdout.splitlines() == [expected, expected]
