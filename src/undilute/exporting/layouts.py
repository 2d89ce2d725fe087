"""Where in a model's weights do the queries of a head come from, and where does its output go?

β · (q·k) = (β·q)·k, and rotary positions turn β·q as they turn q: so β goes into the rows of the query projection that
make the head's queries. A gain goes into the columns of the output projection that read the head. A norm of queries
undoes β in the projection, but its own weight can hold it. One line of ``LAYOUTS`` for each way to lay weights out;
whatever a line gets wrong shows when the exported model is compared with the treated one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from undilute.errors import InvalidValue
from undilute.exporting.factors import Factors
from undilute.models.attention_call import AttentionCall
from undilute.models.passes import module_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Layout(NamedTuple):
    """How an attention module calls its projections, and the order of what the first one makes.

    ``query`` and ``output`` are attributes of the module, or of the module around it if they begin with "..".
    ``order`` is "alone" if the query projection makes nothing else, "first" if queries come before keys and values, and
    "by head" if queries, keys and values of the first head come before those of the second.
    """

    query: str
    output: str
    order: Literal["alone", "first", "by head"]


LAYOUTS = (
    Layout("q_proj", "o_proj", "alone"),  # Llama, Mistral, Qwen, Gemma, OLMo, Cohere, StableLM, gpt-oss, …
    Layout("q_proj", "out_proj", "alone"),  # OPT
    Layout("q_proj", "dense", "alone"),  # Phi
    Layout("q_b_proj", "o_proj", "alone"),  # DeepSeek
    Layout("qkv_proj", "o_proj", "first"),  # Phi-3
    Layout("c_attn", "c_proj", "first"),  # GPT-2
    Layout("query_key_value", "dense", "by head"),  # GPT-NeoX, Persimmon
    Layout("query", "..output.dense", "alone"),  # BERT
)
QUERY_NORMS = ("q_norm", "q_layernorm", "query_layernorm", "query_norm", "qk_norm")
OUTPUT_NORMS = ("attn_sub_norm", "inner_attn_ln", "attn_norm", "out_norm", "o_norm")


@dataclass(frozen=True)
class Fold:
    """A parameter whose rows or columns belong to heads.

    Attributes
    ----------
    name : of the parameter in the model
    axis : along which heads lie
    places : (heads, features), which entries along the axis belong to each head
    offset : what its use adds to it: 1 for norms that multiply by 1 + w
    """

    name: str
    axis: int
    places: Tensor
    offset: float = 0.0

    def times(self, weight: Tensor, factors: Sequence[float]) -> Tensor:
        """The parameter with each head's part multiplied by its factor."""
        along = torch.ones(weight.shape[self.axis], dtype=torch.float64, device=weight.device)
        along[self.places.to(weight.device)] = torch.tensor(factors, dtype=torch.float64, device=weight.device)[:, None]
        shape = [-1 if axis == self.axis else 1 for axis in range(weight.dim())]
        return (weight.double() + self.offset) * along.view(shape) - self.offset


@dataclass(frozen=True)
class Place:
    """Where the factors of a layer go.

    Attributes
    ----------
    name : of the attention module
    logits, outputs : what to multiply for β, and for gains
    way : where β goes, in a word
    no_logits, no_outputs : why β, or a gain, has no place; None if it has one
    same_logits : why β must be the same for all heads; None if it need not be
    """

    name: str
    logits: tuple[Fold, ...] = ()
    outputs: tuple[Fold, ...] = ()
    way: str = "W_Q"
    no_logits: str | None = None
    no_outputs: str | None = None
    same_logits: str | None = None


def places(model: PreTrainedModel, calls: Mapping[str, AttentionCall]) -> dict[str, Place]:
    """Where the factors of each attention module go, by the module's name."""
    modules = {module_of(name): call for name, call in calls.items()}
    return {name: _place(model, name, call) for name, call in modules.items()}


def folded(model: PreTrainedModel, found: Mapping[str, Place], factors: Iterable[Factors]) -> dict[str, Tensor]:
    """The parameters that change, by name, in their dtype; the model keeps its own.

    A parameter that several modules share gets the factors of all of them, so they must agree.
    """
    owners: dict[int, tuple[str, tuple[float, ...]]] = {}
    own = dict(model.named_parameters(remove_duplicate=False))
    made: dict[str, Tensor] = {}
    for each in {factor.name: factor for factor in factors}.values():
        place = found[each.name]
        for folds, values in ((place.logits, each.logits), (place.outputs, each.outputs)):
            for fold in folds if set(values) != {1.0} else ():
                parameter = own[fold.name]
                made[fold.name] = fold.times(made.get(fold.name, parameter.detach()), values)
                owners[id(parameter)] = (fold.name, values)
    _check_shared(own, made)
    return {name: value.to(own[name].dtype) for name, value in made.items()}


def _check_shared(own: Mapping[str, nn.Parameter], made: Mapping[str, Tensor]) -> None:
    """Raise if a parameter has several names, and is not to become the same under all of them."""
    names: dict[int, list[str]] = {}
    for name, parameter in own.items():
        names.setdefault(id(parameter), []).append(name)
    for shared in names.values():
        changed = [made.get(name) for name in shared]
        if len(shared) > 1 and any(each is not None for each in changed):
            first = changed[0]
            if first is None or not all(each is not None and torch.equal(first, each) for each in changed):
                raise InvalidValue(
                    f"{shared[0]} and {shared[1]} are one weight, and the plan needs different ones: give the heads of "
                    "both layers the same rules, or untie them first."
                )


