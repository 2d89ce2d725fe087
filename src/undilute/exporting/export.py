"""How does a plan leave this library?  As an ordinary checkpoint that any engine loads, with no code of ours.

    undilute.export(model, plan, "folder")
    undilute.export(model, plan, "model.gguf", source="smollm2")

What is exported is loaded again and compared with the treated model here. If the two disagree, nothing is left behind.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undilute.errors import InvalidValue
from undilute.exporting.card import card
from undilute.exporting.curves import Stated
from undilute.exporting.explain import explain
from undilute.exporting.factors import Curve, Explanation
from undilute.exporting.layouts import folded, places
from undilute.exporting.result import Exported
from undilute.models import text_loss
from undilute.models.attention_call import IMPLEMENTATION
from undilute.models.forward_pass import evaluating
from undilute.models.texts import beginning, tokenised
from undilute.models.watch import check_supported
from undilute.progress import Progress, quiet
from undilute.rules.base import Rule
from undilute.treatment.apply import apply, get
from undilute.treatment.kinds.rules import Rules, planned
from undilute.treatment.layers import first_calls, layers_of
from undilute.treatment.plan import Assignment, Plan
from undilute.treatment.saved import plan_in_force

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PLAN = "exported_plan.json"
TRIED = 48  # tokens that are compared
WINDOW = 1024  # tokens of text for the loss
AGREES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 3e-1}  # of logits of size 10


def export(
    model: PreTrainedModel,
    plan: Any,
    to: str | PathLike[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    text: str | None = None,
    dtype: torch.dtype | None = None,
    approximate: bool = False,
    partial: bool = False,
    overwrite: bool = False,
    max_shard_size: str = "5GB",
    source: str | PathLike[str] | None = None,
    name: str | None = None,
    on_progress: Progress | None = None,
) -> Exported:
    """Write a model with a plan folded into its weights, as any engine reads it.

    Parameters
    ----------
    model : of Hugging Face, untreated; it is left as it is
    plan : a plan, the path of one, or a rule or {pattern: rule} as ``undilute.apply`` takes them
    to : a folder, or a file that ends in .gguf
    tokenizer : is written too, with its chat template
    text : to measure what approximating costs
    dtype : of the weights; the model's own by default
    approximate : allow what is only nearly the plan
    partial : leave out what cannot be exported, instead of refusing
    overwrite : replace what is there
    max_shard_size : of weights in one file
    source : the GGUF file, or the name of the model, that ``model`` came from; for a GGUF file
    name : of the model, for its card
    on_progress : called with (share done, what is being done)

    Returns
    -------
    Exported
        What is exact, what is approximated and by how much, and what was left out.

    Examples
    --------
    >>> import tempfile, transformers, undilute as ud
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1, eos_token_id=1)
    >>> model = transformers.GPT2LMHeadModel(config).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = ud.export(model, {"layers.1.*": "temperature(T=0.5)"}, f"{folder}/sharper")
    >>> len(made.exact), made.max_logit_difference < 1e-4
    (4, True)
    """
    tell, target = on_progress or quiet, Path(to)
    _check(model, target, overwrite)
    calls = first_calls(model)
    layers = layers_of(calls)
    wanted = _plan(model, plan, layers)
    found = explain(wanted, model, calls, half=dtype == torch.float16)
    _refuse(found, approximate, partial)
    named = name or str(getattr(model, "name_or_path", "") or type(model).__name__)
    if target.suffix == ".gguf":
        return _gguf(target, found, source, dtype, overwrite)
    tell(0.1, "folding")
    weights = folded(model, places(model, calls), found.factors)
    stated = _stated(wanted, found)
    ids = _tried(model, tokenizer, text)
    made = Exported(target, found, *_differences(model, wanted, stated, found, tokenizer, text, ids))
    fresh = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    try:
        tell(0.4, "writing")
        _write(model, weights, found.curve, fresh, dtype, max_shard_size)
        if tokenizer is not None:
            tokenizer.save_pretrained(fresh)
        tell(0.7, "comparing")
        difference = _compared(model, stated, fresh, ids, dtype or model.dtype)
        made = replace(made, max_logit_difference=difference)
        (fresh / PLAN).write_text(wanted.to_json(), encoding="utf-8")
        (fresh / "README.md").write_text(card(named, wanted, made), encoding="utf-8")
        _put(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    tell(1.0, "done")
    return made


# ---------------------------------------------------------------- before


def _check(model: PreTrainedModel, target: Path, overwrite: bool) -> None:
    check_supported(model)
    if plan_in_force(model) is not None or str(model.config._attn_implementation).startswith(IMPLEMENTATION):
        raise InvalidValue(
            "the model is treated: keep plan = undilute.Plan.of(model), undo the treatment, and export the plan."
        )
    if getattr(model, "is_quantized", False) or getattr(model, "hf_quantizer", None) is not None:
        raise InvalidValue(
            f"{type(model).__name__} is quantised, and factors fold into plain weights only: load it in float32, or "
            "export to GGUF."
        )
    if target.is_file() and target.suffix != ".gguf":
        raise InvalidValue(f"cannot write {str(target)!r}: it is a file; give a folder, or a name that ends in .gguf.")
    if not overwrite and target.is_dir() and any(target.iterdir()):
        raise InvalidValue(f"{str(target)!r} is there already: give another folder, or overwrite.")
    if not target.absolute().parent.is_dir():
        raise InvalidValue(f"cannot write {str(target)!r}: there is no folder {str(target.parent)!r}; make it first.")


def _plan(model: PreTrainedModel, given: Any, layers: Any) -> Plan:
    if isinstance(given, Plan):
        return planned(type(model).__name__, layers, given)
    found = get(given)
    if not isinstance(found, Rules):
        raise InvalidValue(f"plan = {found.label}: only plans, rules and {{pattern: rule}} can be exported.")
    return planned(type(model).__name__, layers, found.given)


def _refuse(found: Explanation, approximate: bool, partial: bool) -> None:
    """Raise where something is lost that was not allowed to be."""
    cannot, nearly = found.having("cannot"), found.having("approximate")
    if cannot and not (partial and len(cannot) < len(found.parts)):
        reason, number = Counter(part.reason for part in cannot).most_common(1)[0]
        heads = sorted({(part.layer, part.head) for part in cannot if part.reason == reason})
        few = ", ".join(f"{layer}.{head}" for layer, head in heads[:3]) + (", …" if len(heads) > 3 else "")
        allow = "" if len(cannot) == len(found.parts) else "; partial exports the rest"
        raise InvalidValue(
            f"{len(cannot):,} of {len(found.parts):,} parts of the plan cannot be exported; {number:,} of them (heads "
            f"{few}) because {reason}{allow}."
        )
    if nearly and not approximate:
        worst = max(part.error for part in nearly)
        raise InvalidValue(
            f"{len(nearly):,} of {len(found.parts):,} parts of the plan can only be approximated, with an error of up "
            f"to {worst:.2g} in the factor: allow it with approximate."
        )


# ---------------------------------------------------------------- what an exported model does


def _stated(plan: Plan, found: Explanation) -> Plan:
    """The plan that the exported model follows."""
    assignments = []
    for each in found.factors:
        heads = tuple(range(len(each.logits)))
        gains = None if set(each.outputs) == {1.0} else each.outputs
        assignments.append(Assignment(each.layer, heads, Rule(scale=Stated(each.logits, found.curve)), gains))
    return Plan(plan.architecture, plan.layers, assignments)


def _tried(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, text: str | None) -> Tensor:
    """(2, tokens): what is compared on, random tokens or the text's."""
    known = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
    most = getattr(model.config, "max_position_embeddings", None) or TRIED
    ids = torch.randint(known, (2, min(TRIED, int(most))), generator=torch.Generator().manual_seed(0))
    if tokenizer is not None and text is not None and len(own := tokenised(tokenizer, text)) >= ids.shape[1]:
        ids[0] = own[: ids.shape[1]]
    return ids


