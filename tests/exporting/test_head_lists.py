"""Each list read back the way the tool that it is for reads it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from undilute.errors import InvalidValue, UnknownName
from undilute.exporting import head_lists
from undilute.treatment.layers import Layer

LAYERS = [Layer(f"model.layers.{index}.self_attn", 6) for index in range(3)]
HEADS = [(2, 5), (0, 1), (1, 0)]


def test_vllm_hook(tmp_path: Path) -> None:
    path = head_lists.write(HEADS, LAYERS, tmp_path / "a.json", "vllm-hook")
    assert json.loads(path.read_text())["params"]["important_heads"] == [[2, 5], [0, 1], [1, 0]]


def test_qrhead(tmp_path: Path) -> None:
    text = yaml.safe_load(head_lists.write(HEADS, LAYERS, tmp_path / "a.yaml", "qrhead").read_text())
    assert [tuple(map(int, head.split("-"))) for head in text["attn_head_set"].split(",")] == HEADS


def test_dysco(tmp_path: Path) -> None:
    text = yaml.safe_load(head_lists.write(HEADS, LAYERS, tmp_path / "a.yaml", "dysco").read_text())
    assert ast.literal_eval(text["selected_heads"]) == HEADS


def test_duo_attention_gives_a_group_the_best_of_its_heads(tmp_path: Path) -> None:
    scores = {(2, 5): 0.5, (2, 4): 0.75, (0, 1): 1.0}
    path = head_lists.write(list(scores), LAYERS, tmp_path / "a.tsv", "duo-attention", scores, kv_heads=2)
    assert np.loadtxt(path, dtype=float, delimiter="\t").tolist() == [[1.0, 0.0], [0.0, 0.0], [0.0, 0.75]]


def test_scores_put_the_best_first(tmp_path: Path) -> None:
    scores = {(2, 5): 0.1, (0, 1): 0.2, (1, 0): 0.9}
    assert head_lists.write(HEADS, LAYERS, tmp_path / "a", "qrhead", scores).read_text() == (
        'attn_head_set: "1-0,0-1,2-5"\n'
    )


@pytest.mark.parametrize(
    ("heads", "options", "message"),
    [
        ([], {}, "empty"),
        ([(0, 6)], {}, "no head 6 in layer 0"),
        ([(3, 0)], {}, "no head 0 in layer 3"),
        ([(0, 1), (0, 1)], {}, "twice"),
        ([(0, 1)], {"scores": {}}, "the score nan"),
        ([(0, 1)], {"scores": {(0, 1): 1.5}}, "the score 1.5"),
        ([(0, 1)], {"format": "duo-attention"}, "kv_heads is missing"),
        ([(0, 1)], {"format": "duo-attention", "kv_heads": 4}, "must divide"),
        ([(0, 1)], {"format": "duo-attention", "kv_heads": [2, 2, 3]}, "is a table"),
    ],
)
def test_what_is_refused(heads: list[tuple[int, int]], options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=message):
        head_lists.write(heads, LAYERS, tmp_path / "a", **{"format": "qrhead", **options})
    assert not (tmp_path / "a").exists()


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'qrhead'"):
        head_lists.write(HEADS, LAYERS, tmp_path / "a", "qr-heads")
