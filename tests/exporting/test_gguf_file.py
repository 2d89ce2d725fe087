"""A GGUF file with factors: read back by the gguf package, loaded as a model, and compared with the treated model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

import undilute as ud
from tests.models.small import HEAD_DIM, HEADS, LAYERS, write_gpt2, write_llama
from undilute.errors import InvalidValue
from undilute.exporting import gguf_file
from undilute.exporting.factors import Factors
from undilute.models import load

IDS = torch.arange(2, 42)[None]
BETAS = [(0.7, 1.4, 1.1, 0.9), (1.3, 1.0, 0.8, 1.2)]
GAINS = [(0.8, 1.2, 1.0, 1.1), (0.9, 1.05, 1.15, 0.85)]
FACTORS = [Factors(layer, f"model.layers.{layer}.self_attn", BETAS[layer], GAINS[layer]) for layer in range(LAYERS)]


def made(path: Path, *, extra: dict[str, Any] | None = None, **kinds: str) -> Path:
    """The tiny llama with its attention in other types, by tensor: attn_q="Q4_0", attn_output="Q8_0"."""
    path.parent.mkdir(exist_ok=True)
    write_llama(path.with_name("plain.gguf"))
    reader = gguf.GGUFReader(path.with_name("plain.gguf"))
    writer = gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub)
    for key, value in (extra or {}).items():
        writer.data_alignment = value[0] if key == "general.alignment" else writer.data_alignment
        writer.add_key_value(key, *value)
    for tensor in reader.tensors:
        part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else tensor.name
        kind = gguf.GGMLQuantizationType[kinds.get(part, tensor.tensor_type.name)]
        data = tensor.data if part not in kinds else gguf.quants.quantize(np.array(tensor.data), kind)
        writer.add_tensor(tensor.name, np.array(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def values(path: Path) -> dict[str, np.ndarray]:
    return {each.name: gguf.dequantize(each.data, each.tensor_type) for each in gguf.GGUFReader(path).tensors}


def entries(path: Path) -> dict[str, tuple[Any, Any]]:
    fields = gguf.GGUFReader(path).fields
    return {name: (field.types, field.contents()) for name, field in fields.items()}


def expected(source: Path) -> dict[str, np.ndarray]:
    """The source's values times the factors, head by head."""
    found = {name: array.astype(np.float64) for name, array in values(source).items()}
    for layer in range(LAYERS):
        for head in range(HEADS):
            own = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            found[f"blk.{layer}.attn_q.weight"][own] *= BETAS[layer][head]
            found[f"blk.{layer}.attn_output.weight"][:, own] *= GAINS[layer][head]
    return found


def treated(model: PreTrainedModel, betas: list[tuple[float, ...]], ids: torch.Tensor = IDS) -> torch.Tensor:
    """Logits with β by our rules, and gains, if there are any, by the columns of the output projection."""
    rules = {
        f"layers.{layer}.heads.{head}": f"temperature(T={1 / beta!r})"
        for layer, own in enumerate(betas)
        for head, beta in enumerate(own)
    }
    with torch.no_grad(), ud.apply(model, rules):
        return model(ids).logits


def scale_outputs(model: PreTrainedModel) -> None:
    with torch.no_grad():
        for layer, gains in enumerate(GAINS):
            weight = model.model.layers[layer].self_attn.o_proj.weight
            weight *= torch.tensor(gains).repeat_interleave(HEAD_DIM)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_every_value_is_the_source_times_its_factors(kind: str, tmp_path: Path) -> None:
    source = made(tmp_path / "source.gguf", attn_q=kind)
    written = gguf_file.write(source, tmp_path / "out.gguf", FACTORS)
    found = values(tmp_path / "out.gguf")
    for name, array in expected(source).items():
        assert np.abs(found[name] - array).max() <= 2.0**-8 * np.abs(array).max() * ("attn_" in name)
    assert sorted(written.scaled) == sorted(f"blk.{i}.attn_{n}.weight" for i in range(LAYERS) for n in ("q", "output"))
    assert written.requantised == {}
    assert written.rounded <= (2.0**-8 if kind == "BF16" else 2.0**-11)
    assert set(written.exact) == {name for name in written.scaled if kind == "F32" or "output" in name}
    types = [{each.name: each.tensor_type for each in gguf.GGUFReader(path).tensors} for path in (source, written.path)]
    assert types[0] == types[1]


