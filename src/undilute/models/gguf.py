"""What does a GGUF file hold: which model, which tokenizer, which weights?

A GGUF file is one file with metadata, tokenizer and quantised tensors. The configuration and the tokenizer come from
transformers' own reading of the metadata; the tensors are dequantised with the ``gguf`` package's vectorised routines,
renamed with its table of names, and put back into the layout of transformers' modules (llama's query and key rows are
interleaved in GGUF, for example) by transformers' tensor processors. Values are kept in float32, which holds every
quantised value as the routines give it. Whatever in the file has no place in the model is an error: a tensor that is
silently left out is a model with other numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from undilute.errors import InvalidValue, MissingExtra
from undilute.models import rope
from undilute.models.reasons import one_line

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

ROPE_DIVISORS = "rope_freqs.weight"


@dataclass(frozen=True)
class Contents:
    """A model in parts: its class, its configuration, its tokenizer, and weights by transformers' names."""

    model_class: type[PreTrainedModel]
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    weights: dict[str, torch.Tensor]

    def save(self, folder: Path) -> None:
        """Write config.json, tokenizer files and model.safetensors into ``folder``."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        self.config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        try:
            save_file(self.weights, folder / "model.safetensors", metadata={"format": "pt"})
        except SafetensorError as error:  # a full disk, which is an OSError everywhere else
            raise OSError(one_line(error)) from None


def read(path: Path) -> Contents:
    """Everything in the GGUF file at ``path``, dequantised to float32."""
    from transformers import AutoModelForCausalLM

    reader = open_file(path)
    config = _config(path, reader)
    with torch.device("meta"):  # the names and shapes of the parameters are all that is needed
        skeleton = AutoModelForCausalLM.from_config(config)
    skeleton.config.architectures = [type(skeleton).__name__]
    skeleton.config.dtype = torch.float32
    weights = _weights(path, reader, skeleton)
    return Contents(type(skeleton), skeleton.config, _tokenizer(path, reader), weights)


def open_file(path: Path) -> GGUFReader:
    """The file, read by the gguf package; refused if it is none, or damaged."""
    try:
        import gguf
    except ImportError:
        raise MissingExtra("gguf", "models") from None
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise InvalidValue(f"{str(path)!r} is not a GGUF file: it does not start with the letters GGUF.")
    try:
        return gguf.GGUFReader(path)
    except Exception as error:  # whatever numpy or Python makes of bytes that are not there
        raise InvalidValue(
            f"{str(path)!r} is damaged or cut short ({one_line(error)}); copy or download it again."
        ) from None


def _stated(reader: GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.get_field(key)
    return default if field is None else field.contents()


def _config(path: Path, reader: GGUFReader) -> PreTrainedConfig:
    import transformers
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    architecture = _stated(reader, "general.architecture")
    try:
        config: PreTrainedConfig = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        known = config.model_type.removesuffix("_text") in GGUF_SUPPORTED_ARCHITECTURES
    except Exception:  # ValueError, KeyError and more, by how far transformers gets
        known = False
    if not known or config.is_encoder_decoder:
        raise InvalidValue(
            f"{str(path)!r} holds a model of architecture {architecture!r}, which cannot be read from GGUF with "
            f"transformers {transformers.__version__}; give the original safetensors folder or hub id instead."
        )
    scaling = _stated(reader, f"{architecture}.rope.scaling.type", "none")
    if scaling != "none" and config.model_type != "gpt_oss":
        raise InvalidValue(
            f"{str(path)!r} scales its rotary positions ({scaling!r}), which transformers does not read from GGUF; "
            "give the original safetensors folder or hub id instead."
        )
    return config


def _weights(path: Path, reader: GGUFReader, skeleton: PreTrainedModel) -> dict[str, torch.Tensor]:
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    architecture = _stated(reader, "general.architecture")
    processors: dict[str, Any] = TENSOR_PROCESSORS
    processor = processors.get(architecture, TensorProcessor)(config=skeleton.config.to_dict())
    names = parameter_names(skeleton, architecture, processor)
    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        values = _dequantised(path, tensor)
        if tensor.name == ROPE_DIVISORS:
            rope.apply_divisors(skeleton.config, values, path)
            continue
        values, name, _ = processor.process(
            values, tensor.name, tensor_key_mapping=names, parsed_parameters={"tensors": weights}
        )
        if name is None:  # the processor has stored the tensor itself, as it does with experts and gpt2's head
            continue
        if name not in names:
            raise InvalidValue(
                f"{str(path)!r} holds the tensor {name!r}, which has no place in {type(skeleton).__name__}; "
                "give the original safetensors folder or hub id instead."
            )
        weights[names[name]] = torch.from_numpy(np.require(values, np.float32, ["C", "W"]))
    return weights


def _dequantised(path: Path, tensor: ReaderTensor) -> NDArray[np.float32]:
    from gguf import dequantize

    try:
        return dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError:
        raise InvalidValue(
            f"{str(path)!r} holds {tensor.name!r} as {tensor.tensor_type.name}, which the gguf package cannot "
            "dequantise; use a file with another quantisation."
        ) from None


def parameter_names(skeleton: PreTrainedModel, architecture: str, processor: Any) -> dict[str, str]:
    """GGUF's name of every parameter → transformers' name.

    Some files were made from the bare model, so that names are also looked up without their first part
    (``transformer.h.0`` as ``h.0``); names found in full go first.
    """
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    known = {name: key for key, name in MODEL_ARCH_NAMES.items()}
    table = get_tensor_name_map(known[architecture], skeleton.config.num_hidden_layers)
    found: dict[str, str] = {}
    for parts_left_out in (0, 1):
        shorter: dict[str, str] = {}
        for full in skeleton.state_dict():
            *outer, inner = full.split(".", parts_left_out)
            prefix, inner = "".join(f"{part}." for part in outer), processor.preprocess_name(inner)
            stem, dot, kind = inner.rpartition(".")
            stem, suffix = (stem, dot + kind) if kind in ("weight", "bias") else (inner, "")
            if (name := table.get_name(stem)) is not None:
                shorter[name + suffix] = prefix + inner
            else:
                processor.perform_fallback_tensor_mapping(shorter, suffix, prefix, inner)
        found = shorter | found
    return found


def _tokenizer(path: Path, reader: GGUFReader) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    if reader.get_field("tokenizer.ggml.tokens") is None:
        raise InvalidValue(f"{str(path)!r} holds no tokenizer; give a GGUF file that has one.")
    try:
        # From an empty folder, so that no tokenizer file that happens to lie next to the GGUF file is mixed in.
        with TemporaryDirectory() as empty:
            tokenizer = AutoTokenizer.from_pretrained(empty, gguf_file=str(path.absolute()))
    except Exception as error:
        raise InvalidValue(f"the tokenizer in {str(path)!r} cannot be read: {one_line(error)}.") from None
    _begin_as_stated(tokenizer, reader)
    return tokenizer


def _begin_as_stated(tokenizer: PreTrainedTokenizerBase, reader: GGUFReader) -> None:
    """Put the first token before every text if the file says so; transformers does not read that entry."""
    from tokenizers.processors import TemplateProcessing

    sentencepiece = _stated(reader, "tokenizer.ggml.model") == "llama"  # llama.cpp's default where nothing is stated
    begins = _stated(reader, "tokenizer.ggml.add_bos_token", sentencepiece)
    token, index = tokenizer.bos_token, tokenizer.bos_token_id
    if not begins or token is None or tokenizer("a").input_ids[:1] == [index]:
        return
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B:1", special_tokens=[(token, index)]
    )
