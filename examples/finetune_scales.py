"""Does a trained model keep its focus in longer contexts if its heads may learn how sharp to be, and nothing else?

Every head gets Scalable-Softmax: its logits are multiplied by 1 + s·ln n in a row that sees n keys (Nakanishi 2025,
arXiv:2501.19399). One number s for each head and layer, 270 in SmolLM2, is learned with Hugging Face's Trainer at
1,024 tokens; the weights are frozen. Then loss by position and needle recall at 4,096 tokens are compared in pairs
with those of the untouched model, on text that training never saw. It prints what came out, for better or worse.

    python examples/finetune_scales.py --steps 200
    undilute treat --model smollm2 --plan undilute-out/scales/plan.json

The start is s = 0 and b = 1, which is plain softmax: step 0 is the untouched model, and all that differs in the end was
learned. ``undilute.calibrate`` would begin elsewhere: at scales that hold each head at its sharpness of a short
context, with a floor of 1 below it. Under that floor s has no gradient, so a head that calibration leaves alone could
never learn; and with b fixed for the first s, another s would move the length from which the head is sharpened. What
s = 0 and b = 1 cannot learn is to leave short rows alone and sharpen long ones: within 1,024 tokens ln n varies little,
and s is in the first place a temperature, which then goes on growing with ln n.

After a stop, give the same command again: it goes on from the last checkpoint. Trainer is shown a module that holds the
scales alone, so a checkpoint is 70 kilobytes, not a copy of the model. Everything runs on the CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import undilute as ud

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer

SETTINGS = "settings.json"
PLAN = "plan.json"


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    checked(options)
    torch.set_flush_denormal(True)  # gradients that underflow would slow the CPU down
    text = ud.models.texts.read(options.text)
    model, tokenizer = ud.models.load(options.model)
    ids = ud.models.tokenised(tokenizer, text)
    learned_from, held_out = ud.models.halves(ids)
    rows = all_windows(model, tokenizer, learned_from, options.length)
    ud.evaluation.prepare(model, tokenizer, held_out, **judged_by(options))  # what cannot be judged shows now

    treated = with_scales(model)
    train(Scales(model, treated), rows, options)
    path = save_plan(model, options)
    print(learned(treated), f"wrote {path}", sep="\n")
    treated.undo()
    judge(model, tokenizer, ids, path, options)


# ---------------------------------------------------------------- what is learned


def with_scales(model: PreTrainedModel) -> ud.treatment.Treated:
    """Freeze the weights and give every head 1 + s·ln n, with an s of its own to learn; it starts as softmax."""
    model.requires_grad_(False)
    return ud.apply(model, ud.rules.LogLength(s=0.0, b=1.0), learn=("s",))


class Scales(nn.Module):
    """The scales of a treated model, as all that Trainer can see, optimise and save.

    The model itself is called but is not a part, so that neither a checkpoint nor an optimiser holds its weights. It
    stays as it was loaded: on the CPU and without dropout.
    """

    def __init__(self, model: PreTrainedModel, treated: ud.treatment.Treated) -> None:
        super().__init__()
        self.s = nn.ParameterList(treated.parameters())  # the very parameters that the model attends with
        self.predict = partial(model, use_cache=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        return self.predict(input_ids=input_ids, labels=labels)


def learned(treated: ud.treatment.Treated) -> str:
    """What the scales have become, in a sentence."""
    s = torch.cat([each.detach() for each in treated.parameters()])
    return (
        f"Of {len(s)} heads, {int((s > 0).sum())} have become sharper with length (s > 0) and {int((s < 0).sum())} "
        f"flatter (s < 0): s is {s.min():+.4f} to {s.max():+.4f}, with a median of {s.median():+.4f}."
    )


# ---------------------------------------------------------------- training


def all_windows(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: Tensor, length: int) -> Tensor:
    """Everything to learn from, cut into windows that begin as the tokenizer begins a text: (windows, length)."""
    ud.models.readable_length(model, length, name="--length")
    start = ud.models.beginning(tokenizer)
    return ud.models.windows(ids, length, max(1, len(ids) // max(1, length - len(start))), start=start)


def train(scales: Scales, rows: Tensor, options: argparse.Namespace) -> None:
    """Learn the scales from windows (windows, tokens), from the last checkpoint on if there is one."""
    agree(options.output, settings_of(rows, options))
    checkpoint = last_checkpoint(options.output)
    done = 0 if checkpoint is None else number_of(checkpoint)
    if checkpoint is not None:
        print(f"going on from {checkpoint}")
    resumed = None if checkpoint is None else str(checkpoint)
    trained = trainer(scales, rows, options).train(resume_from_checkpoint=resumed)
    if done < options.steps:
        seconds = trained.metrics["train_runtime"] / (options.steps - done)
        print(f"{options.steps - done} steps of {options.length:,} tokens, {seconds:.1f} seconds each")


def trainer(scales: Scales, rows: Tensor, options: argparse.Namespace) -> Trainer:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        str(options.output),
        max_steps=options.steps,
        per_device_train_batch_size=1,
        learning_rate=options.learning_rate,
        lr_scheduler_type="linear",
        logging_steps=10,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        save_steps=options.save_every,
        save_total_limit=2,
        seed=options.seed,
        report_to="none",
        use_cpu=True,
        dataloader_pin_memory=False,
    )
    data: Any = [{"input_ids": row, "labels": row} for row in rows]
    return Trainer(model=scales, args=arguments, train_dataset=data)


def settings_of(rows: Tensor, options: argparse.Namespace) -> dict[str, Any]:
    """What must be the same for training to go on where it stopped."""
    return {
        "model": options.model,
        "text": hashlib.sha256(rows.numpy().tobytes()).hexdigest(),
        "length": options.length,
        "steps": options.steps,
        "learning rate": options.learning_rate,
        "seed": options.seed,
    }


def agree(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings beside the checkpoints, or raise if checkpoints of other settings are there."""
    path = folder / SETTINGS
    if last_checkpoint(folder) is not None:
        try:
            before = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            before = {}
        if differing := [name for name, value in settings.items() if before.get(name) != value]:
            raise ud.InvalidValue(
                f"{str(folder)!r} holds checkpoints of a training with another {differing[0]}: give the same options "
                "to go on with it, or another --output."
            )
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def last_checkpoint(folder: Path) -> Path | None:
    """The latest checkpoint that was written to its end: Trainer writes its state last."""
    whole = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return max(whole, key=number_of, default=None)


