"""What happens to a treated model that is saved?  Its rules are kept next to its weights.

``save_pretrained``, and so ``push_to_hub`` and the Trainer's checkpoints, writes the plan that the model follows into
the same folder and a note into its configuration. ``from_pretrained`` reads only weights, so it gives a model without
rules; the note makes it warn, and say how to put them back:

    undilute.apply(model, "folder/undilute_plan.json")

A rule by name (``attn_implementation="undilute:ssmax"``), which transformers does not save either, is noted the same
way. What the rules have learned is in the plan, and also among the weights, where a resumed Trainer finds it; but not
with tensor parallelism, where each process has learned for its own heads. A model without rules is saved as if Undilute
were not there. ``torch.save(model)`` keeps everything by itself.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undilute.errors import InvalidValue
from undilute.models.attention_call import IMPLEMENTATION
from undilute.models.head_rules import ATTRIBUTE, own_rules
from undilute.models.passes import module_of
from undilute.models.watch import implementation
from undilute.treatment.layers import Layer
from undilute.treatment.plan import Assignment, Plan, is_identity

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FILE = "undilute_plan.json"
NOTE = "undilute_plan"


def keep_rules(kind: Any) -> None:
    """Let models of this class save their rules, and say when they are loaded without; once is enough."""
    save, load = kind.save_pretrained, kind.from_pretrained.__func__
    if hasattr(save, NOTE):
        return

    @functools.wraps(save)
    def save_pretrained(model: PreTrainedModel, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        plan, name = plan_in_force(model), implementation(model.config._attn_implementation or "")
        if plan is None and not name.startswith(IMPLEMENTATION):
            return save(model, save_directory, *args, **kwargs)
        is_main = kwargs.get("is_main_process", args[0] if args else True)
        if plan is not None and model.should_save_on_this_rank(is_main):
            _write(plan, Path(save_directory))
        with _noted(model, name if plan is None else FILE):
            return save(model, save_directory, *args, **kwargs)

    @functools.wraps(load)
    def from_pretrained(
        cls: type[PreTrainedModel], pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any
    ) -> Any:
        loaded = load(cls, pretrained_model_name_or_path, *args, **kwargs)
        _say(loaded[0] if isinstance(loaded, tuple) else loaded, str(pretrained_model_name_or_path))
        return loaded

    setattr(save_pretrained, NOTE, True)
    kind.save_pretrained, kind.from_pretrained = save_pretrained, classmethod(from_pretrained)


@contextmanager
def _noted(model: Any, note: str) -> Iterator[None]:
    """Inside, the configuration has the note, and weights that other processes have other values of are left out."""
    ignored = model._keys_to_ignore_on_save
    if (model.tp_size or 1) > 1:
        model._keys_to_ignore_on_save = {*(ignored or ()), *(key for key in model.state_dict() if ATTRIBUTE in key)}
    setattr(model.config, NOTE, note)
    try:
        yield
    finally:
        delattr(model.config, NOTE)
        model._keys_to_ignore_on_save = ignored


def plan_in_force(model: PreTrainedModel) -> Plan | None:
    """The plan that a model follows; None if it has no rules. The model is run only if it does not know its layers."""
    names = {module: name for name, module in model.named_modules()}
    found = {names[module]: rules for module in names if (rules := own_rules(module)) is not None}
    if not found:
        return None
    layers = [Layer(*each) for each in next(iter(found.values())).neighbours]
    heads = {module_of(layer.name): layer.heads for layer in layers}
    if any(heads.get(name) != rules.heads for name, rules in found.items()):  # a part of what was treated
        return Plan.of(model)
    assignments = [
        Assignment(index, heads, rule)
        for index, layer in enumerate(layers)
        if (module := module_of(layer.name)) in found
        for heads, rule in found[module].groups
        if not is_identity(rule)
    ]
    return Plan(type(model).__name__, layers, assignments)


def _write(plan: Plan, folder: Path) -> None:
    """Write the plan; if it cannot be written, say so, and let the weights be saved."""
    try:
        plan.save(folder / FILE)
    except InvalidValue as error:
        warnings.warn(f"the rules of {plan.architecture} are not saved with it: {error}", stacklevel=3)


def _say(model: PreTrainedModel, name: str) -> None:
    """Warn that a model was saved with rules that it does not have, and forget the note."""
    note = getattr(model.config, NOTE, None)
    if note is None:
        return
    delattr(model.config, NOTE)
    if note == implementation(model.config._attn_implementation or ""):
        return
    path = Path(name) / FILE
    how = f"undilute.apply(model, {str(path)!r})" if path.is_file() else f"undilute.apply with {FILE} of {name!r}"
    if str(note).startswith(IMPLEMENTATION):
        how = f"from_pretrained(…, attn_implementation={note!r})"
    warnings.warn(
        f"{type(model).__name__} was saved with attention rules that are not in force now: {how} puts them back.",
        stacklevel=3,
    )
