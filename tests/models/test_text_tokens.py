"""Windows are apart, within the text, and begin as the tokenizer begins a text."""

from __future__ import annotations

import pytest
import torch

from tests.evaluation.tokenizers import KINDS_OF_TOKENIZERS, PROSE, tokenizer
from undilute.errors import InvalidValue
from undilute.models.texts import beginning, halves, tokenised, windows


@pytest.mark.parametrize("start", [(), (7,), (7, 8)])
def test_windows_are_apart_and_within_the_text(start: tuple[int, ...]) -> None:
    cut = windows(torch.arange(100), 30 + len(start), 3, "it", start=start)
    assert cut.shape == (3, 30 + len(start))
    assert cut[:, : len(start)].tolist() == [list(start)] * 3
    text = cut[:, len(start) :]
    assert text[0, 0] == 0
    assert text[-1, -1] == 99
    assert (text[1:, 0] > text[:-1, -1]).all()
    assert windows(torch.arange(70), 30 + len(start), 5, "it", start=start).shape == (2, 30 + len(start))


def test_windows_that_cannot_be_cut_are_named() -> None:
    with pytest.raises(InvalidValue, match="it has 28 tokens: must have at least 29"):
        windows(torch.arange(28), 30, 3, "it", start=(7,))
    with pytest.raises(InvalidValue, match="length = 2: must be more than the 2 tokens that start every window"):
        windows(torch.arange(28), 2, 3, "it", start=(7, 8))


@pytest.mark.parametrize("kind", KINDS_OF_TOKENIZERS)
def test_a_text_is_its_beginning_and_its_tokens(kind: str) -> None:
    used = tokenizer(kind)
    ids, start = tokenised(used, PROSE), list(beginning(used))
    assert [*start, *ids.tolist()] == used(PROSE)["input_ids"][: len(start) + len(ids)]
    assert (len(start) == 1) == (kind == "marked")
    assert ids.dtype == torch.int64
    assert torch.equal(torch.cat(halves(ids)), ids)


@pytest.mark.parametrize("kind", KINDS_OF_TOKENIZERS)
def test_a_byte_order_mark_has_no_tokens(kind: str) -> None:
    used = tokenizer(kind)
    assert torch.equal(tokenised(used, "\ufeff" + PROSE[:500]), tokenised(used, PROSE[:500]))


def test_a_text_that_is_none_is_called_by_its_name() -> None:
    with pytest.raises(InvalidValue, match=r"^text is a int: must be text, or token ids in a tensor\."):
        tokenised(None, 3)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match=r"^text 2 is a int"):
        tokenised(None, 3, "text 2")  # type: ignore[arg-type]


def test_without_a_tokenizer_token_ids_are_what_is_read() -> None:
    assert beginning(None) == ()
    assert torch.equal(tokenised(None, torch.arange(3)), torch.arange(3))
    with pytest.raises(InvalidValue, match="tokenizer = None"):
        tokenised(None, "words")
