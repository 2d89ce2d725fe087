"""What does it take to train with entmax instead of softmax, and what does one get?

Two small Llamas are configured from scratch with transformers; they differ in ``attn_implementation`` alone, one with
torch's own softmax attention ("sdpa"), one with entmax-1.5 ("undilute:entmax15"; Peters et al. 2019, arXiv:1905.05702),
whose weights are exactly 0 for keys that do not matter. Both start from the same weights and read the same bytes in the
same order. It prints their loss on held-out text, at the length of training and at four times that, and the time of a
training step of each.

    python examples/train_from_scratch.py --steps 150

A step is timed in turns, softmax and entmax one after the other, and the best of several counts, so that a slow moment
of the machine does not hit one of them alone. It is timed before and after training: fresh weights spread their
attention over every key, and the fewer keys a trained row keeps, the less entmax has to do. Every step reads the same
number of bytes: four windows of 1,024, or one of 4,096.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import undilute as ud

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

IMPLEMENTATIONS = {"softmax": "sdpa", "entmax15": "undilute:entmax15"}
RUN = 32  # neighbouring bytes depend on each other, and are taken together
TIMES_LONGER = 4  # the longer of the two lengths, and the windows of a step at the shorter one
HELD_OUT = 16  # windows of the shorter length to judge by
CLOSE = 0.05  # a ratio of times this near to 1 is called about the same

Models = Mapping[str, "LlamaForCausalLM"]
Timings = dict[int, dict[str, float]]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    checked(options)
    torch.set_flush_denormal(True)  # gradients that underflow would slow the CPU down
    text = ud.models.texts.read(options.text)
    learned_from, held_out = ud.models.halves(as_bytes(text, 2 * HELD_OUT * options.length))
    lengths = (options.length, TIMES_LONGER * options.length)
    judged_by = {n: ud.models.windows(held_out, n, HELD_OUT * options.length // n) for n in lengths}
    batches = drawn(learned_from, options)

    models = {name: small_llama(implementation, options) for name, implementation in IMPLEMENTATIONS.items()}
    print(f"{models['softmax'].num_parameters():,} weights each; {options.steps} steps of {batches[0].numel():,} bytes")
    fresh = seconds_per_step(models, learned_from, lengths, options.rounds)
    train(models, batches, options.learning_rate)
    for n, rows in judged_by.items():
        print(compared(models, rows, n == options.length))
    print("Each was trained once, with one seed: the interval is that of the text, not of other seeds.")
    trained = seconds_per_step(models, learned_from, lengths, options.rounds)
    print(*described("with fresh weights", fresh), *described("after training", trained), sep="\n")


# ---------------------------------------------------------------- the models and what they read


def small_llama(implementation: str, options: argparse.Namespace) -> LlamaForCausalLM:
    """A Llama for bytes with random weights: the same for every implementation."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=options.width,
        intermediate_size=3 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        max_position_embeddings=TIMES_LONGER * options.length,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(options.seed)
    model: LlamaForCausalLM = AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    return model


def as_bytes(text: str, least: int) -> Tensor:
    """The bytes of a text that has at least so many, (bytes,)."""
    ids = torch.frombuffer(bytearray(text, encoding="utf-8"), dtype=torch.uint8).long()
    if len(ids) < least:
        raise ud.InvalidValue(
            f"the text has {len(ids):,} bytes: must have at least {least:,}, {HELD_OUT} windows of --length in each "
            "half of it; give a longer text or a smaller length."
        )
    return ids


def drawn(ids: Tensor, options: argparse.Namespace) -> list[Tensor]:
    """Random windows of the text for every step, each (windows, length)."""
    generator = torch.Generator().manual_seed(options.seed)
    starts = torch.randint(len(ids) - options.length, (options.steps, TIMES_LONGER), generator=generator)
    return [torch.stack([ids[at : at + options.length] for at in row]) for row in starts.tolist()]


# ---------------------------------------------------------------- training


def train(models: Models, batches: Sequence[Tensor], learning_rate: float) -> None:
    """Train all models in turns on the same batches."""
    optimisers = {name: optimiser(model, learning_rate) for name, model in models.items()}
    for number, batch in enumerate(batches, start=1):
        loss = {name: step(model, optimisers[name], batch) for name, model in models.items()}
        if number % max(1, len(batches) // 10) == 0:
            print(f"step {number:,}: " + ", ".join(f"{name} {value:.3f}" for name, value in loss.items()), flush=True)


def optimiser(model: LlamaForCausalLM, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))