def test_columns_of_heads_that_share_a_block_are_written_as_q8_0_and_said(tmp_path: Path) -> None:
    source = made(tmp_path / "source.gguf", attn_output="Q4_1")  # heads of 16, blocks of 32
    written = gguf_file.write(source, tmp_path / "out.gguf", FACTORS)
    names = [f"blk.{layer}.attn_output.weight" for layer in range(LAYERS)]
    assert written.requantised == dict.fromkeys(names, ("Q4_1", "Q8_0"))
    assert "2 tensors of type Q4_1 are Q8_0 now." in written.sentences
    for name in names:
        array = expected(source)[name]
        assert np.abs(values(written.path)[name] - array).max() <= np.abs(array).max() / 200


def test_without_factors_the_file_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    source = made(tmp_path / "source.gguf", attn_q="Q4_1")
    ones = Factors(0, "model.layers.0.self_attn", (1.0,) * HEADS, (1.0,) * HEADS)
    gguf_file.write(source, tmp_path / "out.gguf", [ones])
    assert (tmp_path / "out.gguf").read_bytes() == source.read_bytes()


def test_metadata_stays_but_for_the_card(tmp_path: Path) -> None:
    strange = {
        "general.alignment": (64, gguf.GGUFValueType.UINT32),
        "general.name": ("tiny", gguf.GGUFValueType.STRING),
        "odd.bool": (True, gguf.GGUFValueType.BOOL),
        "odd.double": (0.1, gguf.GGUFValueType.FLOAT64),
        "odd.bytes": ([1, 255], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT8),
        "tokenizer.chat_template": ("{% for m in messages %}…{% endfor %}", gguf.GGUFValueType.STRING),
    }
    source = made(tmp_path / "source.gguf", extra=strange)
    card = {"general.name": "tiny undiluted", "general.description": "β of 8 heads"}
    gguf_file.write(source, tmp_path / "out.gguf", FACTORS, card=card)
    before, after = entries(source), entries(tmp_path / "out.gguf")
    assert {key: after[key][1] for key in card} == card
    new = {"GGUF.kv_count", *card}
    assert {key: value for key, value in after.items() if key not in new} == {
        key: value for key, value in before.items() if key not in new
    }


@pytest.mark.parametrize(
    ("kinds", "file_type", "tolerance"),
    [
        ({}, None, 1e-5),
        ({"attn_q": "Q4_1"}, None, 2e-3),
        ({"attn_q": "Q8_0", "attn_output": "F16"}, None, 2e-3),
        ({"attn_q": "Q4_0", "attn_output": "Q8_0"}, "F32", 1e-5),
        ({"attn_q": "Q4_0", "attn_output": "Q8_0"}, "F16", 2e-3),
        ({}, "Q8_0", 3e-2),
    ],
)
def test_the_loaded_file_answers_as_the_treated_model(
    kinds: dict[str, str], file_type: str | None, tolerance: float, tmp_path: Path
) -> None:
    source = made(tmp_path / "source.gguf", **kinds)
    model, _ = load(source, cache=False)
    plain = model(IDS).logits
    scale_outputs(model)
    wanted = treated(model, BETAS)
    gguf_file.write(source, tmp_path / "out.gguf", FACTORS, file_type=file_type)
    again, _ = load(tmp_path / "out.gguf", cache=False)
    with torch.no_grad():
        difference = (again(IDS).logits - wanted).abs().max()
    assert difference <= tolerance * wanted.abs().max()
    if tolerance < 1e-2:
        assert (plain - wanted).abs().max() > 4 * difference


@pytest.mark.parametrize("file_type", ["F32", "F16", "Q8_0"])
def test_a_type_for_the_file_is_that_of_every_matrix(file_type: str, tmp_path: Path) -> None:
    source = made(tmp_path / "source.gguf", attn_q="Q4_1", attn_output="BF16")
    written = gguf_file.write(source, tmp_path / "out.gguf", FACTORS, file_type=file_type)
    for tensor in gguf.GGUFReader(written.path).tensors:
        assert tensor.tensor_type.name == (file_type if len(tensor.shape) > 1 else "F32")
    assert entries(written.path)["general.file_type"][1] == gguf_file.FILE_TYPES[file_type]
    assert written.requantised["blk.0.attn_q.weight"] == ("Q4_1", file_type)


