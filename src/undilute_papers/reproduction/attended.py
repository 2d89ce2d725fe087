"""What did every head attend to, row by row?  Logits, visible keys and selected vectors, one layer at a time.

    model, ids = loaded("smollm2", (), 1024)
    each_layer(model, ids, lambda layer: print(layer.name, layer.weights.amax()))

The published experiments need whole attention matrices of every head. One forward pass gives them: each layer is handed
over as soon as it is computed and forgotten afterwards, so the memory is one layer's, and the model's own attention
function still makes its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.models import loading, texts
from undilute.models.forward_pass import evaluating, forward_pass
from undilute.models.limits import readable_length
from undilute.models.texts import SHORTEST_LENGTH, tokens
from undilute.models.watch import check_attended, watch
from undilute.models.watched_call import WatchedCall
from undilute.rules.parameters import count
from undilute.treatment.layers import first_calls

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

X = Literal["values", "input", "embedding"]
SELECTED_FROM = ("values", "input", "embedding")


@dataclass(frozen=True, eq=False)
class Layer:
    """What the heads of one layer attend to.

    Attributes
    ----------
    index : its place among the layers, in the order in which they ran
    name : its name in the model; of a module that runs several times in a pass, with the number of the run
    logits : (heads, rows, keys), float32 (float64 in a float64 model): scaled, capped and biased as the model uses
        them; −∞ where hidden
    visible : (rows, keys) or (heads, rows, keys) bool
    x : (heads, keys, features): what the weights select from; values that heads share are repeated
    rows : (rows,): positions of the rows
    groups : how many heads in a row share their vectors: heads g·groups to (g+1)·groups − 1 have the same x
    scale : what the model multiplies q·k by
    """

    index: int
    name: str
    logits: Tensor
    visible: Tensor
    x: Tensor
    rows: Tensor
    groups: int = 1
    scale: float = 1.0

    @property
    def weights(self) -> Tensor:
        """(heads, rows, keys): softmax over the visible keys; a learned sink that is no key is left out."""
        return self.logits.softmax(-1)

    @property
    def seen(self) -> Tensor:
        """(heads, rows): how many keys each row sees; with a sliding window never more than its width."""
        return self.visible.expand(self.logits.shape).sum(-1)


def each_layer(
    model: PreTrainedModel,
    ids: Tensor,
    use: Callable[[Layer], None],
    *,
    x: X = "values",
    rows: Tensor | None = None,
) -> None:
    """Run the model once over the tokens, without its language-model head, and hand every attention layer to ``use``.

    Parameters
    ----------
    model : a Hugging Face model whose attention goes through ``AttentionInterface``
    ids : (tokens,)
    use : called with each layer while the model runs, in order; nothing of the layer is kept
    x : what the weights select from: the layer's "values", its "input" (the hidden states that its attention is
        given), or the "embedding" of the tokens
    rows : (rows,), positions of the rows to hand over; all by default

    Examples
    --------
    >>> import torch, transformers
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50)
    >>> model = transformers.GPT2LMHeadModel(config)
    >>> each_layer(model, torch.arange(40), lambda layer: print(layer.name, tuple(layer.weights.shape)))
    transformer.h.0.attn (4, 40, 40)
    transformer.h.1.attn (4, 40, 40)
    """
    selected_from(x, "x")
    if ids.ndim != 1 or not len(ids):
        raise InvalidValue(f"ids has shape {tuple(ids.shape)}: must be one sequence of token ids, (tokens,).")
    recorder = _Recorder(model, use, x, _positions(rows, len(ids)))
    with torch.no_grad(), evaluating(model), watch(model, recorder.keep):
        if x == "embedding":
            recorder.embeddings = model.get_input_embeddings()(ids.to(model.device))
        forward_pass(model, ids)
    check_attended(model, recorder.layers)


def selected_from(x: str, name: str = "--x") -> X:
    """``x`` if it is something to select from; ``name`` is what an error calls it."""
    if x not in SELECTED_FROM:
        known = f"{', '.join(map(repr, SELECTED_FROM[:-1]))} or {SELECTED_FROM[-1]!r}"
        raise InvalidValue(f"{name} = {x!r}: must be {known}.")
    return cast(X, x)


def loaded(
    model: str, text: str | Sequence[str], length: int, option: str = "--length"
) -> tuple[PreTrainedModel, Tensor]:
    """A model by name, and the first ``length`` token ids of some text files.

    Parameters
    ----------
    model : a name, path or hub id, see :func:`undilute.models.load`; the last one loaded is kept for the next call
    text : a path or several; the text that CPython ships if there are none
    length : tokens to read, at least 64; a shorter text, or a model that reads fewer, is an error
    option : where the length comes from, for that error

    Returns
    -------
    model, ids (length,)
    """
    if count(option, length) < SHORTEST_LENGTH:
        raise InvalidValue(f"{option} = {length}: at least {SHORTEST_LENGTH} tokens must be read.")
    paths = [text] if isinstance(text, str) else text
    words = texts.read([Path(path).expanduser() for path in paths])
    network, tokenizer = _named(model)
    return network, tokens(tokenizer, words, network, readable_length(network, length, name=option))


@lru_cache(maxsize=1)
def _named(model: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return loading.load(model)


def scope(model: str, text: Sequence[str], length: int) -> str:
    """What a finding was found on, to begin its sentence with.

    Parameters
    ----------
    model, text, length : as in :func:`loaded`

    Examples
    --------
    >>> scope("smollm2", (), 1024)
    'smollm2 on 1,024 tokens of the text that CPython ships'
    >>> scope("gpt2", ("books/war_and_peace.txt",), 512)
    'gpt2 on 512 tokens of war_and_peace.txt'
    """
    files = ", ".join(Path(path).name for path in text) or "the text that CPython ships"
    return f"{model} on {length:,} tokens of {files}"


def evenly(length: int, rows: int) -> Tensor:
    """Positions of ``rows`` rows evenly spaced over ``length`` tokens, the last one included; all if 0 or too many.

    Examples
    --------
    >>> evenly(16, 4)
    tensor([ 3,  7, 11, 15])
    """
    if rows < 0:
        raise InvalidValue(f"--rows = {rows}: must be a number of rows, or 0 for all of them.")
    if rows == 0 or rows >= length:
        return torch.arange(length)
    return torch.arange(1, rows + 1) * length // rows - 1


def layer_count(model: PreTrainedModel) -> int:
    """How many layers a model says it has: for progress only."""
    config = model.config.get_text_config()
    return int(getattr(config, "num_hidden_layers", None) or 1)


def blocks(layer: Layer, logits: int) -> Iterator[Layer]:
    """The layer a few rows at a time, about ``logits`` of them, without the keys that none of these rows sees."""
    heads, rows, keys = layer.logits.shape
    seen = (layer.visible * torch.arange(1, keys + 1)).amax(-1)
    stops: list[int] = (seen.amax(0) if seen.ndim == 2 else seen).clamp(min=min(2, keys)).tolist()
    start = 0
    for end in range(1, rows + 1):
        if end == rows or heads * (end + 1 - start) * max(stops[start : end + 1]) > logits:
            last, of = max(stops[start:end]), slice(start, end)
            yield replace(
                layer,
                logits=layer.logits[:, of, :last],
                visible=layer.visible[..., of, :last],
                x=layer.x[:, :last],
                rows=layer.rows[of],
            )
            start = end


def _positions(rows: Tensor | None, length: int) -> Tensor:
    if rows is None:
        return torch.arange(length)
    if rows.ndim != 1 or rows.dtype != torch.int64 or not len(rows):
        raise InvalidValue(
            f"rows has shape {tuple(rows.shape)} and dtype {rows.dtype}: must be positions, (rows,) of torch.int64."
        )
    if not 0 <= int(rows.min()) <= int(rows.max()) < length:
        raise InvalidValue(
            f"rows go from {int(rows.min())} to {int(rows.max())}: must be positions of the {length:,} tokens, "
            f"0 to {length - 1:,}."
        )
    return rows


class _Recorder:
    """Turns the attention calls of one pass into layers."""

    def __init__(self, model: PreTrainedModel, use: Callable[[Layer], None], x: X, rows: Tensor) -> None:
        self.model, self.use, self.x, self.rows = model, use, x, rows
        self.names = list(first_calls(model))
        self.embeddings: Tensor | None = None
        self.layers = 0

    def keep(self, call: WatchedCall) -> None:
        if not call.is_repeat:
            self.use(self._layer(call))
            self.layers += 1

    def _layer(self, call: WatchedCall) -> Layer:
        rows = self.rows.to(call.query.device)
        visible = call.visible(0, rows)
        if visible is None:
            visible = torch.ones(len(rows), call.keys, dtype=torch.bool, device=rows.device)
        logits = call.logits(0, rows).masked_fill_(~visible, -torch.inf)
        name = self.names[self.layers]
        vectors = self._selected_from(call)
        heads = logits.shape[0]
        x = vectors.repeat_interleave(heads // len(vectors), 0) if len(vectors) > 1 else vectors.expand(heads, -1, -1)
        return Layer(self.layers, name, logits, visible, x, rows, heads // len(vectors), call.scale)

    def _selected_from(self, call: WatchedCall) -> Tensor:
        """(key heads, keys, features), with one key head for vectors that all heads share."""
        if self.x == "values":
            return call.full(call.value[0][:, : call.keys])
        vectors = self.embeddings
        if self.x == "input":
            vectors = None if call.input is None else call.input[0]
        if vectors is None or vectors.shape[0] < call.keys:
            raise InvalidValue(
                f"x = {self.x!r}: {type(call.module).__name__} attends to {call.keys:,} keys that are not the tokens "
                "of its input; use x = 'values'."
            )
        return call.full(vectors[: call.keys].detach())[None]
