"""Which rows and columns of which tensors of a GGUF file belong to a head, and may they be multiplied?

β of a head multiplies its rows of ``attn_q`` (and its bias): rotary positions act on these rows alone, and are linear.
The gain of a head multiplies its columns of ``attn_output``. llama.cpp reorders rows inside a head, never across heads.
Fused ``attn_qkv`` begins with the rows of the queries. β cannot be folded where something that is not linear stands
between W_Q and the softmax.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from undilute.errors import InvalidValue
from undilute.exporting.factors import Factors
from undilute.exporting.gguf_container import Container

FUSED = ("gpt2", "phi2", "phi3", "falcon", "gptneox", "starcoder", "qwen")
APART = (
    *("llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "starcoder2", "stablelm", "nemotron", "gemma", "gemma2"),
    *("gemma3", "smollm3", "mistral3", "internlm2", "granite", "granitemoe", "exaone", "minicpm", "olmo", "olmo2"),
    *("command-r", "lfm2", "gpt-oss", "bloom", "mpt"),
)
INSTEAD = "export to a folder, and make a GGUF of it with llama.cpp's convert_hf_to_gguf.py"


def scaled_tensors(source: Container, factors: Sequence[Factors]) -> dict[str, NDArray[np.float64]]:
    """The tensors that change, and what each is multiplied by: (rows, 1), (columns,) or, for a bias, (values,)."""
    found: dict[str, NDArray[np.float64]] = {}
    for each in factors:
        if each.changes:
            for name, values in _of_layer(source, each):
                if name in found:
                    raise InvalidValue(f"two layers of the plan are the tensor {name!r}: give each layer once.")
                found[name] = values
    return found


def _of_layer(source: Container, layer: Factors) -> Iterator[tuple[str, NDArray[np.float64]]]:
    block = _block(layer)
    heads = _heads(source, block)
    for given in (layer.logits, layer.outputs):
        if len(given) != heads:
            raise InvalidValue(
                f"{layer.name!r} has factors for {len(given)} heads, and {str(source.path)!r} has {heads} heads there: "
                "give the file that the model came from."
            )
        if not np.isfinite(given).all():
            raise InvalidValue(f"{layer.name!r} has a factor that is not finite: factors must be finite numbers.")
    if any(each != 1.0 for each in layer.logits):
        _check_linear(source, block, layer)
        yield from _queries(source, block, layer)
    if any(each != 1.0 for each in layer.outputs):
        yield _outputs(source, block, layer)


def _block(layer: Factors) -> int:
    """The number of the layer in the file, which is the number in its name: layers without attention count there.

    >>> _block(Factors(0, "model.layers.4.self_attn", (1.0,), (1.0,)))
    4
    """
    numbers = re.findall(r"\.(\d+)(?=\.|$)", f".{layer.name}")
    if len(numbers) != 1:
        raise InvalidValue(f"the layer {layer.name!r} has no place of its own in a GGUF file: {INSTEAD}.")
    return int(numbers[0])


def _heads(source: Container, block: int) -> int:
    architecture = _architecture(source)
    counts = source.stated(f"{architecture}.attention.head_count")
    if isinstance(counts, list):
        return int(counts[block]) if block < len(counts) else 0
    return int(counts or 0)


def _architecture(source: Container) -> str:
    name = str(source.stated("general.architecture"))
    if name not in (*FUSED, *APART):
        raise InvalidValue(f"factors of heads cannot be written into a GGUF file of architecture {name!r}: {INSTEAD}.")
    return name


def _check_linear(source: Container, block: int, layer: Factors) -> None:
    """Raise if something stands between W_Q and the softmax that a factor does not pass through."""
    architecture = _architecture(source)
    reasons = {
        "normalises its queries (attn_q_norm)": f"blk.{block}.attn_q_norm.weight" in source.tensors,
        "has attention sinks": f"blk.{block}.attn_sinks.weight" in source.tensors,
        "caps its logits": source.stated(f"{architecture}.attn_logit_softcapping"),
        "clamps its queries": source.stated(f"{architecture}.attention.clamp_kqv"),
        "adds a bias of the distance to its logits (ALiBi)": architecture in ("bloom", "mpt")
        or source.stated(f"{architecture}.attention.max_alibi_bias"),
    }
    for reason, holds in reasons.items():
        if holds:
            raise InvalidValue(
                f"the logits of {layer.name!r} cannot be scaled in {str(source.path)!r}: the model {reason}, so that "
                "a factor on W_Q is no factor on the logits; leave β out, or use undilute's runtime."
            )


def _queries(source: Container, block: int, layer: Factors) -> Iterator[tuple[str, NDArray[np.float64]]]:
    heads = len(layer.logits)
    name = f"blk.{block}.attn_q"
    fused = f"{name}.weight" not in source.tensors and _architecture(source) in FUSED
    name = f"blk.{block}.attn_qkv" if fused else name
    stored = source.tensors.get(f"{name}.weight")
    per_head = _per_head(source, heads, "key_length")
    rows = 0 if stored is None else stored.shape[0]
    expected = (heads + 2 * _kv_heads(source, block, heads)) * per_head if fused else heads * per_head
    if rows != expected:
        raise InvalidValue(
            f"{str(source.path)!r} has no {name + '.weight'!r} with {expected:,} rows, those of {heads} heads of "
            f"{per_head}: {INSTEAD}."
        )
    factors = np.ones(rows)
    factors[: heads * per_head] = np.repeat(layer.logits, per_head)
    yield f"{name}.weight", factors[:, None]
    if f"{name}.bias" in source.tensors:
        yield f"{name}.bias", factors


def _outputs(source: Container, block: int, layer: Factors) -> tuple[str, NDArray[np.float64]]:
    heads, name = len(layer.outputs), f"blk.{block}.attn_output.weight"
    per_head = _per_head(source, heads, "value_length")
    columns = source.tensors[name].shape[-1] if name in source.tensors else 0
    if columns != heads * per_head or f"blk.{block}.attn_sub_norm.weight" in source.tensors:
        raise InvalidValue(
            f"{str(source.path)!r} has no {name!r} that takes {heads} heads of {per_head} as they are: {INSTEAD}."
        )
    return name, np.repeat(np.asarray(layer.outputs, np.float64), per_head)


def _per_head(source: Container, heads: int, key: str) -> int:
    architecture = _architecture(source)
    width = int(source.stated(f"{architecture}.embedding_length", 0))
    return int(source.stated(f"{architecture}.attention.{key}", width // max(1, heads)))


def _kv_heads(source: Container, block: int, heads: int) -> int:
    counts = source.stated(f"{_architecture(source)}.attention.head_count_kv", heads)
    return int(counts[block] if isinstance(counts, list) else counts)