def test_gpt2_whose_queries_keys_and_values_are_one_tensor(tmp_path: Path) -> None:
    write_gpt2(tmp_path / "source.gguf")
    factors = [Factors(i, f"transformer.h.{i}.attn", BETAS[i], GAINS[i]) for i in range(2)]
    written = gguf_file.write(tmp_path / "source.gguf", tmp_path / "out.gguf", factors)
    assert "blk.1.attn_qkv.bias" in written.scaled
    model, _ = load(tmp_path / "source.gguf", cache=False)
    with torch.no_grad():
        for block, gains in zip(model.transformer.h, GAINS, strict=True):
            block.attn.c_attn.bias.normal_(generator=torch.Generator().manual_seed(0))
            block.attn.c_proj.weight *= torch.tensor(gains).repeat_interleave(8)[:, None]
    again, _ = load(written.path, cache=False)
    with torch.no_grad():
        for block, theirs, betas in zip(again.transformer.h, model.transformer.h, BETAS, strict=True):
            block.attn.c_attn.bias[:] = theirs.attn.c_attn.bias
            block.attn.c_attn.bias[:32] *= torch.tensor(betas).repeat_interleave(8)
    wanted = treated(model, BETAS)
    assert torch.allclose(again(IDS).logits, wanted, atol=1e-5)


def test_head_counts_of_each_layer(tmp_path: Path) -> None:
    counts = ([HEADS, HEADS - 1], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32)
    source = made(tmp_path / "source.gguf")
    reader = gguf.GGUFReader(source)
    assert reader.get_field("llama.attention.head_count") is not None
    container = gguf_file.Container(source)
    stated = container.stated
    container.stated = lambda key, default=None: counts[0] if key.endswith("head_count") else stated(key, default)
    assert gguf_file.scaled_tensors(container, FACTORS[:1])
    with pytest.raises(InvalidValue, match="has 3 heads there"):
        gguf_file.scaled_tensors(container, FACTORS[1:])


def layer(name: str = "model.layers.0.self_attn", betas: Any = BETAS[0], gains: Any = GAINS[0]) -> Factors:
    return Factors(0, name, betas, gains)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (layer(betas=(1.0, 2.0)), "factors for 2 heads, and .* has 4 heads there"),
        (layer(name="model.layers.7.self_attn"), "no 'blk.7.attn_q.weight' with 64 rows"),
        (layer(name="encoder.attention"), "no place of its own"),
        (layer(name="model.layers.0.self_attn.passes.1"), "no place of its own"),
        (layer(gains=(1.0, float("nan"), 1.0, 1.0)), "not finite"),
    ],
)
def test_factors_that_do_not_fit_are_refused(factors: Factors, message: str, tmp_path: Path) -> None:
    source = made(tmp_path / "source.gguf")
    with pytest.raises(InvalidValue, match=message):
        gguf_file.write(source, tmp_path / "out.gguf", [factors])
    assert sorted(os.listdir(tmp_path)) == ["plain.gguf", "source.gguf"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"llama.attn_logit_softcapping": (50.0, gguf.GGUFValueType.FLOAT32)}, "caps its logits"),
        ({"llama.attention.clamp_kqv": (8.0, gguf.GGUFValueType.FLOAT32)}, "clamps its queries"),
        ({"llama.attention.max_alibi_bias": (8.0, gguf.GGUFValueType.FLOAT32)}, "ALiBi"),
        ({"split.count": (3, gguf.GGUFValueType.UINT16)}, "one part of 3"),
    ],
)
def test_files_that_a_factor_does_not_fold_into_are_refused(extra: Any, message: str, tmp_path: Path) -> None:
    source = made(tmp_path / "source.gguf", extra=extra)
    with pytest.raises(InvalidValue, match=message):
        gguf_file.write(source, tmp_path / "out.gguf", FACTORS)
    if "split" not in next(iter(extra)):  # gains fold all the same
        gains = [Factors(0, "model.layers.0.self_attn", (1.0,) * HEADS, GAINS[0])]
        assert gguf_file.write(source, tmp_path / "out.gguf", gains).scaled == ("blk.0.attn_output.weight",)


