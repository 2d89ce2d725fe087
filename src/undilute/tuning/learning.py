"""How are factors learned?  Adam on cross-entropy of the answers, with a prior towards "as it was" and a price on text.

Every step asks about one sample, over what the untreated model has kept of its text. The loss is

    cross-entropy of the answers + prior · mean θ² + price · KL(untreated ‖ treated) on 64 rows of plain text

and the θ that is kept is the one that answers best what it was not learned from. The state after every look is written
to a file, if one is given, and a run that was killed goes on from there to the same result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from undilute import files
from undilute.errors import InvalidValue
from undilute.models.forward_pass import evaluating
from undilute.progress import Progress, quiet
from undilute.rules.parameters import at_least, count, number
from undilute.tuning.knobs import Knobs
from undilute.tuning.rows import Kept, cross_entropy, predicted, right

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Settings:
    """How to learn.

    Attributes
    ----------
    steps : at most; each asks all questions about one text
    rate : of Adam, falling to 0 along a cosine
    prior : weight of the mean of θ², which pulls every factor towards 1
    price : weight of the KL divergence on plain text; 0 if text is not touched
    look : steps between two looks at what decides
    patience : looks without anything better until learning stops
    """

    steps: int = 72
    rate: float = 0.03
    prior: float = 0.3
    price: float = 5.0
    look: int = 12
    patience: int = 4

    def __post_init__(self) -> None:
        for name in ("steps", "look", "patience"):
            count(name, getattr(self, name))
        number("rate", self.rate, 0.0)
        for name in ("prior", "price"):
            at_least(name, getattr(self, name), 0.0)


@dataclass(frozen=True)
class Look:
    """One look at what decides: after so many steps, cross-entropy in nats and the share of right answers."""

    step: int
    loss: float
    right: float


@dataclass
class State:
    """Where learning is.

    Attributes
    ----------
    theta, best : (parameters,), now, and at the best look so far
    first, second : Adam's moments
    step : done so far
    looks : so far
    """

    theta: Tensor
    best: Tensor
    first: Tensor
    second: Tensor
    step: int = 0
    looks: list[Look] = field(default_factory=list)

    @classmethod
    def new(cls, size: int) -> State:
        return cls(torch.zeros(size), torch.zeros(size), torch.zeros(size), torch.zeros(size))


@dataclass(frozen=True, eq=False)
class Learned:
    """What was learned with one seed: θ (parameters,), and the looks on the way."""

    theta: Tensor
    looks: tuple[Look, ...]


def learn(
    model: PreTrainedModel,
    knobs: Knobs,
    learned: Sequence[Kept],
    chosen: Sequence[Kept],
    text: Sequence[Kept],
    settings: Settings,
    *,
    joint: bool,
    seed: int = 0,
    checkpoint: Path | None = None,
    on_progress: Progress = quiet,
) -> Learned:
    """Learn one θ.

    Parameters
    ----------
    model : with the knobs' rules in force; its weights stay as they are
    knobs : what is learned
    learned, chosen, text : samples to learn from, to decide by, and plain text that must stay as it was
    settings : how
    joint : whether the model takes several questions in one pass
    seed : of the order of samples
    checkpoint : a file with the state of a run with the same arguments, or to be written
    on_progress : called with (share done, what is being done)
    """
    state = _loaded(checkpoint, knobs.size)
    order = _order(len(learned), settings.steps, seed)
    untreated = _untreated(model, knobs, text) if settings.price else []
    with evaluating(model):
        if not state.looks:
            state.looks.append(look(model, knobs.values(state.theta), chosen, 0, joint))
        while state.step < settings.steps and not _worn_out(state.looks, settings.patience):
            on_progress(state.step / settings.steps, f"learning, step {state.step + 1} of {settings.steps}")
            sample = learned[order[state.step]]
            price = settings.price if untreated else 0.0
            beside = (text[state.step % len(text)], untreated[state.step % len(text)]) if untreated else None
            gradient = _gradient(model, knobs, state.theta, sample, beside, settings.prior, price, joint)
            _adam(state, gradient, settings)
            if state.step % settings.look == 0 or state.step == settings.steps:
                _looked(state, look(model, knobs.values(state.theta), chosen, state.step, joint))
                _save(checkpoint, state)
    return Learned(state.best, tuple(state.looks))


def look(model: PreTrainedModel, values: Mapping[str, Tensor], chosen: Sequence[Kept], step: int, joint: bool) -> Look:
    """How well the samples that decide are answered with these values of the model's learned parameters."""
    losses, rights = [], []
    with torch.no_grad():
        for kept in chosen:
            logits = predicted(model, kept, values, joint and len(kept.sample.items) > 1)
            losses.append(float(cross_entropy(logits, kept)))
            rights += right(logits, kept)
    return Look(step, float(np.mean(losses)), float(np.mean(rights)))


