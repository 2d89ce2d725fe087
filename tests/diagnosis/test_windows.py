"""Windows lie apart in the middle of equal parts of a text, and never in the part that is kept apart."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests.evaluation.tokenizers import PROSE, tokenizer
from tests.models.attending import SIZES, VOCABULARY, random_model
from undilute.diagnosis.windows import Text, Window, given_texts, joined, length_of, split, spread
from undilute.errors import InvalidValue
from undilute.models.texts import encoded

MARKED, PLAIN = tokenizer("marked"), tokenizer("byte-level")


def reader(used: Any = MARKED) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES | {"vocab_size": len(used)})).eval()


def text(tokens: int, kind: str) -> Text:
    """Token ids that say where they stand; with marks around every window, or none."""
    return Text("text", torch.arange(1000, 1000 + tokens), MARKED if kind == "marked" else None, kind == "given")


KINDS = st.sampled_from(["marked", "given"])


@given(KINDS, st.integers(1, 400), st.integers(3, 120), st.integers(1, 12))
def test_windows_are_apart_inside_and_in_the_middle(kind: str, tokens: int, length: int, number: int) -> None:
    whole = text(tokens, kind)
    own = length - (2 if kind == "marked" else 0)
    found = spread(whole, 7, length, number)
    assert len(found) == min(number, tokens // own)
    stop = 0
    for place, window in enumerate(found):
        assert stop <= window.start
        stop = window.start + own
        assert stop <= tokens
        middle, part = window.start + own / 2, tokens / len(found)
        assert abs(middle - (place + 0.5) * part) <= 1
        check(window, whole, own)
    apart = [window.start - other.start for other, window in pairwise(found)]
    assert not apart or max(apart) - min(apart) <= 1


def check(window: Window, whole: Text, own: int) -> None:
    """That it holds the text's tokens, and what belongs around them."""
    assert window.text == 7
    inside = whole.ids[window.start : window.start + own]
    before, after = whole.around
    assert window.ids.tolist() == [*before, *inside.tolist(), *after]
    assert window.ids.dtype == whole.ids.dtype


@given(KINDS, st.integers(1, 600), st.integers(3, 120), st.integers(1, 5))
def test_what_is_kept_apart_is_never_read(kind: str, tokens: int, length: int, number: int) -> None:
    whole = text(tokens, kind)
    own, apart = split(whole, length)
    needed = whole.needs(length)
    if apart is None:
        assert own is whole
        assert tokens // 3 < needed
        return
    assert torch.equal(torch.cat([own.ids, apart.ids]), whole.ids)
    assert len(apart.ids) == tokens // 3 >= needed
    read = torch.cat([window.ids for window in spread(own, 0, length, number)])
    held = spread(apart, 0, length, 1)[0].ids
    marks = {mark for side in whole.around for mark in side}
    assert not set(read.tolist()) & set(held.tolist()) - marks
    assert (own.name, apart.name, apart.tokenizer, apart.is_given) == ("text", "text", whole.tokenizer, whole.is_given)