def _logits(model: PreTrainedModel, ids: Tensor, plan: Plan | None = None) -> Tensor:
    with torch.inference_mode(), evaluating(model):
        if plan is None or not plan.assignments:
            return _output(model, ids)
        with apply(model, plan):
            return _output(model, ids)


def _output(model: PreTrainedModel, ids: Tensor) -> Tensor:
    made = model(input_ids=ids.to(model.device))
    logits: Tensor = made.logits if hasattr(made, "logits") else made.last_hidden_state
    return logits.double().cpu()


def _differences(
    model: PreTrainedModel,
    wanted: Plan,
    stated: Plan,
    found: Explanation,
    tokenizer: PreTrainedTokenizerBase | None,
    text: str | None,
    ids: Tensor,
) -> tuple[float | None, float, float | None]:
    """None yet; the largest difference of logits, and the change of loss, that approximating and leaving out make."""
    if not found.having("approximate") and not found.having("cannot"):
        return None, 0.0, None
    apart = float((_logits(model, ids, wanted) - _logits(model, ids, stated)).abs().max())
    if text is None or tokenizer is None:
        return None, apart, None
    window = text_loss.windows(tokenised(tokenizer, text), WINDOW, 1, start=beginning(tokenizer))
    with apply(model, wanted):
        before = text_loss.losses(model, window)
    with apply(model, stated):
        after = text_loss.losses(model, window)
    return None, apart, float((after - before).mean())