def _gradient(
    model: PreTrainedModel,
    knobs: Knobs,
    theta: Tensor,
    sample: Kept,
    beside: tuple[Kept, Tensor] | None,
    prior: float,
    price: float,
    joint: bool,
) -> Tensor:
    """Of the loss of one step, (parameters,)."""
    own = theta.clone().requires_grad_()
    values = knobs.values(own)
    logits = predicted(model, sample, values, joint and len(sample.sample.items) > 1)
    loss = cross_entropy(logits, sample) + prior * knobs.distance(own)
    if beside is not None:
        text, before = beside
        now = predicted(model, text, values, False)[0].log_softmax(-1)
        loss = loss + price * (before.exp() * (before - now)).sum(-1).mean()
    (gradient,) = torch.autograd.grad(loss, own)
    if not bool(gradient.isfinite().all()):
        raise InvalidValue(
            f"{type(model).__name__} gives gradients that are not finite: its weights are broken, or its dtype is too "
            "narrow; load it in float32."
        )
    return gradient


def _adam(state: State, gradient: Tensor, settings: Settings) -> None:
    """One step of Adam (Kingma & Ba 2015), at a rate that falls along a cosine."""
    rate = 0.5 * settings.rate * (1 + np.cos(np.pi * state.step / settings.steps))
    state.step += 1
    state.first = 0.9 * state.first + 0.1 * gradient
    state.second = 0.999 * state.second + 0.001 * gradient.square()
    mean, variance = state.first / (1 - 0.9**state.step), state.second / (1 - 0.999**state.step)
    state.theta = state.theta - float(rate) * mean / (variance.sqrt() + 1e-8)


def _looked(state: State, now: Look) -> None:
    if now.loss < min(each.loss for each in state.looks):
        state.best = state.theta.clone()
    state.looks.append(now)


def _worn_out(looks: Sequence[Look], patience: int) -> bool:
    best = min(range(len(looks)), key=lambda place: looks[place].loss)
    return len(looks) - 1 - best >= patience


def _order(samples: int, steps: int, seed: int) -> list[int]:
    """Which sample each step asks about: all of them in random order, again and again."""
    generator = np.random.default_rng([seed, 5])
    rounds = [generator.permutation(samples) for _ in range(-(-steps // samples))]
    return [int(place) for place in np.concatenate(rounds)[:steps]]


def _untreated(model: PreTrainedModel, knobs: Knobs, text: Sequence[Kept]) -> list[Tensor]:
    """Log-probabilities (rows, vocabulary) of plain text as the untreated model has them."""
    with torch.no_grad(), evaluating(model):
        nothing = knobs.values(torch.zeros(knobs.size))
        return [predicted(model, kept, nothing, False)[0].log_softmax(-1) for kept in text]


# ---------------------------------------------------------------- a run that was killed goes on


def _save(path: Path | None, state: State) -> None:
    if path is None:
        return
    from safetensors.torch import save

    tensors = {name: getattr(state, name) for name in ("theta", "best", "first", "second")}
    told = {"step": str(state.step), "looks": json.dumps([asdict(each) for each in state.looks])}
    files.write(path, save(tensors, told))


def _loaded(path: Path | None, size: int) -> State:
    if path is None or not path.exists():
        return State.new(size)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            told: dict[str, Any] = file.metadata()
            tensors = {name: file.get_tensor(name) for name in ("theta", "best", "first", "second")}
            looks = [Look(**each) for each in json.loads(told["looks"])]
            state = State(**tensors, step=int(told["step"]), looks=looks)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InvalidValue(f"{str(path)!r} is no state of a tuning ({error}): remove it to begin anew.") from None
    if state.theta.shape != (size,):
        raise InvalidValue(
            f"{str(path)!r} is the state of a tuning with {len(state.theta)} parameters, and this one has {size}: "
            "remove it to begin anew."
        )
    return state
