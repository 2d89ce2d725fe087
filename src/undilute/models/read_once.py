"""How are many questions asked about one text?  The text is read once, and its cache serves every question.

    read = ReadOnce(model, ids)
    logits, rows = read.attended(question)

``rows`` is what every head attends to from the question's last token, where the answer is about to be said.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.models.passes import PASSES, Run, layer_names, module_of
from undilute.models.question_rows import reading_text
from undilute.models.tensor_parallel import check_whole
from undilute.models.watch import OnCall, watch
from undilute.models.watched_call import WatchedCall

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SAME = 1e-3  # of logits and weights: what is computed in two ways differs by rounding
ROUNDINGS = 4  # of a number of half precision
TRIED = 32  # tokens that show whether a cache can be trusted


@dataclass(frozen=True, eq=False)
class LastRow:
    """What the heads of one layer attend to from the last token.

    Attributes
    ----------
    layer : the layer's name in the model, as of :class:`undilute.models.capture.LayerSample`
    weights : (heads, keys), 0 where hidden; the keys of the text and, after them, those of the question
    first : index of the key of the text's first token; below 0 if a cache has dropped it
    """

    layer: str
    weights: Tensor
    first: int

    def on(self, start: int, stop: int) -> Tensor:
        """(heads,): the attention on tokens ``start`` to ``stop`` of the text; those that were dropped have none."""
        begin, end = max(start + self.first, 0), max(stop + self.first, 0)
        return self.weights[:, begin:end].sum(-1)

    def on_each(self, tokens: int) -> Tensor:
        """(heads, keys): the attention on each of the first ``tokens`` tokens that were not dropped."""
        return self.weights[:, max(self.first, 0) : max(tokens + self.first, 0)]


class Answered(NamedTuple):
    """Logits (vocabulary,) after a question, and what each layer attended to from its last token."""

    logits: Tensor
    rows: list[LastRow]


READER = "_undilute_reader"  # of a model: what a treatment of what it reads puts in the place of :class:`ReadOnce`


class Asked(Protocol):
    """A text that questions can be asked about."""

    def ask(self, question: Tensor) -> Tensor:
        """Logits (vocabulary,) after the text and the question (tokens,), in double precision."""


def read(model: PreTrainedModel, ids: Tensor) -> Asked:
    """A text (tokens,) as the model reads it: all of it, or what a treatment that is in force makes of it."""
    reader = model.__dict__.get(READER)
    made: Asked = ReadOnce(model, ids) if reader is None else reader(ids)
    return made


class ReadOnce:
    """A text that a causal language model has read, for any number of questions, each asked by itself.

    Parameters
    ----------
    model : a causal Hugging Face language model, treated or not
    ids : (tokens,), the text; a model that keeps no cache, or one that cannot be trusted, reads it again with every
        question
    questions : how many of its last tokens are part of a question, for a treatment of question rows
        (``undilute.models.question_rows``)
    until : the name of a layer; the text is read only as deep as it, which saves the layers above. Questions can then
        only be asked for what is attended to, with :meth:`looked`
    cache : what the model remembers of the text already, from :attr:`cache` of an earlier reading
    """

    def __init__(
        self, model: PreTrainedModel, ids: Tensor, *, questions: int = 0, until: str | None = None, cache: Any = None
    ) -> None:
        self.model, self.ids, self.until, self.questions = model, ids[None].to(model.device), until, questions
        if cache is not None:
            self.cache = cache
            return
        with torch.inference_mode(), reading_text(questions):
            self.cache = _cache(model, self.ids) if until is None else _cache_until(model, self.ids, until)

    def ask(self, question: Tensor) -> Tensor:
        """Logits (vocabulary,) after the text and the question (tokens,), in double precision."""
        asked = question[None].to(self.model.device)
        with torch.inference_mode(), reading_text(self.questions + len(question)):
            if self.cache is None:
                logits: Tensor = self.model(input_ids=torch.cat([self.ids, asked], 1)).logits[0, -1]
            else:
                logits = self.model(input_ids=asked, past_key_values=self._copy(), use_cache=True).logits[0, -1]
        return self._finite(logits)

    def attended(self, question: Tensor) -> Answered:
        """Logits as of :meth:`ask`, and each layer's attention from the question's last token."""
        before = 0 if self.cache is None else self.ids.shape[1]
        seen = _Seen([self.ids.shape[1] - before + len(question)], before)
        with watch(self.model, seen):
            logits = self.ask(question)
        return Answered(logits, seen.rows(0))

    def ask_together(self, questions: Sequence[Tensor]) -> list[Tensor]:
        """Logits after each of several questions, asked in one pass in which none sees another.

        Each begins at the position after the text, which a mask and the positions tell the model. Not every model
        takes them: see :func:`takes_together`.
        """
        sizes = [len(each) for each in questions]
        ends = _ends(questions)
        device, dtype = self.model.device, self.model.dtype
        text, asked = self.ids.shape[1], int(ends[-1]) + 1
        own = torch.block_diag(*(torch.ones(size, size).tril() for size in sizes)).bool()
        visible = torch.cat([torch.ones(asked, text, dtype=torch.bool), own], 1)
        mask = torch.zeros(1, 1, asked, text + asked, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)
        takes = inspect.signature(self.model.forward).parameters
        kept: dict[str, Any] = {"logits_to_keep": ends.to(device)} if "logits_to_keep" in takes else {}
        with torch.inference_mode(), reading_text(asked):
            logits = self.model(
                input_ids=torch.cat(list(questions))[None].to(device),
                attention_mask=mask.to(device),
                position_ids=torch.cat([text + torch.arange(size) for size in sizes])[None].to(device),
                past_key_values=self._copy(),
                use_cache=True,
                **kept,
            ).logits[0]
        return [self._finite(each) for each in (logits if kept else logits[ends])]

    def attended_together(self, questions: Sequence[Tensor]) -> list[Answered]:
        """The same, with each layer's attention from each question's last token."""
        seen = _Seen([len(each) for each in questions], self.ids.shape[1])
        with watch(self.model, seen):
            logits = self.ask_together(questions)
        return [Answered(each, seen.rows(place)) for place, each in enumerate(logits)]

    def looked(self, questions: Sequence[Tensor], *, together: bool) -> list[list[LastRow]]:
        """What each layer attends to from each question's last token, up to the layer that the text was read to.

        Parameters
        ----------
        questions : (tokens,) each
        together : in one pass, for a model that :func:`takes_together`

        Returns
        -------
        The rows of each question, as :meth:`attended` has them. Who stops at the first run of a module does not know of
        further ones: a layer that is "shared.passes.0" there may be "shared" here.
        """
        together = together and self.cache is not None
        if self.until is None:
            every = self.attended_together(questions) if together else [self.attended(each) for each in questions]
            return [each.rows for each in every]
        found: list[list[LastRow]] = []
        for some in [questions] if together else [[each] for each in questions]:
            before = 0 if self.cache is None else self.ids.shape[1]
            sizes = [len(each) for each in some]
            seen = _Seen([self.ids.shape[1] + sizes[0]] if self.cache is None else sizes, before)
            with _stopping(self.model, self.until, seen):
                if together:
                    self.ask_together(some)
                else:
                    self.ask(some[0])
            found += [seen.rows(place) for place in range(len(some))]
        if not all(bool(row.weights.isfinite().all()) for rows in found for row in rows):
            raise self._broken("weights of attention")
        return found

    def _copy(self) -> Any:
        """The cache for one pass. What the pass adds could be cropped again, but not in a layer with a sliding window,
        which has dropped its oldest keys by then."""
        return copy.deepcopy(self.cache)

    def _finite(self, logits: Tensor) -> Tensor:
        if not bool(logits.isfinite().all()):
            raise self._broken("logits")
        return logits.double().cpu()

    def _broken(self, what: str) -> InvalidValue:
        return InvalidValue(
            f"{type(self.model).__name__} computes {what} that are not finite (NaN or infinity): its weights are "
            "broken, its dtype is too narrow, or what was done to its attention is."
        )


def _cache(model: PreTrainedModel, ids: Tensor) -> Any:
    """What the model remembers of a text (1, tokens); None if nothing, or if it is not what reading again gives.

    Keys and values are trusted. Recurrent layers are tried on the first tokens: some forget their state where more than
    one token follows.
    """

    def read(ids: Tensor) -> Any:
        return getattr(model.base_model(input_ids=ids, use_cache=True), "past_key_values", None)

    if (cache := read(ids)) is None or _holds_keys(cache):
        return cache
    begun, then = ids[:, : TRIED // 2], ids[:, TRIED // 2 : TRIED]
    if not then.shape[1]:
        return None
    with reading_text():
        again = model(input_ids=ids[:, :TRIED], use_cache=False).logits[0, -1]
        remembered = model(input_ids=then, past_key_values=read(begun), use_cache=True).logits[0, -1]
    return cache if _alike(remembered, again, _rounding(model)) else None


class _Enough(Exception):
    """The layer that was waited for has run."""


@contextmanager
def _stopping(model: PreTrainedModel, until: str, on_call: OnCall) -> Iterator[None]:
    """Give ``on_call`` every attention call up to that of layer ``until``, and end the pass there."""
    last = module_of(until)
    run = int(until.removeprefix(last).removeprefix(PASSES) or 0)

    def stop(call: WatchedCall) -> None:
        on_call(call)
        if call.run == Run(last, run):
            raise _Enough

    with suppress(_Enough), watch(model, stop):
        yield
        raise InvalidValue(f"{type(model).__name__} has no layer {until!r} whose attention can be watched.")


def _cache_until(model: PreTrainedModel, ids: Tensor, until: str) -> Any:
    """Keys and values of a text (1, tokens) in the layers up to ``until``; None if the cache holds anything else.

    A layer without keys below one that has some remembers in another place, as RecurrentGemma's recurrent layers do.
    """
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache(config=model.config)
    if not _holds_keys(cache):
        return None
    with _stopping(model, until, lambda call: None):
        model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
    layers: list[Any] = cache.layers
    filled = [bool(layer.is_initialized and layer.get_seq_length()) for layer in layers]
    return cache if filled[:1] == [True] and filled == sorted(filled, reverse=True) else None


def _holds_keys(cache: Any) -> bool:
    """Whether a cache holds the keys and values of attention, and nothing else."""
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    return type(cache) is DynamicCache and all(
        type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers
    )


def tensors_of(cache: Any) -> dict[str, Tensor]:
    """Keys and values of a text, layer by layer, to be kept; nothing if there is no cache that could be."""
    if cache is None or not _holds_keys(cache) or any(getattr(cache, "is_sliding", ())):
        return {}
    found: dict[str, Tensor] = {}
    for number, layer in enumerate(cache.layers):
        if layer.is_initialized:
            found[f"{number}.keys"], found[f"{number}.values"] = layer.keys, layer.values
    return found


def cache_of(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> Any:
    """A cache with these keys and values, as of :func:`tensors_of`; None if there are none."""
    from transformers.cache_utils import DynamicCache

    if not tensors:
        return None
    cache = DynamicCache(config=model.config)
    for number in sorted(int(name.removesuffix(".keys")) for name in tensors if name.endswith(".keys")):
        cache.update(tensors[f"{number}.keys"].to(model.device), tensors[f"{number}.values"].to(model.device), number)
    return cache


def _ends(questions: Sequence[Tensor]) -> Tensor:
    """Where each question ends, if they stand one after another."""
    return torch.tensor([len(each) for each in questions]).cumsum(0) - 1


def takes_together(read: ReadOnce, questions: Sequence[Tensor]) -> bool:
    """Whether a model answers questions together as it does one by one, with the same attention.

    It is tried: a model with recurrent layers or an attention function that knows no such mask answers otherwise, or
    fails. A model with sliding windows is not even tried, because a text that is shorter than they are would not tell,
    and the answer is to hold for longer ones.
    """
    if read.cache is None or any(getattr(read.cache, "is_sliding", ())):
        return False
    try:
        together = read.attended_together(questions)
    except Exception:  # whatever a model makes of a mask and positions that it does not expect
        return False
    alone, tokens, within = [read.attended(each) for each in questions], read.ids.shape[1], _rounding(read.model)
    return all(_same(one, other, tokens, within) for one, other in zip(together, alone, strict=True))


def _rounding(model: PreTrainedModel) -> float:
    """How much of logits and weights two ways to compute them may differ by."""
    return max(SAME, ROUNDINGS * torch.finfo(model.dtype).eps)


def _same(one: Answered, other: Answered, text: int, within: float) -> bool:
    """Whether two answers and their attention on the text agree to rounding."""
    if [row.layer for row in one.rows] != [row.layer for row in other.rows]:
        return False
    return _alike(one.logits, other.logits, within) and all(
        mine.first == theirs.first and torch.allclose(mine.on_each(text), theirs.on_each(text), rtol=0, atol=within)
        for mine, theirs in zip(one.rows, other.rows, strict=True)
    )


def _alike(one: Tensor, other: Tensor, within: float) -> bool:
    """Whether logits agree to rounding."""
    return bool((one - other).abs().max() < within * (float(other.abs().max()) + 1.0))


class _Seen:
    """Keeps the last row of each question in every attention call.

    Parameters
    ----------
    sizes : tokens of each question; they stand one after another
    before : tokens that were read before this pass
    """

    def __init__(self, sizes: Sequence[int], before: int) -> None:
        self.sizes, self.stops, self.before = sizes, list(accumulate(sizes)), before
        self.calls: dict[Run, tuple[Tensor, int]] = {}

    def __call__(self, call: WatchedCall) -> None:
        check_whole(call)
        if not call.is_repeat and not call.is_cross:
            last = [(stop - 1 - self.stops[-1]) % call.queries for stop in self.stops]
            rows = torch.tensor(last, device=call.query.device)
            first = call.keys - call.queries - self.before
            self.calls[call.run] = call.weights(0, rows).float().cpu(), first

    def rows(self, place: int) -> list[LastRow]:
        """What each layer attends to from the last token of one question; the keys of the others are left out."""
        stop = self.stops[place]
        start = stop - self.sizes[place]
        found = []
        for name, (weights, first) in zip(layer_names(self.calls), self.calls.values(), strict=True):
            text, row = first + self.before, weights[:, place]
            found.append(LastRow(name, torch.cat([row[:, :text], row[:, text + start : text + stop]], -1), first))
        return found