@pytest.mark.parametrize(("name", "message"), [("attn_q_norm", "normalises its queries"), ("attn_sinks", "sinks")])
def test_tensors_between_the_queries_and_the_softmax_refuse_logits(name: str, message: str, tmp_path: Path) -> None:
    write_llama(tmp_path / "source.gguf", extra={f"blk.1.{name}.weight": np.ones(HEAD_DIM, np.float32)})
    with pytest.raises(InvalidValue, match=message):
        gguf_file.write(tmp_path / "source.gguf", tmp_path / "out.gguf", FACTORS)


def test_an_architecture_that_nobody_looked_at_is_refused(tmp_path: Path) -> None:
    write_llama(tmp_path / "source.gguf", architecture="deepseek2")
    with pytest.raises(InvalidValue, match=r"architecture 'deepseek2': export to a folder, .* convert_hf_to_gguf.py"):
        gguf_file.write(tmp_path / "source.gguf", tmp_path / "out.gguf", FACTORS)


def test_places_that_are_refused(tmp_path: Path) -> None:
    source = made(tmp_path / "source.gguf")
    before = source.read_bytes()
    os.link(source, tmp_path / "same.gguf")
    for to in (source, tmp_path / "same.gguf"):
        with pytest.raises(InvalidValue, match="the file that is read"):
            gguf_file.write(source, to, FACTORS, overwrite=True)
    (tmp_path / "out.gguf").write_text("mine")
    with pytest.raises(InvalidValue, match="there already"):
        gguf_file.write(source, tmp_path / "out.gguf", FACTORS)
    with pytest.raises(InvalidValue, match=r"must end in \.gguf"):
        gguf_file.write(source, tmp_path / "out", FACTORS)
    with pytest.raises(InvalidValue, match="file type 'Q4_K'"):
        gguf_file.write(source, tmp_path / "other.gguf", FACTORS, file_type="Q4_K")
    with pytest.raises(InvalidValue, match=r"'llama\.block_count' of the card is no text"):
        gguf_file.write(source, tmp_path / "other.gguf", FACTORS, card={"llama.block_count": "3"})
    assert (tmp_path / "out.gguf").read_text() == "mine"
    assert source.read_bytes() == before
    gguf_file.write(source, tmp_path / "out.gguf", FACTORS, overwrite=True)
    assert values(tmp_path / "out.gguf")


def test_nothing_is_left_of_a_file_that_could_not_be_finished(tmp_path: Path) -> None:
    source = made(tmp_path / "source.gguf", attn_output="F16")
    huge = [layer(gains=(1e9, 1.0, 1.0, 1.0))]
    with pytest.raises(InvalidValue, match="too large for float16"):
        gguf_file.write(source, tmp_path / "out.gguf", huge)
    assert sorted(os.listdir(tmp_path)) == ["plain.gguf", "source.gguf"]


def test_which_file_a_name_means(tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf")
    assert gguf_file.source_of(tmp_path) == gguf_file.source_of(tmp_path / "tiny.gguf") == tmp_path / "tiny.gguf"
    assert gguf_file.source_of("smollm2").name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    with pytest.raises(InvalidValue, match=r"'gpt2' is no GGUF file.*convert_hf_to_gguf\.py"):
        gguf_file.source_of("gpt2")


def test_smollm2_keeps_its_quantisation_and_answers_as_the_treated_model(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    betas = (0.7 + 0.7 * torch.rand(30, 9, generator=generator)).tolist()
    gains = (0.8 + 0.4 * torch.rand(30, 9, generator=generator)).tolist()
    factors = [Factors(i, f"model.layers.{i}.self_attn", tuple(betas[i]), tuple(gains[i])) for i in range(30)]
    source = gguf_file.source_of("smollm2")
    written = gguf_file.write(source, tmp_path / "out.gguf", factors)
    assert written.path.stat().st_size == source.stat().st_size
    assert (len(written.scaled), written.requantised) == (60, {})
    assert 0 < written.rounded <= 2.0**-11
    model, tokenizer = load("smollm2")
    ids = tokenizer("The capital of France is Paris, and the capital of Italy is", return_tensors="pt").input_ids
    with torch.no_grad():
        plain = model(ids).logits
        for block, own in zip(model.model.layers, gains, strict=True):
            block.self_attn.o_proj.weight *= torch.tensor(own).repeat_interleave(64)
        wanted = treated(model, betas, ids)
        again = load(written.path, cache=False)[0](ids).logits
    assert (plain - wanted).abs().max() > 1.0
    assert (again - wanted).abs().max() < 0.05
    assert (again - wanted).abs().mean() < 0.005
