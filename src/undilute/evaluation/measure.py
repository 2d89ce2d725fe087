"""How good is a model on a text?  Loss by position, needle recall and the spread of its attention, in one go.

What to read and what to ask is prepared once, so that every treatment of the model is judged by the same tokens:

    material = prepare(model, tokenizer, held_out)
    before = measure(model, material, "softmax")
    with undilute.apply(model, "adaptive"):
        after = measure(model, material, "adaptive")
    findings(before, after, changes(before, after))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.evaluation import haystacks as needles
from undilute.evaluation import recall
from undilute.evaluation.haystacks import Haystack
from undilute.evaluation.outcome import Answer, Evaluation
from undilute.evaluation.spread import spread, watching
from undilute.models import splits, text_loss
from undilute.models.forward_pass import check_reads_tokens
from undilute.models.limits import readable_length
from undilute.models.texts import known_tokens
from undilute.progress import Progress, quiet
from undilute.rules.parameters import whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WINDOWS = 2
HAYSTACKS = 2
SHARES = (4, 2, 1)  # a needle's haystack is a quarter, half or all of the length


@dataclass(frozen=True, eq=False)
class Material:
    """What is read and asked.

    Attributes
    ----------
    windows : (windows, tokens), for the loss; attention is measured on the first
    haystacks : with their questions
    """

    windows: Tensor
    haystacks: tuple[Haystack, ...]


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    text: str | Tensor,
    *,
    length: int | None = None,
    windows: int = WINDOWS,
    lengths: Sequence[int] | None = None,
    haystacks: int = HAYSTACKS,
    seed: int = 0,
    label: str = "softmax",
    on_progress: Progress | None = None,
) -> Evaluation:
    """Measure a model, treated or not: :func:`prepare` and :func:`measure` in one.

    Examples
    --------
    >>> import torch, transformers
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1, eos_token_id=1)
    >>> model = transformers.GPT2LMHeadModel(config).eval()
    >>> made = evaluate(model, None, torch.arange(400) % 50, length=128, haystacks=0)
    >>> made.losses.shape, made.spread.entropy.shape
    ((2, 127), (2, 4, 64))
    """
    material = prepare(
        model, tokenizer, text, length=length, windows=windows, lengths=lengths, haystacks=haystacks, seed=seed
    )
    return measure(model, material, label, on_progress=on_progress)


def prepare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    text: str | Tensor,
    *,
    length: int | None = None,
    windows: int = WINDOWS,
    lengths: Sequence[int] | None = None,
    haystacks: int = HAYSTACKS,
    seed: int = 0,
) -> Material:
    """What to read and what to ask.

    Parameters
    ----------
    model : a causal Hugging Face language model
    tokenizer : its tokenizer; None if ``text`` holds token ids and no needles are to be hidden
    text : held-out text, or token ids (tokens,), which nothing was fitted to
    length : tokens of a window; by default 2,048, or as many as the model reads
    windows : how many, evenly spread over the text
    lengths : tokens of the haystacks with their questions; by default a quarter, half and all of ``length``, as far as
        there is room for needles
    haystacks : of each task and length; 0 for none
    seed : of the needles

    Returns
    -------
    Material
        The same for the same arguments.
    """
    check_reads_tokens(model)
    length = readable_length(model, length)
    whole("seed", seed, 0)
    whole("haystacks", haystacks, 0)
    ids = known_tokens(splits.tokenised(tokenizer, text), model)
    read = text_loss.windows(ids, length, windows, start=splits.beginning(tokenizer))
    if haystacks == 0:
        return Material(read, ())
    if tokenizer is None:
        raise InvalidValue("tokenizer = None: needed to hide needles; give it, or haystacks = 0.")
    prose = text if isinstance(text, str) else str(tokenizer.decode(ids.tolist()))
    return Material(
        read,
        needles.haystacks(tokenizer, prose, _lengths(model, tokenizer, length, lengths), haystacks, seed=seed),
    )


def measure(
    model: PreTrainedModel, material: Material, label: str = "softmax", *, on_progress: Progress | None = None
) -> Evaluation:
    """Everything but time and memory, which are measured in turns: :func:`undilute.evaluation.cost.costs`.

    Parameters
    ----------
    model : a causal Hugging Face language model, treated or not
    material : from :func:`prepare`
    label : what is evaluated, in a word
    on_progress : called with the share that is done and what is under way
    """
    report = _Reporter(on_progress or quiet, material)
    report("attention and loss, first window")
    with watching(model) as watched:
        losses = [text_loss.losses(model, material.windows[:1])]
    found = spread(watched)
    report.read(material.windows.shape[1])
    for number, window in enumerate(material.windows[1:], start=2):
        report(f"loss, window {number} of {len(material.windows)}")
        losses.append(text_loss.losses(model, window[None]))
        report.read(len(window))
    answers: list[Answer] = []
    for haystack in material.haystacks:
        report(f"needles, {haystack.task} at {haystack.length:,} tokens")
        answers += recall.answers(model, [haystack])
        report.read(haystack.length)
    report("done")
    return Evaluation(label, np.concatenate(losses), tuple(answers), found)


class _Reporter:
    """Progress by the share of all tokens that were read."""

    def __init__(self, tell: Progress, material: Material) -> None:
        self.tell, self.done = tell, 0
        self.all = material.windows.numel() + sum(haystack.length for haystack in material.haystacks)

    def __call__(self, doing: str) -> None:
        self.tell(self.done / self.all, doing)

    def read(self, tokens: int) -> None:
        self.done += tokens


def _lengths(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, length: int, lengths: Sequence[int] | None
) -> list[int]:
    """Tokens of the haystacks, in order and each once."""
    if lengths is None:
        least = needles.shortest(tokenizer)
        return [length // share for share in SHARES if length // share >= least]
    return sorted({readable_length(model, each) for each in lengths})
