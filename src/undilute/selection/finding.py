"""Which heads find what is asked for, and how long a text can they be given?  Found once for each model.

The probe of a diagnosis hides facts in three texts that CPython ships, and asks for them. It gives the heads, and what
attention they have left for a fact as the text grows. A group of passages is as long as they keep half of it, and never
longer than what was measured.

What was found is kept in the cache folder under the fingerprint of the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from undilute import files
from undilute.diagnosis.kinds import is_found
from undilute.diagnosis.probe import Plan, Probe, planned, probe
from undilute.diagnosis.retrieval import of_all, of_each
from undilute.diagnosis.windows import Text
from undilute.errors import InvalidValue
from undilute.models import cache, texts
from undilute.models.fingerprint import of_model
from undilute.models.forward_pass import evaluating, first_pass
from undilute.models.limits import readable_length
from undilute.models.text_loss import check_head
from undilute.models.texts import known_tokens
from undilute.models.watch import check_attended, check_supported, watch
from undilute.progress import Progress, quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from undilute.diagnosis import Diagnosis

MOST = 8  # heads that choose
LENGTH = 1024  # tokens of the longest haystack
HALF = 0.5  # of its attention at the shortest length that a fact must keep
TRIED = 16  # tokens that show whether a model attends, and to what
FORMAT = 1


@dataclass(frozen=True)
class RetrievalHeads:
    """Heads that find what is asked for.

    Attributes
    ----------
    heads : (name of the layer, number of the head), best first
    until : the name of the deepest of these layers
    group : tokens of a text that they can be given
    alpha : tokens → their mean attention on a fact that is asked for
    """

    heads: tuple[tuple[str, int], ...]
    until: str
    group: int
    alpha: Mapping[int, float]

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> RetrievalHeads:
        """Those of a diagnosis, which may have asked at greater lengths or in other texts."""
        if diagnosis.probe is None:
            raise InvalidValue(
                "the diagnosis was made without a probe: it knows no retrieval heads; diagnose with one."
            )
        return _found(diagnosis.probe)

    def to_json(self) -> str:
        """As text."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> RetrievalHeads:
        """The same from text; a ValueError, KeyError or TypeError if it is something else."""
        data = json.loads(text)
        if data.pop("format") != FORMAT:
            raise ValueError("another format")
        heads = tuple((str(layer), int(head)) for layer, head in data["heads"])
        alpha = {int(length): float(value) for length, value in data["alpha"].items()}
        found = cls(heads, str(data["until"]), int(data["group"]), alpha)
        if not alpha or found.group < 1 or found.until not in layers_in(heads):
            raise ValueError("not what was found")
        return found


def retrieval_heads(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    keep: bool = True,
    on_progress: Progress | None = None,
) -> RetrievalHeads:
    """The heads of a model that find what is asked for; looked up if they were found before.

    Parameters
    ----------
    model : a causal Hugging Face language model
    tokenizer : its tokenizer
    keep : write what was found to the cache folder, and look there first
    on_progress : called with (share done, what is being done)
    """
    check_supported(model)
    file = _file(model, tokenizer) if keep else None
    if file is not None and (known := _read(file)) is not None:
        return known
    made = [
        Text(name, texts.tokenised(tokenizer, prose), tokenizer, False) for name, prose in texts.shipped_texts().items()
    ]
    _check_can_be_asked(model, made[0].ids)
    found = _found(probe(model, tokenizer, made, _plan(model, tokenizer), on_progress=on_progress or quiet))
    if file is not None:
        _write(file, found)
    return found


def _check_can_be_asked(model: PreTrainedModel, ids: Tensor) -> None:
    """Raise unless it is a causal language model that attends and knows the tokenizer's tokens."""
    check_head(model)
    known_tokens(ids, model, "a text")
    ahead: list[bool] = []
    with torch.inference_mode(), evaluating(model), watch(model, lambda call: ahead.append(call.looks_ahead)):
        first_pass(model, ids[:TRIED])
    check_attended(model, len(ahead))
    if any(ahead):
        raise InvalidValue(
            f"{type(model).__name__} looks at later tokens, as an encoder does: its heads are found by asking it to go "
            "on, so it must be a causal language model, such as LlamaForCausalLM."
        )


def _plan(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Plan:
    length = min(LENGTH, readable_length(model))
    try:
        return planned(tokenizer, length)
    except InvalidValue:
        raise InvalidValue(
            f"{type(model).__name__} reads at most {length:,} tokens: too few to hide facts at two lengths and ask for "
            "them, so its retrieval heads cannot be found; use another scorer, such as bm25."
        ) from None


def _found(asked: Probe) -> RetrievalHeads:
    each = of_each(asked)
    good = [place for place, own in enumerate(each) if is_found(*own.score)]
    best = sorted(good, key=lambda place: -each[place].score.value)[:MOST]
    if not best:
        raise InvalidValue(
            "no head of this model finds what is asked for, so none can choose: use another scorer, such as bm25."
        )
    order = list(dict.fromkeys(asked.layers))
    alpha = {length: one.value for length, one in of_all(asked, np.array(best)).alpha.items()}
    return RetrievalHeads(
        heads=tuple((asked.layers[place], int(asked.heads[place])) for place in best),
        until=max((asked.layers[place] for place in best), key=order.index),
        group=group_length(alpha),
        alpha=alpha,
    )


def group_length(alpha: Mapping[int, float]) -> int:
    """The longest measured length up to which attention on a fact keeps half of what it is at the shortest.

    Between two measured lengths it is where a straight line of log α* over log n falls below half.

    Examples
    --------
    >>> group_length({128: 0.4, 256: 0.4, 512: 0.3, 1024: 0.25})
    1024
    >>> group_length({128: 0.4, 256: 0.4, 512: 0.1, 1024: 0.05})
    362
    """
    lengths = sorted(alpha)
    enough = HALF * alpha[lengths[0]]
    for before, after in pairwise(lengths):
        if alpha[after] < enough:
            down = np.log(max(alpha[after], 1e-9) / alpha[before])
            share = float(np.log(enough / alpha[before]) / down)
            return int(before * (after / before) ** share)
    return lengths[-1]


def _file(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Path:
    return cache.directory() / "retrieval-heads" / f"{of_model(model, tokenizer)[:32]}.json"


def _read(file: Path) -> RetrievalHeads | None:
    try:
        return RetrievalHeads.from_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(file: Path, found: RetrievalHeads) -> None:
    """Keep it, if the folder lets us: it can be found again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write(file, found.to_json())
    except (OSError, InvalidValue):
        return


def layers_in(heads: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    """Layer → its heads among these.

    Examples
    --------
    >>> layers_in([("a", 3), ("b", 0), ("a", 1)])
    {'a': [3, 1], 'b': [0]}
    """
    found: dict[str, list[int]] = {}
    for layer, head in heads:
        found.setdefault(layer, []).append(head)
    return found