def _place(model: PreTrainedModel, name: str, call: AttentionCall) -> Place:
    """Where the factors of one module go."""
    heads, features, of_values = call.query.shape[1], call.query.shape[-1], call.value.shape[-1]
    around = model.get_submodule(name.rpartition(".")[0])
    for layout in LAYOUTS:
        query, output = (_found(each, call.module, around, name) for each in (layout.query, layout.output))
        if query is not None and output is not None:
            break
    else:
        why = f"the layout of {type(call.module).__name__} is not known: it has none of " + ", ".join(
            f"{each.query}/{each.output}" for each in LAYOUTS
        )
        return Place(name, no_logits=why, no_outputs=why)
    logits, way, why_not, same = _queries(layout, query, call, name, heads, features)
    outputs, no_outputs = _outputs(output, call, heads, of_values)
    return Place(name, logits, outputs, way, _bent(call) or why_not, no_outputs, same)


def _found(path: str, module: nn.Module, around: nn.Module, name: str) -> tuple[str, nn.Module] | None:
    """The name and the module of a projection; None if there is none."""
    start, base = (around, name.rpartition(".")[0]) if path.startswith("..") else (module, name)
    path = path.removeprefix("..")
    for part in path.split("."):
        start = getattr(start, part, None)  # type: ignore[assignment]
        if not isinstance(start, nn.Module):
            return None
    return f"{base}.{path}" if base else path, start


Found = tuple[str, nn.Module]


def _queries(
    layout: Layout, query: Found, call: AttentionCall, name: str, heads: int, features: int
) -> tuple[tuple[Fold, ...], str, str | None, str | None]:
    """What to multiply for β, where that is, why it cannot be done, and why it must be the same for all heads."""
    norm = next((each for each in QUERY_NORMS if isinstance(getattr(call.module, each, None), nn.Module)), None)
    if norm is not None and not isinstance(getattr(call.module, norm), nn.Identity):
        return _normed(f"{name}.{norm}", getattr(call.module, norm), heads, features)
    axis, size = _laid_out(query[1])
    per_head = {"alone": features, "first": features, "by head": size // heads}[layout.order]
    starts = torch.arange(heads)[:, None] * per_head
    rows = starts + torch.arange(features)
    if size != heads * features if layout.order == "alone" else size <= heads * features:
        why = f"{query[0]} makes {size:,} features, not {heads} heads of {features}, so which are queries is not known"
        return (), "", why, None
    return _folds(query, axis, rows), "W_Q", None, None


def _normed(
    name: str, norm: nn.Module, heads: int, features: int
) -> tuple[tuple[Fold, ...], str, str | None, str | None]:
    """β in the weight of a norm of the queries."""
    weight = getattr(norm, "weight", None)
    size = weight.numel() if isinstance(weight, Tensor) else 0
    if size not in (features, heads * features) or not isinstance(weight, Tensor) or weight.dim() != 1:
        return (), "", f"{type(norm).__name__} norms the queries after their projection, which undoes β there", None
    offset = _offset(norm, weight)
    if size == features and heads > 1:
        rows = torch.arange(features).expand(heads, -1)
        why = f"{type(norm).__name__} norms the queries after their projection, with one weight for all heads"
        return _folds((name, norm), 0, rows, offset), "q_norm", None, why
    return _folds((name, norm), 0, torch.arange(size).view(heads, features), offset), "q_norm", None, None


def _offset(norm: nn.Module, weight: Tensor) -> float:
    """1 if the norm multiplies by 1 + its weight, as Gemma's does; 0 if by its weight."""
    at_zero = {key: torch.zeros_like(value) for key, value in norm.state_dict().items()}
    with torch.no_grad():
        return 1.0 if functional_call(norm, at_zero, (torch.ones_like(weight)[None],)).abs().max() > 0.5 else 0.0


def _outputs(output: Found, call: AttentionCall, heads: int, features: int) -> tuple[tuple[Fold, ...], str | None]:
    """What to multiply for gains, and why that cannot be done."""
    if between := next(
        (each for each in OUTPUT_NORMS if isinstance(getattr(call.module, each, None), nn.Module)), None
    ):
        return (), f"{between} of {type(call.module).__name__} norms the heads' outputs, which undoes a gain"
    axis, _ = _laid_out(output[1])
    weight = output[1].get_parameter("weight")
    if weight.shape[1 - axis] != heads * features:
        return (), f"{output[0]} reads {weight.shape[1 - axis]:,} features, not {heads} heads of {features}"
    return (Fold(f"{output[0]}.weight", 1 - axis, torch.arange(heads * features).view(heads, features)),), None


def _bent(call: AttentionCall) -> str | None:
    """Why a factor on the queries is no factor on the logits."""
    name = type(call.module).__name__
    if call.options.get("softcap") is not None:
        return f"{name} caps its logits softly after the product of queries and keys, which bends β"
    mask = call.mask
    if isinstance(mask, Tensor) and mask.is_floating_point() and bool(((mask != 0) & (mask > -1e3)).any()):
        return f"{name} adds position biases to its logits, which β in the queries does not multiply"
    return None


def _laid_out(projection: nn.Module) -> tuple[int, int]:
    """The axis of a projection's weight along which its output lies, and how long that is."""
    axis = 1 if type(projection).__name__ == "Conv1D" else 0
    return axis, projection.get_parameter("weight").shape[axis]


def _folds(found: Found, axis: int, rows: Tensor, offset: float = 0.0) -> tuple[Fold, ...]:
    """A projection's or norm's weight, and its bias if it has one."""
    name, module = found
    folds = [Fold(f"{name}.weight", axis, rows, offset)]
    if getattr(module, "bias", None) is not None:
        folds.append(Fold(f"{name}.bias", 0, rows))
    return tuple(folds)