def number_of(checkpoint: Path) -> int:
    """Steps done at a checkpoint."""
    return int(checkpoint.name.rpartition("-")[2])


def save_plan(model: PreTrainedModel, options: argparse.Namespace) -> Path:
    """The learned scales as a file that ``undilute.apply`` and ``undilute treat --plan`` take."""
    steps, length = options.steps, options.length
    made = {"rule": f"ssmax, learned in {steps:,} steps at {length:,} tokens,", "steps": steps, "length": length}
    return replace(ud.Plan.of(model), made=made).save(options.output / PLAN)


# ---------------------------------------------------------------- what came of it


def judged_by(options: argparse.Namespace) -> dict[str, Any]:
    """What the model reads and answers."""
    return {
        "length": options.evaluate_at,
        "windows": options.windows,
        "lengths": [options.evaluate_at],
        "haystacks": options.haystacks,
        "seed": options.seed,
    }


def judge(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: Tensor, plan: Path, options: argparse.Namespace
) -> None:
    """Compare the model with the plan to the model without it, on held-out text, and print what came out."""
    found = ud.evaluate(model, tokenizer, ids, plan, label="learned scales", on_progress=shown, **judged_by(options))
    for line in found.changes["learned scales"]:
        if line.what.startswith("next-token loss"):
            print(f"{line.what}: {ud.evaluation.figures(line)}: {line.verdict}")
    print(found.summary())
    if options.evaluate_at > options.length:
        print(within_and_beyond(*found.measurements, options.length))


def within_and_beyond(before: ud.evaluation.Measurement, after: ud.evaluation.Measurement, length: int) -> str:
    """Whether the loss changed more where training had not been, in a sentence."""
    difference = after.losses - before.losses
    within, beyond = difference[:, : length - 1].mean(), difference[:, length - 1 :].mean()
    return (
        f"The loss changed by {within:+.4f} nats within the {length:,} tokens of training and by {beyond:+.4f} beyond "
        "them; only the second is about contexts longer than those of training."
    )


def shown(share: float, doing: str) -> None:
    """Progress, where somebody may be watching."""
    if sys.stderr.isatty():
        print(f"\r{share:4.0%} {doing:<60}", end="\n" if share >= 1 else "", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- options


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fine-tune only SSMax's scales of a causal language model.")
    add = partial(parser.add_argument, metavar="…")
    add("--model", default="smollm2", help="smollm2, a hub id, a folder, or a .gguf file")
    add("--text", type=Path, nargs="+", default=[], help="text files, half to learn from; what CPython ships if none")
    add("--steps", type=int, default=200, help="steps of training")
    add("--length", type=int, default=1024, help="tokens of a step")
    add("--learning-rate", type=float, default=3e-3, help="Adam's, falling to 0")
    add("--evaluate-at", type=int, default=4096, help="tokens of a window to judge by")
    add("--windows", type=int, default=4, help="windows to judge by")
    add("--haystacks", type=int, default=2, help="haystacks of each of four tasks to judge by; 0 for none")
    add("--save-every", type=int, default=10, help="steps from checkpoint to checkpoint")
    add("--seed", type=int, default=0, help="of the order of windows, needles and intervals")
    add("--output", type=Path, default=Path("undilute-out/scales"), help="folder of checkpoints and the plan")
    return parser.parse_args(arguments)


def checked(options: argparse.Namespace) -> None:
    """Refuse what would only fail later."""
    if importlib.util.find_spec("accelerate") is None:
        raise ud.MissingExtra("accelerate", "train")
    for name in ("steps", "length", "evaluate_at", "windows", "save_every"):
        if getattr(options, name) < 1:
            typed = f"--{name.replace('_', '-')} = {getattr(options, name)}"
            raise ud.InvalidValue(f"{typed}: must be a whole number of at least 1.")
    if not 0 < options.learning_rate < math.inf:
        raise ud.InvalidValue(f"--learning-rate = {options.learning_rate}: must be a finite number > 0.")
    if options.output.is_file():
        raise ud.InvalidValue(f"--output = {str(options.output)!r} is a file: must be a folder.")


if __name__ == "__main__":
    try:
        main()
    except ud.UndiluteError as error:
        sys.exit(f"error: {error}")