# ---------------------------------------------------------------- the folder


def _write(
    model: PreTrainedModel,
    weights: Mapping[str, Tensor],
    curve: Curve | None,
    folder: Path,
    dtype: torch.dtype | None,
    max_shard_size: str,
) -> None:
    """Weights and configuration."""
    state = {name: weights.get(name, value.detach()) for name, value in model.state_dict().items()}
    if dtype is not None:
        state = {name: each.to(dtype) if each.is_floating_point() else each for name, each in state.items()}
    model.save_pretrained(folder, state_dict=state, max_shard_size=max_shard_size)
    file = folder / "config.json"
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if dtype is not None:
        content["dtype"] = str(dtype).removeprefix("torch.")
    if curve is not None:
        content |= _ministral(model, curve)
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _ministral(model: PreTrainedModel, curve: Curve) -> dict[str, Any]:
    """What a Llama's configuration must say to be read as Ministral 3, whose queries grow along a curve."""
    config: Any = model.config
    rope = dict(getattr(config, "rope_parameters", None) or {})
    heads = config.num_attention_heads
    return {
        "model_type": "ministral3",
        "architectures": ["Ministral3ForCausalLM"],
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "sliding_window": getattr(config, "sliding_window", None),
        "rope_parameters": rope
        | {"llama_4_scaling_beta": curve.beta, "original_max_position_embeddings": curve.length},
    }


def _compared(model: PreTrainedModel, stated: Plan, folder: Path, ids: Tensor, dtype: torch.dtype) -> float:
    """The largest difference of logits between the plan here and the folder, loaded again; an error if it is large."""
    from transformers import AutoModel, AutoModelForCausalLM

    ours = _logits(model, ids, stated)
    kind: Any = AutoModelForCausalLM if hasattr(model, "lm_head") or model.get_output_embeddings() else AutoModel
    loaded = kind.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()
    difference = float((_logits(loaded, ids) - ours).abs().max())
    scale = max(float(ours.abs().max()), 1.0) / 10
    if not difference <= AGREES.get(dtype, AGREES[torch.bfloat16]) * max(scale, 1.0):
        raise InvalidValue(
            f"the exported weights of {type(model).__name__} give logits that differ by {difference:.3g} from the "
            "treated model: how its weights are laid out is not known well enough, so nothing was written."
        )
    return difference


def _put(fresh: Path, target: Path) -> None:
    """The folder in its place, at once; what was there is removed after that."""
    aside = fresh.with_name(fresh.name + ".old")
    if target.exists():
        os.replace(target, aside)
    try:
        os.replace(fresh, target)
    except OSError:
        if aside.exists():
            os.replace(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


# ---------------------------------------------------------------- GGUF


def _gguf(
    target: Path,
    found: Explanation,
    source: str | PathLike[str] | None,
    dtype: torch.dtype | None,
    overwrite: bool,
) -> Exported:
    from undilute.exporting import gguf_file

    if source is None:
        raise InvalidValue(
            "a GGUF file is made from the one that the model came from: give source = its path, or the model's name."
        )
    if found.curve is not None:
        raise InvalidValue("the plan needs a factor that grows with the length, which GGUF export does not write yet.")
    kinds = {None: None, torch.float32: "F32", torch.float16: "F16"}
    if dtype not in kinds:
        raise InvalidValue(
            f"dtype = {dtype}: must be torch.float32, torch.float16, or None for the source's own types."
        )
    written = gguf_file.write(
        gguf_file.source_of(str(source)), target, found.factors, file_type=kinds[dtype], overwrite=overwrite
    )
    notes = [f"The scales of quantised blocks were multiplied; rounding changes them by at most {written.rounded:.2g}."]
    notes += [f"{tensor} is {new} now, not {old}." for tensor, (old, new) in written.requantised.items()]
    return Exported(target, found, notes=tuple(notes if written.scaled else ()))
