"""A model gets text that can be read and tokens that it knows, or a clear error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.attending import VOCABULARY, random_model
from undilute.errors import InvalidValue
from undilute.models.texts import known_tokens, read


@pytest.mark.parametrize(
    "ids", [torch.tensor([0, VOCABULARY - 1]), torch.arange(3, dtype=torch.int32), torch.arange(0)]
)
def test_known_tokens_are_left_as_they_are(ids: torch.Tensor) -> None:
    assert known_tokens(ids, random_model("llama")) is ids


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([3, VOCABULARY]), f"token ids from 3 to {VOCABULARY}: LlamaForCausalLM knows 0 to 59"),
        (torch.tensor([-1, 3]), "token ids from -1 to 3"),
        (torch.zeros(2, 3, dtype=torch.int64), r"text has shape \(2, 3\) and dtype torch.int64"),
        (torch.zeros(3), "one sequence of whole numbers"),
        (torch.zeros(3, dtype=torch.bool), "one sequence of whole numbers"),
    ],
)
def test_other_tokens_are_named(ids: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        known_tokens(ids, random_model("llama"))


def test_files_are_read_one_after_another(tmp_path: Path) -> None:
    one, other, empty = (tmp_path / name for name in ("one.txt", "other.txt", "empty.txt"))
    one.write_text("first", encoding="utf-8")
    other.write_bytes(b"\xff")
    empty.write_text(" ", encoding="utf-8")
    assert read([one, one]) == "first\n\nfirst"
    for path, message in (
        (other, "is not text in UTF-8"),
        (empty, "no text in it"),
        (tmp_path / "none", "cannot"),
    ):
        with pytest.raises(InvalidValue, match=message):
            read([path])
