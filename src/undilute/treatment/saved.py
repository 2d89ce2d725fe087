"""What happens to a treated model that is saved?  Its rules are kept next to its weights.

``save_pretrained``, and so ``push_to_hub`` and the Trainer's checkpoints, writes the plan that the model follows into
the same folder and a note into its configuration. ``from_pretrained`` puts the plan in force again; without undilute
it refuses to load the model, in a sentence that names undilute (``undilute.treatment.loaded``).

A rule by name (``attn_implementation="undilute:ssmax"``), which transformers does not save either, is noted the same
way. What the rules have learned is in the plan, and also among the weights, where a resumed Trainer finds it; but not
with tensor parallelism, where each process has learned for its own heads. A model without rules is saved as if Undilute
were not there; a plan that an earlier one has left in the folder counts no more, because the configuration decides.
``torch.save(model)`` keeps everything by itself.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undilute.errors import InvalidValue
from undilute.models.attention_call import IMPLEMENTATION
from undilute.models.head_rules import ATTRIBUTE, own_rules
from undilute.models.passes import module_of
from undilute.models.read_once import READER
from undilute.models.watch import implementation
from undilute.treatment.layers import Layer
from undilute.treatment.loaded import FILE, NOTE, OWN, SENTENCE, configurations, restore_rules
from undilute.treatment.plan import Plan, assignments_of, rows_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ENTRY = "attn_implementation"  # of config.json


def keep_rules(kind: Any) -> None:
    """Let models of this class save their rules, and have them again when they are loaded; once is enough."""
    save = kind.save_pretrained
    if hasattr(save, NOTE):
        return

    @functools.wraps(save)
    def save_pretrained(model: PreTrainedModel, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        plan = plan_in_force(model)
        is_main = kwargs.get("is_main_process", args[0] if args else True)
        if model.should_save_on_this_rank(is_main):
            if plan is not None:
                _write(plan, Path(save_directory))
            _say_what_is_lost(model, plan)
        with _noted(model, _notes(model, plan)):
            return save(model, save_directory, *args, **kwargs)

    setattr(save_pretrained, NOTE, True)
    kind.save_pretrained = save_pretrained
    restore_rules(kind)


def _notes(model: Any, plan: Plan | None) -> dict[int, str]:
    """What each configuration of the model has to say of its rules, by its id; nothing if the model has none."""
    configs = list(configurations(model.config))
    if plan is not None:
        return dict.fromkeys(map(id, configs), FILE)
    names = {id(config): implementation(config._attn_implementation or "") for config in configs}
    if not any(name.startswith(IMPLEMENTATION) for name in names.values()):
        return {}
    return {key: name if name.startswith(IMPLEMENTATION) else OWN for key, name in names.items()}


@contextmanager
def _noted(model: Any, notes: Mapping[int, str]) -> Iterator[None]:
    """Inside, configurations have their notes, and weights that other processes have other values of are left out."""
    ignored = model._keys_to_ignore_on_save
    if (model.tp_size or 1) > 1:
        model._keys_to_ignore_on_save = {*(ignored or ()), *(key for key in model.state_dict() if ATTRIBUTE in key)}
    held = [config.__dict__ for config in configurations(model.config)]
    before = [{key: each[key] for key in (NOTE, ENTRY) if key in each} for each in held]
    for config in configurations(model.config):
        config.__dict__.pop(NOTE, None)  # of a model that was loaded without its rules
        if id(config) in notes:
            config.__dict__.update({NOTE: notes[id(config)], ENTRY: SENTENCE})
    try:
        yield
    finally:
        for each, values in zip(held, before, strict=True):
            for key in (NOTE, ENTRY):
                each.pop(key, None)
            each.update(values)
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
        each
        for index, layer in enumerate(layers)
        if (module := module_of(layer.name)) in found
        for each in assignments_of(index, found[module])
    ]
    return Plan(type(model).__name__, layers, assignments, rows=rows_of(rules.rows for rules in found.values()))


def _write(plan: Plan, folder: Path) -> None:
    """Write the plan; if it cannot be written, say so, and let the weights be saved."""
    try:
        plan.save(folder / FILE)
    except InvalidValue as error:
        (folder / FILE).unlink(missing_ok=True)  # of an earlier save
        warnings.warn(f"the rules of {plan.architecture} are not saved with it: {error}", stacklevel=3)


def _say_what_is_lost(model: Any, plan: Plan | None) -> None:
    """Warn of what is in force and does not come back with the model."""
    kind = type(model).__name__
    if READER in model.__dict__:
        warnings.warn(
            f"{kind} is saved without its reading, the selection of what it reads: undilute.reading puts it in force "
            "again.",
            stacklevel=3,
        )
    if plan is not None and getattr(model, "_hf_peft_config_loaded", False):
        warnings.warn(
            f"only the adapter of {kind} is saved, and {FILE} with its rules: undilute.apply(model, …) puts them in "
            "force again.",
            stacklevel=3,
        )
