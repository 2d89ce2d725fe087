"""Which heads matter, said so that other tools understand it?

Four tools take lists of heads, each in its own form; layers and heads count from 0 in all of them.

* ``vllm-hook``: JSON, ``params.important_heads: [[layer, head], …]`` (IBM's vLLM-Hook, as in its ``model_configs``)
* ``qrhead``: YAML, ``attn_head_set: "layer-head,layer-head"`` (princeton-pli/QRHead, as in ``qrretriever/configs``)
* ``dysco``: YAML, ``selected_heads: "[(layer,head),…]"`` (princeton-pli/DySCO, as in ``dysco_cfgs``)
* ``duo-attention``: a table of layers × key-value heads, scores from 0 to 1, separated by tabs
  (mit-han-lab/duo-attention's ``full_attention_heads.tsv``, which kvpress reads); a key-value head has the best score
  of the query heads that share it

The first three are read with further settings, which belong to those tools: put these lines into a file of theirs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from undilute import files
from undilute.errors import InvalidValue, UnknownName
from undilute.treatment.layers import Head, Layer, heads_of

Scores = Mapping[Head, float]


def write(
    heads: Sequence[Head],
    layers: Sequence[Layer],
    to: Path,
    format: str,
    scores: Scores | None = None,
    *,
    kv_heads: int | Sequence[int] | None = None,
) -> Path:
    """Write a list of heads, and return its path.

    Parameters
    ----------
    heads : (layer, head) of each, counted from 0; written in this order, or by their scores, best first
    layers : the attention layers of the model
    to : the file to write
    format : "vllm-hook", "qrhead", "dysco" or "duo-attention"
    scores : how much each head matters, from 0 to 1; 1 for every head of the list if left out
    kv_heads : key-value heads of a layer, or of each layer, for "duo-attention"

    Examples
    --------
    >>> import tempfile
    >>> layers = [Layer(f"model.layers.{index}.self_attn", 4) for index in range(2)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(write([(1, 3), (0, 2)], layers, Path(folder) / "heads.yaml", "qrhead").read_text(), end="")
    attn_head_set: "1-3,0-2"
    """
    if format not in FORMATS:
        raise UnknownName("format", format, FORMATS)
    chosen = _checked(heads, layers)
    scored = dict.fromkeys(chosen, 1.0) if scores is None else _scored(chosen, scores)
    chosen.sort(key=lambda head: -scored[head])
    text = _duo(scored, layers, kv_heads) if format == DUO else TEXTS[format](chosen)
    return files.write(Path(to), text)


def _checked(heads: Sequence[Head], layers: Sequence[Layer]) -> list[Head]:
    """The heads, which must be some of the model's; none twice."""
    found = [heads_of([head], layers)[0] for head in heads]
    if not found:
        raise InvalidValue("the list of heads is empty: give at least one head.")
    if len(set(found)) < len(found):
        twice = next(head for head in found if found.count(head) > 1)
        raise InvalidValue(f"head {twice[1]} of layer {twice[0]} is in the list twice: give each head once.")
    return found


def _scored(heads: Sequence[Head], scores: Scores) -> dict[Head, float]:
    for head in heads:
        value = scores.get(head, math.nan)
        if not 0.0 <= value <= 1.0:
            raise InvalidValue(f"head {head[1]} of layer {head[0]} has the score {value}: it must be from 0 to 1.")
    return {head: float(scores[head]) for head in heads}


def _vllm_hook(heads: Sequence[Head]) -> str:
    return json.dumps({"params": {"important_heads": [list(head) for head in heads]}}) + "\n"


def _qrhead(heads: Sequence[Head]) -> str:
    return 'attn_head_set: "' + ",".join(f"{layer}-{head}" for layer, head in heads) + '"\n'


def _dysco(heads: Sequence[Head]) -> str:
    return 'selected_heads: "[' + ",".join(f"({layer},{head})" for layer, head in heads) + ']"\n'


def _duo(scores: Scores, layers: Sequence[Layer], kv_heads: int | Sequence[int] | None) -> str:
    """A line for each layer, with the best score of every group of query heads."""
    if kv_heads is None:
        raise InvalidValue("kv_heads is missing: 'duo-attention' lists key-value heads, so say how many a layer has.")
    counts = [kv_heads] * len(layers) if isinstance(kv_heads, int) else list(kv_heads)
    if len(counts) != len(layers) or len(set(counts)) > 1:
        raise InvalidValue(f"kv_heads {kv_heads}: 'duo-attention' is a table, with as many in each of the layers.")
    lines = []
    for index, (layer, count) in enumerate(zip(layers, counts, strict=True)):
        if count < 1 or layer.heads % count:
            raise InvalidValue(f"kv_heads {count}: must divide the {layer.heads} query heads of {layer.name!r}.")
        group = layer.heads // count
        groups = [range(first, first + group) for first in range(0, layer.heads, group)]
        best = [max(scores.get((index, head), 0.0) for head in each) for each in groups]
        lines.append("\t".join(f"{value:.6f}" for value in best) + "\n")
    return "".join(lines)


DUO = "duo-attention"
TEXTS: dict[str, Callable[[Sequence[Head]], str]] = {"vllm-hook": _vllm_hook, "qrhead": _qrhead, "dysco": _dysco}
FORMATS = (*TEXTS, DUO)
