"""How good is a model on a text?  Loss by position, needle recall and the spread of its attention, in one go.

What to read and what to ask is prepared once, so that every treatment of the model is judged by the same tokens:

    material = prepare(model, tokenizer, held_out)
    before = measure(model, material, "softmax")
    with undilute.apply(model, "adaptive"):
        after = measure(model, material, "adaptive")
    changes(before, after)

``undilute.evaluate`` does that with the second half of a text, and reports the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.evaluation import haystacks as needles
from undilute.evaluation.cost import Cost
from undilute.evaluation.haystacks import Haystack, Question
from undilute.measures.registry import WITHOUT_SINK
from undilute.models import text_loss, texts
from undilute.models.capture import Capture, LayerSample, capture
from undilute.models.forward_pass import check_reads_tokens, evaluating
from undilute.models.limits import readable_length
from undilute.models.read_once import read
from undilute.models.texts import known_tokens
from undilute.progress import Progress, quiet
from undilute.rules.parameters import whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

WINDOWS = 2
HAYSTACKS = 2
SHARES = (4, 2, 1)  # a needle's haystack is a quarter, half or all of the length
ROWS = 64  # of attention that are measured
ENTROPY = "entropy"
TOP_WEIGHT = "top_weight" + WITHOUT_SINK


@dataclass(frozen=True)
class Answer:
    """One question about one haystack.

    Attributes
    ----------
    task : which kind of question
    length : tokens of the haystack with its longest question
    depth : where what is asked for stands: 0 at the start of the haystack, 1 at its end
    haystack, question : numbers, so that the same question of two evaluations can be paired; each haystack of an
        evaluation has its own
    right : 1 or 0 where one candidate is right; with k right ones, the share of them among the k that are ranked first
    log_probability : of the right candidates among all candidates, in nats: their mean log of a softmax over the
        candidates' log-likelihoods
    chance : what ``right`` is by guessing
    """

    task: str
    length: int
    depth: float
    haystack: int
    question: int
    right: float
    log_probability: float
    chance: float


@dataclass(frozen=True, eq=False)
class Spread:
    """How wide the heads attend: sampled rows of the same text.

    Attributes
    ----------
    n : (rows,), keys that a row sees
    entropy : (layers, heads, rows), in nats, of the weights that the model uses; NaN where a layer has fewer heads
    top_weight : (layers, heads, rows), the largest weight of a key that is no sink
    """

    n: NDArray[np.int64]
    entropy: NDArray[np.float64]
    top_weight: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measurement:
    """One model, treated or not, on one text and one set of questions.

    Attributes
    ----------
    label : what was measured: "softmax", "ssmax", "plan.json", …
    losses : (windows, tokens − 1), next-token loss in nats: entry t is that of token t + 1, given t + 1 tokens
    answers : to every question, in the same order in every measurement of the same material
    spread : entropy of the heads on the first window
    cost : speed and memory
    """

    label: str
    losses: NDArray[np.float64]
    answers: tuple[Answer, ...]
    spread: Spread
    cost: Cost | None = field(default=None)

    @property
    def tasks(self) -> list[str]:
        """The tasks that were asked, in their usual order."""
        return list(dict.fromkeys(answer.task for answer in self.answers))

    @property
    def lengths(self) -> list[int]:
        """The lengths that were asked at."""
        return sorted({answer.length for answer in self.answers})

    def asked(self, *, task: str | None = None, length: int | None = None) -> list[Answer]:
        """The answers of one task, of one length, or of both."""
        return [each for each in self.answers if task in (None, each.task) and length in (None, each.length)]


# ---------------------------------------------------------------- what is read and asked


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


def prepare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    text: str | Tensor,
    *,
    length: int | None = None,
    windows: int = WINDOWS,
    lengths: Sequence[int] | None = None,
    haystacks: int = HAYSTACKS,
    tasks: Sequence[str] | None = None,
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
    tasks : names of those to ask; all that there are by default
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
    ids = known_tokens(texts.tokenised(tokenizer, text), model)
    read = text_loss.windows(ids, length, windows, start=texts.beginning(tokenizer))
    if haystacks == 0:
        return Material(read, ())
    if tokenizer is None:
        raise InvalidValue("tokenizer = None: needed to hide needles; give it, or haystacks = 0.")
    prose = text if isinstance(text, str) else str(tokenizer.decode(ids.tolist()))
    if lengths is None:
        least = needles.shortest(tokenizer, tasks)
        lengths = [length // share for share in SHARES if length // share >= least]
    lengths = sorted({readable_length(model, each) for each in lengths})
    return Material(read, needles.haystacks(tokenizer, prose, lengths, haystacks, seed=seed, only=tasks))


# ---------------------------------------------------------------- everything but time and memory


def measure(
    model: PreTrainedModel, material: Material, label: str = "softmax", *, on_progress: Progress | None = None
) -> Measurement:
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
    answered: list[Answer] = []
    for haystack in material.haystacks:
        report(f"needles, {haystack.task} at {haystack.length:,} tokens")
        answered += answers(model, [haystack])
        report.read(haystack.length)
    report("done")
    return Measurement(label, np.concatenate(losses), tuple(answered), found)


class _Reporter:
    """Progress by the share of all tokens that were read."""

    def __init__(self, tell: Progress, material: Material) -> None:
        self.tell, self.done = tell, 0
        self.all = material.windows.numel() + sum(haystack.length for haystack in material.haystacks)

    def __call__(self, doing: str) -> None:
        self.tell(self.done / self.all, doing)

    def read(self, tokens: int) -> None:
        self.done += tokens


# ---------------------------------------------------------------- answers, from the cache of a haystack


def answers(
    model: PreTrainedModel, haystacks: Sequence[Haystack], *, on_haystack: Callable[[Haystack], None] | None = None
) -> tuple[Answer, ...]:
    """Every question of every haystack, answered by ranking its candidates.

    Parameters
    ----------
    model : a causal Hugging Face language model, treated or not
    haystacks : from :func:`undilute.evaluation.haystacks.haystacks`
    on_haystack : called with each haystack when its questions are answered, for progress

    Returns
    -------
    tuple of Answer
        In the order of the haystacks and their questions.
    """
    found: list[Answer] = []
    with torch.inference_mode(), evaluating(model):
        for haystack in haystacks:
            found += _about(model, haystack)
            if on_haystack is not None:
                on_haystack(haystack)
    return tuple(found)


def _about(model: PreTrainedModel, haystack: Haystack) -> list[Answer]:
    text = read(model, haystack.ids)
    return [
        answered(haystack, number, question, text.ask(question.ids))
        for number, question in enumerate(haystack.questions)
    ]


def answered(haystack: Haystack, number: int, question: Question, logits: Tensor) -> Answer:
    """What the logits (vocabulary,) after a question say."""
    scores = logits[question.candidate_ids]
    right = set(question.right)
    first = scores.argsort(descending=True, stable=True)[: len(right)].tolist()
    among = scores.log_softmax(0)[list(question.right)]
    return Answer(
        task=haystack.task,
        length=haystack.length,
        depth=question.depth,
        haystack=haystack.number,
        question=number,
        right=len(right.intersection(first)) / len(right),
        log_probability=float(among.mean()),
        chance=question.chance,
    )


# ---------------------------------------------------------------- how widely the heads attend


def watching(model: PreTrainedModel, rows: int = ROWS) -> Capture:
    """A context in which a pass of the model is measured; give it to :func:`spread` afterwards."""
    return capture(model, rows, measures=[ENTROPY, TOP_WEIGHT])


def spread(watched: Capture) -> Spread:
    """What was measured of one causal pass over one window.

    Examples
    --------
    >>> import torch, transformers
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1, eos_token_id=1)
    >>> model = transformers.GPT2LMHeadModel(config)
    >>> with watching(model, rows=8) as watched:
    ...     _ = model(torch.arange(40)[None])
    >>> spread(watched).entropy.shape
    (2, 4, 8)
    """
    layers = watched.layers
    if not layers:
        raise InvalidValue(
            "no attention call was seen: the model's attention does not go through transformers' AttentionInterface, "
            "so it cannot be read from outside."
        )
    if ahead := next((layer.name for layer in layers if layer.looks_ahead), None):
        raise InvalidValue(
            f"{ahead} looks at later tokens, as an encoder does: evaluation needs a causal language model, which "
            "predicts each token from those before it."
        )
    longest = max(layers, key=lambda layer: int(layer.n.max()))  # a sliding window sees fewer keys than there are
    return Spread(longest.n, _stacked(layers, ENTROPY), _stacked(layers, TOP_WEIGHT))


def _stacked(layers: list[LayerSample], measure: str) -> NDArray[np.float64]:
    """(layers, heads, rows); NaN where a layer has fewer heads than another."""
    heads = max(layer.heads for layer in layers)
    made = np.full((len(layers), heads, len(layers[0].n)), np.nan)
    for index, layer in enumerate(layers):
        made[index, : layer.heads] = layer.measures[measure]
    return made