def step(model: LlamaForCausalLM, optimiser: torch.optim.Optimizer, batch: Tensor) -> float:
    """One step of training on a batch (windows, length); returns its loss in nats a byte."""
    model.train()
    optimiser.zero_grad()
    loss = model(input_ids=batch, labels=batch, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return float(loss.detach())


# ---------------------------------------------------------------- what one gets


def compared(models: Models, rows: Tensor, is_trained_length: bool) -> str:
    """Loss of both models on held-out windows (windows, length), in pairs, in a sentence."""
    softmax, entmax = (ud.models.losses(models[name], rows) for name in IMPLEMENTATIONS)
    number, positions = softmax.shape
    runs = torch.arange(number)[:, None] * positions + torch.arange(positions) // RUN
    pairs = softmax.ravel(), entmax.ravel(), runs.flatten().numpy()
    line = ud.evaluation.change("loss", "nats a byte", *pairs, better="lower")
    where = "the length of training" if is_trained_length else "longer than anything seen in training"
    return (
        f"Loss on held-out text at {rows.shape[1]:,} bytes, {where}, softmax → entmax15: "
        f"{ud.evaluation.figures(line)}: {line.verdict}."
    )


def seconds_per_step(models: Models, ids: Tensor, lengths: Sequence[int], rounds: int) -> Timings:
    """Seconds of a training step at each length: in turns, the best of several; the models stay as they are."""
    copies = {name: copy.deepcopy(model) for name, model in models.items()}
    optimisers = {name: optimiser(model, 0.0) for name, model in copies.items()}
    best: Timings = {n: dict.fromkeys(models, float("inf")) for n in lengths}
    for n in lengths:
        batch = ud.models.windows(ids, n, TIMES_LONGER * lengths[0] // n)
        for turn in range(rounds + 1):
            for name, model in copies.items():
                begun = time.perf_counter()
                step(model, optimisers[name], batch)
                if turn > 0:  # the first one warms up
                    best[n][name] = min(best[n][name], time.perf_counter() - begun)
    return best


def described(when: str, timings: Timings) -> list[str]:
    """Times of a step and who is faster, one sentence for each length."""
    said = []
    for n, seconds in timings.items():
        ratio = seconds["entmax15"] / seconds["softmax"]
        verdict = "about as fast as" if abs(ratio - 1) <= CLOSE else "faster than" if ratio < 1 else "slower than"
        said.append(
            f"A step at {n:,} bytes {when}: {seconds['softmax']:.3g} s with softmax, {seconds['entmax15']:.3g} s with "
            f"entmax15, {ratio:.2f} times as long: entmax15 is {verdict} softmax."
        )
    return said


# ---------------------------------------------------------------- options


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small Llama from scratch with softmax, and with entmax15.")
    add = partial(parser.add_argument, metavar="…")
    add("--steps", type=int, default=150, help="steps of training")
    add("--length", type=int, default=1024, help="bytes of a window; four windows a step")
    add("--width", type=int, default=128, help="features of a token")
    add("--layers", type=int, default=4, help="layers")
    add("--heads", type=int, default=4, help="heads of a layer")
    add("--learning-rate", type=float, default=2e-3, help="AdamW's")
    add("--rounds", type=int, default=5, help="steps to time; the best counts")
    add("--text", type=Path, nargs="+", default=[], help="text files, half to learn from; what CPython ships if none")
    add("--seed", type=int, default=0, help="of the weights and the batches")
    return parser.parse_args(arguments)


def checked(options: argparse.Namespace) -> None:
    """Refuse what would only fail later."""
    for name in ("steps", "length", "width", "layers", "heads", "rounds"):
        if getattr(options, name) < 1:
            raise ud.InvalidValue(f"--{name} = {getattr(options, name)}: must be a whole number of at least 1.")
    if not 0 < options.learning_rate < math.inf:
        raise ud.InvalidValue(f"--learning-rate = {options.learning_rate}: must be a finite number > 0.")
    if options.width % (2 * options.heads):
        raise ud.InvalidValue(
            f"--width = {options.width}: must be a multiple of 2 · --heads = {2 * options.heads}, so that every head "
            "has an even number of features."
        )
    try:
        import transformers  # noqa: F401
    except ModuleNotFoundError as error:
        raise ud.MissingExtra(str(error.name), "models") from None


if __name__ == "__main__":
    try:
        main()
    except ud.UndiluteError as error:
        sys.exit(f"error: {error}")