def test_windows_begin_and_end_as_the_tokenizer_does() -> None:
    """[CLS] … [SEP], as an encoder reads; and only the first of two texts has them if the other is token ids."""
    ids = torch.tensor(encoded(MARKED, PROSE[:2000]))
    one, other = given_texts([PROSE[:2000], ids], MARKED, reader())
    start, end = (MARKED.convert_tokens_to_ids(mark) for mark in ("<s>", "</s>"))
    assert (one.around, other.around) == (((start,), (end,)), ((), ()))
    assert torch.equal(one.ids, ids)
    assert other.ids is ids or torch.equal(other.ids, ids)
    assert (one.needs(64), other.needs(64)) == (62, 64)
    for window in spread(one, 0, 64, 3):
        assert len(window.ids) == 64
        assert [window.ids[0], window.ids[-1]] == [start, end]
        assert torch.equal(window.ids[1:-1], ids[window.start : window.start + 62])
    assert torch.equal(spread(other, 1, 64, 1)[0].ids, ids[(place := len(ids) // 2 - 32) : place + 64])
    assert one.prose() == MARKED.decode(ids.tolist())


def test_the_number_of_windows_is_checked() -> None:
    for number in (0, -1, 1.5):
        with pytest.raises(InvalidValue, match="windows = "):
            spread(text(100, "given"), 0, 10, number)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the texts that are given


def named(texts: list[Text]) -> dict[str, list[int]]:
    return {each.name: each.ids.tolist() for each in texts}


def test_texts_are_given_in_any_form() -> None:
    model, ids = reader(PLAIN), torch.tensor([5, 6, 7])
    words = encoded(PLAIN, "It is so.")
    assert named(given_texts("It is so.", PLAIN, model)) == {"text": words}
    assert named(given_texts(ids, None, model)) == {"text": [5, 6, 7]}
    assert named(given_texts(["It is so.", ids], PLAIN, model)) == {"text 1": words, "text 2": [5, 6, 7]}
    assert named(given_texts((ids, ids), None, model)) == {"text 1": [5, 6, 7], "text 2": [5, 6, 7]}
    assert named(given_texts({"a.txt": ids, 3: "It is so."}, PLAIN, model)) == {"a.txt": [5, 6, 7], "3": words}  # type: ignore[dict-item]
    assert [each.is_given for each in given_texts(["It is so.", ids], PLAIN, model)] == [False, True]


def test_an_offset_leaves_out_the_first_tokens_of_every_text() -> None:
    model, ids = reader(PLAIN), torch.arange(50)
    assert named(given_texts([ids, ids + 10], None, model, 3)) == {
        "text 1": list(range(3, 50)),
        "text 2": list(range(13, 60)),
    }
    assert named(given_texts(PROSE[:100], PLAIN, model, 4)) == {"text": encoded(PLAIN, PROSE[:100])[4:]}
    assert len(given_texts(ids, None, model, 49)[0].ids) == 1
    with pytest.raises(InvalidValue, match="offset = 50: must be less than the 50 tokens of text 2"):
        given_texts([torch.arange(51), ids], None, model, 50)
    with pytest.raises(InvalidValue, match="offset = 60: must be less than the 50 tokens of the text"):
        given_texts(ids, None, model, 60)
    for offset in (-1, 0.5):
        with pytest.raises(InvalidValue, match="offset = "):
            given_texts(ids, None, model, offset)  # type: ignore[arg-type]


def test_a_byte_order_mark_changes_no_window() -> None:
    model = reader()
    with_mark, without = given_texts(["\ufeff" + PROSE[:900], PROSE[:900]], MARKED, model)
    assert torch.equal(with_mark.ids, without.ids)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("", "the text is empty: give some text to read"),
        (["It is so.", " \n"], "text 2 is empty"),
        ({"a.txt": "\ufeff"}, r"a\.txt is empty"),
        ([], "texts holds no text: give at least one"),
        ({}, "texts holds no text"),
        (None, "text is a NoneType: must be text, token ids in a tensor, or a list or dict of them"),
        (b"bytes", "text is a bytes: must be text"),
        (3, "text is a int"),
        ([5, 6, 7], "text 1 is a int: must be text, or token ids in a tensor"),
        ({"a.txt": None}, r"a\.txt is a NoneType: must be text"),
        ({"a.txt": torch.arange(3), "b.txt": torch.tensor([9999])}, r"^b\.txt holds token ids from 9999 to 9999"),
        ([torch.arange(3), torch.zeros(2, 2, dtype=torch.int64)], r"^text 2 has shape \(2, 2\)"),
        (torch.zeros(3), r"^text has shape \(3,\) and dtype torch.float32"),
    ],
)
def test_texts_that_are_none_are_named(texts: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        given_texts(texts, MARKED, reader())


def test_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(InvalidValue, match="tokenizer = None: it is needed to read text"):
        given_texts(["It is so."], None, reader())


# ---------------------------------------------------------------- how long a window is


def ids(*sizes: int) -> list[Text]:
    return [Text(f"text {place}", torch.zeros(size, dtype=torch.int64), None, True) for place, size in enumerate(sizes)]


def marked(size: int) -> Text:
    return Text("text", torch.zeros(size, dtype=torch.int64), MARKED, False)


def test_the_length_is_what_is_wanted_and_all_have() -> None:
    model = random_model("llama")  # reads 128 tokens
    assert length_of(ids(500, 300), model, None, usual=100) == 100
    assert length_of(ids(500, 300), model, None, usual=1024) == 128
    assert length_of(ids(500, 90, 110), model, None, usual=1024) == 90
    assert length_of(ids(500, 100), model, 100, usual=80) == 100
    assert length_of([marked(70)], model, None, usual=1024) == 72  # with the two marks
    assert length_of([marked(98)], model, 100, usual=1024) == 100
    assert length_of([marked(62)], model, None, usual=1024) == 64
    assert length_of([marked(80), *ids(81)], model, None, usual=1024) == 81


@pytest.mark.parametrize(
    ("given", "length", "message"),
    [
        (ids(500, 99), 100, "text 1 has 99 tokens: must be at least 100; give a longer text or a smaller length"),
        (ids(63, 500), None, r"text 0 has 63 tokens: must be at least 64; give a longer text\."),
        ([marked(97)], 100, "the text has 97 tokens: must be at least 98"),
        ([marked(61)], None, "the text has 61 tokens: must be at least 62"),
        (ids(500), 63, "length = 63: must be at least 64 tokens, or there is no curve to fit"),
        (ids(500), 0, "length = 0"),
        (ids(500), 129, "length = 129: LlamaForCausalLM reads at most 128 tokens"),
    ],
)
def test_lengths_that_cannot_be_are_named(given: list[Text], length: int | None, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        length_of(given, random_model("llama"), length, usual=1024)


@given(KINDS, st.integers(64, 1000), st.integers(1, 5))
def test_a_text_that_is_long_enough_has_a_window(kind: str, tokens: int, number: int) -> None:
    whole = text(tokens, kind)
    length = length_of([whole], random_model("llama"), None, usual=VOCABULARY + 40)
    own, apart = split(whole, length)
    assert spread(own, 0, length, number)
    assert apart is None or spread(apart, 0, length, 1)


def test_windows_lie_where_the_text_lies() -> None:
    """On the device of the token ids, here one without memory."""
    given = Text("text", torch.zeros(300, dtype=torch.int64, device="meta"), MARKED, False)
    windows: list[Tensor] = [window.ids for window in spread(given, 0, 64, 2)]
    assert [window.device.type for window in windows] == ["meta", "meta"]


def test_short_texts_are_read_one_after_another() -> None:
    model, sizes = random_model("gpt2"), {"a": 30, "long": 300, "b": 40, "c": 60, "d": 5}
    ids = {name: torch.full((size,), place) for place, (name, size) in enumerate(sizes.items())}
    given = given_texts(ids, None, model)
    made = joined(given, model, 100, 1024)
    assert [(text.name, len(text.ids)) for text in made] == [("long", 300), ("a and 3 more", 135)]
    assert made[1].ids.tolist() == [0] * 30 + [2] * 40 + [3] * 60 + [4] * 5
    assert [text.name for text in joined(given[1:2], model, None, 1024)] == ["long"]
    (everything,) = joined(given, model, 1000, 1024)
    assert len(everything.ids) == sum(sizes.values())
    assert sum(len(text.ids) for text in joined([given[1], given[4]], model, 100, 1024)) == 305
