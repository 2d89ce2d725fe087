"""embedding: passages whose meaning is near to that of the question, as a text encoder sees it.

A text's embedding is the mean of the encoder's last hidden states over its tokens, normalised; the score is the largest
cosine of the question's with that of the passage or of one of its sentences. The default encoder is all-MiniLM-L6-v2,
which installs with pip (``undilute.models.load``).

Reimers and Gurevych (2019), Sentence-BERT: sentence embeddings using siamese BERT-networks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.evaluation.haystacks import sentences
from undilute.models.fingerprint import of_model
from undilute.models.forward_pass import evaluating
from undilute.models.limits import maximum_length
from undilute.models.loading import load
from undilute.models.texts import beginning, encoded, ending
from undilute.progress import Progress, quiet
from undilute.selection.keeping import Kept
from undilute.selection.passages import Passage
from undilute.selection.scorers import Scores, Subject, scorer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DEFAULT = "minilm"
TOGETHER = 4096  # tokens of a batch, with padding


@scorer("embedding")
@scorer("minilm")
def embedding(subject: Subject, name: str = DEFAULT) -> Embedding:
    return Embedding(name)


def parts(text: str) -> list[str]:
    """What is compared with a question: the whole passage, and each of its sentences if there are several.

    The mean over a passage drowns the one sentence that matters: with MiniLM, 47 % of passages were kept that answer a
    question in other words, and 94 % if the best sentence counts (docs/select.md).

    Examples
    --------
    >>> parts("It rained. Zoe works as a physician.")
    ['It rained. Zoe works as a physician.', 'It rained.', 'Zoe works as a physician.']
    >>> parts("It rained.")
    ['It rained.']
    """
    found = [each.strip() for each in sentences(text) if each.strip()]
    return [text, *found] if len(found) > 1 else [text]


class Embedding:
    """An encoder as a scorer: the largest cosine of the question with a passage or a sentence of it.

    A text that is longer than what the encoder reads is read in windows of about the same length; its embedding is the
    mean over the tokens of all of them.

    Parameters
    ----------
    encoder : a name that ``undilute.models.load`` takes, or a model and its tokenizer
    """

    def __init__(self, encoder: str | tuple[PreTrainedModel, PreTrainedTokenizerBase] = DEFAULT) -> None:
        self.model, self.tokenizer = _loaded(encoder) if isinstance(encoder, str) else encoder
        self.label = f"embedding:{encoder}" if isinstance(encoder, str) and encoder != DEFAULT else "embedding"
        self._around = list(beginning(self.tokenizer)), list(ending(self.tokenizer))
        self._name: str | None = None

    def scores(
        self, questions: Sequence[str], passages: Sequence[Passage], kept: Kept, on_progress: Progress
    ) -> list[Scores]:
        self._name = None  # the encoder may have been trained since it was last asked
        compared = [parts(each.text) for each in passages]
        texts = [text for each in compared for text in each]
        own = kept.tensors(self._key(texts), lambda: self.embeddings(texts, on_progress))
        asked = self.embeddings(questions)["embeddings"]
        alike = (asked @ own["embeddings"].T).double().numpy()  # (questions, parts)
        first = np.cumsum([0, *map(len, compared[:-1])])
        values = np.maximum.reduceat(alike, first, axis=1)  # (questions, passages)
        return [Scores(each, read=int(own["tokens"])) for each in values]

    def embeddings(self, texts: Sequence[str], on_progress: Progress = quiet) -> dict[str, Tensor]:
        """``embeddings``, (texts, hidden), each of norm 1 (or 0 if a text has no tokens); ``tokens`` that were read."""
        windows = [(place, ids) for place, text in enumerate(texts) for ids in self._windows(text)]
        sums = torch.zeros(len(texts), self.model.config.get_text_config().hidden_size)
        done = 0
        with torch.inference_mode(), evaluating(self.model):
            for batch in _batches(windows):
                on_progress(done / len(windows), f"reading, passage {done + 1:,} of {len(windows):,}")
                places = torch.tensor([place for place, _ in batch])
                sums.index_add_(0, places, self._sums([ids for _, ids in batch]))
                done += len(batch)
        tokens = sum(len(ids) for _, ids in windows)
        return {"embeddings": torch.nn.functional.normalize(sums, dim=-1), "tokens": torch.tensor(tokens)}

    def _windows(self, text: str) -> Iterator[list[int]]:
        """The text's tokens with those that the tokenizer puts around a text, in as few windows as they fit into."""
        before, after = self._around
        ids = encoded(self.tokenizer, text)
        room = self._limit() - len(before) - len(after)
        number = -(-len(ids) // room)
        for place in range(number):
            yield before + ids[len(ids) * place // number : len(ids) * (place + 1) // number] + after

    def _limit(self) -> int:
        limits = [each for each in (maximum_length(self.model), self.tokenizer.model_max_length) if each]
        limit = int(min([TOGETHER, *limits]))
        if limit <= sum(map(len, self._around)):
            raise InvalidValue(f"the encoder reads {limit} tokens at most: must be able to read a word.")
        return limit

    def _sums(self, windows: Sequence[list[int]]) -> Tensor:
        """(windows, hidden): the sum of the last hidden states over the tokens of each window."""
        longest = max(map(len, windows))
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([each + [pad] * (longest - len(each)) for each in windows])
        seen = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in windows])
        device = self.model.device
        output: Any = self.model.base_model(input_ids=ids.to(device), attention_mask=seen.to(device))
        hidden: Tensor = output[0].float().cpu()
        return torch.einsum("wth,wt->wh", hidden, seen.float())

    def _key(self, texts: Sequence[str]) -> str:
        """All that the embeddings depend on."""
        if self._name is None:
            self._name = of_model(self.model, self.tokenizer)
        made = hashlib.sha256(f"embedding {self._name} {self._limit()}".encode())
        for text in texts:
            made.update(hashlib.sha256(text.encode()).digest())
        return made.hexdigest()


def _batches(windows: Sequence[tuple[int, list[int]]]) -> Iterator[list[tuple[int, list[int]]]]:
    """Windows of about the same length together, the longest first."""
    batch: list[tuple[int, list[int]]] = []
    for each in sorted(windows, key=lambda window: -len(window[1])):
        if batch and len(batch[0][1]) * (len(batch) + 1) > TOGETHER:
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch


@lru_cache(maxsize=1)
def _loaded(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return load(name)
