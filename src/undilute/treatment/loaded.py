"""How does a saved model get its rules back?  ``from_pretrained`` puts them in force, if undilute is imported.

The configuration of a saved model says that it had rules, in two entries:

    undilute_plan         where they are: the name of the plan's file, or of a rule, such as "undilute:ssmax"
    attn_implementation   a sentence that asks for undilute, where the name of an implementation should be

transformers knows no implementation of that name. Without undilute it refuses to make the model, and its error quotes
the sentence: nobody loses the rules unawares. With undilute the sentence means what the first entry says. Parts of a
model with configurations of their own (``text_config``) have both entries too.

    model = AutoModelForCausalLM.from_pretrained("folder")              # with its rules
    undilute.treatment.in_force(model).undo()                           # without them
    AutoModelForCausalLM.from_pretrained("folder", attn_implementation="sdpa")    # without them, and a warning

Another ``attn_implementation`` replaces the sentence, with undilute or without: whoever gives one has decided. A plan
is JSON, and nothing in it is run. What was learned comes back as constants: ``apply(model, plan, learn=…)`` goes on
learning.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undilute.errors import InvalidValue, UndiluteError, UnknownName
from undilute.models.attention_call import IMPLEMENTATION
from undilute.models.head_rules import ATTRIBUTE
from undilute.models.passes import module_of
from undilute.models.reasons import one_line
from undilute.models.watch import implementation
from undilute.rules import registry
from undilute.rules.parameters import shown
from undilute.treatment.apply import apply
from undilute.treatment.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from undilute.treatment.kinds.rules import Treated

FILE = "undilute_plan.json"
NOTE = "undilute_plan"
OWN = "softmax"  # the note of a part of a model that has no rule, next to one that has
ASKED = "undilute ("  # how the sentence begins, whatever the version that wrote it
SENTENCE = (  # without a slash, which would make it a kernel of the hub, and without quotes
    ASKED + "the model was saved with attention rules of the package undilute and is another model without them: "
    "pip install undilute, and import undilute before from_pretrained)"
)
WITHOUT = "from_pretrained(…, attn_implementation='sdpa') loads the model without them"
FROM_THE_HUB = ("cache_dir", "force_download", "proxies", "local_files_only", "token", "revision", "subfolder")
LEARNED = rf"(^|\.){ATTRIBUTE}\."  # what the plan has is no unexpected weight
_IN_FORCE = "_undilute_in_force"
_loading: ContextVar[list[Any] | None] = ContextVar("undilute_loading", default=None)  # configurations with a plan


def in_force(model: PreTrainedModel) -> Treated | None:
    """The rules that ``from_pretrained`` has put in force: ``undo()`` ends them.

    Parameters
    ----------
    model : a model that ``from_pretrained`` returned

    Returns
    -------
    None if it was saved without rules, or with one by its name, which ``model.set_attn_implementation("sdpa")`` ends

    Examples
    --------
    >>> import tempfile, torch, transformers, undilute as ud
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1)
    >>> model, ids = transformers.GPT2LMHeadModel(config).eval(), torch.arange(20)[None]
    >>> with ud.apply(model, "ssmax"), tempfile.TemporaryDirectory() as folder:
    ...     model.save_pretrained(folder)
    ...     loaded = transformers.GPT2LMHeadModel.from_pretrained(folder)
    ...     torch.equal(loaded(ids).logits, model(ids).logits)
    True
    >>> ud.treatment.in_force(loaded).undo()
    >>> torch.equal(loaded(ids).logits, model(ids).logits)
    True
    """
    found: Treated | None = model.__dict__.get(_IN_FORCE)
    return found


def restore_rules(kind: Any) -> None:
    """Let ``from_pretrained`` of this class put saved rules in force, and no model be made that has lost its own."""
    load, choose = kind.from_pretrained.__func__, kind.get_correct_attn_implementation

    @functools.wraps(load)
    def from_pretrained(
        cls: type[PreTrainedModel], pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any
    ) -> Any:
        hub = {name: kwargs[name] for name in FROM_THE_HUB if name in kwargs}
        planned: list[Any] | None = None if pretrained_model_name_or_path is None else []
        token = _loading.set(planned)
        try:
            loaded = load(cls, pretrained_model_name_or_path, *args, **kwargs)
        finally:
            _loading.reset(token)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        note = _taken_out(model)
        if planned:
            _put_in_force(model, pretrained_model_name_or_path, hub)
        elif note is not None:
            _say(model, note, str(pretrained_model_name_or_path))
        return loaded

    @functools.wraps(choose)
    def get_correct_attn_implementation(
        self: PreTrainedModel, requested_attention: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if _is_sentence(requested_attention):
            requested_attention = _meant(self)
        return choose(self, requested_attention, *args, **kwargs)

    kind.from_pretrained = classmethod(from_pretrained)
    kind.get_correct_attn_implementation = get_correct_attn_implementation


def configurations(config: Any) -> Iterator[Any]:
    """A configuration and those within it."""
    yield config
    for key in config.sub_configs:
        if (within := getattr(config, key, None)) is not None:
            yield from configurations(within)


def _is_sentence(name: object) -> bool:
    return isinstance(name, str) and name.startswith(ASKED)


def _meant(model: Any) -> str | None:
    """The implementation that the sentence means in a model which is being made; None is transformers' choice."""
    note, kind = model.config.__dict__.get(NOTE), type(model).__name__
    if note == OWN:
        return None
    if isinstance(note, str) and note.startswith(IMPLEMENTATION):
        try:
            registry.preset(note.removeprefix(IMPLEMENTATION))
        except UndiluteError as error:
            raise _refusal(kind, error) from None
        return note
    if note != FILE:
        must = f"must be {FILE!r} or a rule's name, such as {IMPLEMENTATION + 'ssmax'!r}"
        raise _refusal(kind, InvalidValue(f"{NOTE!r} of its configuration is {shown(note)}: {must}."))
    planned = _loading.get()
    if planned is None:
        raise InvalidValue(
            f"the configuration of this {kind} is of a model with attention rules, which only from_pretrained puts in "
            "force: load the model with it, or give attn_implementation = 'sdpa' for one without rules."
        )
    planned.append(model.config)
    model._keys_to_ignore_on_load_unexpected = {*(model._keys_to_ignore_on_load_unexpected or ()), LEARNED}
    return None


def _taken_out(model: Any) -> Any:
    """The note in a model's configuration. The model is then as if there had been neither note nor sentence."""
    note = model.config.__dict__.get(NOTE)
    for config in configurations(model.config):
        config.__dict__.pop(NOTE, None)
        if _is_sentence(config._attn_implementation):  # of a part that was not made
            config._attn_implementation_internal = None
    for part in model.modules():
        if ignored := vars(part).get("_keys_to_ignore_on_load_unexpected"):
            ignored.discard(LEARNED)
    return note


def _put_in_force(model: Any, name: Any, hub: Mapping[str, Any]) -> None:
    """Apply the plan that lies next to the weights; an error if it cannot be."""
    source = model.config.name_or_path or name  # not the name of an adapter, but of what it adapts
    try:
        path = _found(source, hub if str(source) == str(name) else {**hub, "revision": None})
        model.__dict__[_IN_FORCE] = apply(model, _renamed(Plan.load(path), model))
    except UndiluteError as error:
        raise _refusal(str(source), error) from None


def _found(source: Any, hub: Mapping[str, Any]) -> Path:
    """The plan's file in a folder, or in a repository of the hub as ``from_pretrained`` was told to read it."""
    from transformers.utils.hub import cached_file

    try:
        path = cached_file(source, FILE, _raise_exceptions_for_missing_entries=False, **hub)
    except (OSError, ValueError) as error:
        raise InvalidValue(f"{FILE} is not to be had ({one_line(error)}).") from None
    if path is None:
        raise InvalidValue(f"there is no {FILE} next to the weights.")
    return Path(path)


def _renamed(plan: Plan, model: Any) -> Plan:
    """The plan for the same layers in a model with another head, or without one; as it is if there is no such model.

    AutoModel drops the head of ``LlamaForCausalLM``, and ``model.layers.0`` is ``layers.0`` then.
    """
    kind, prefix = type(model).__name__, f"{model.base_model_prefix}."
    if plan.architecture == kind:
        return plan
    modules = {name for name, _ in model.named_modules()}
    for old, new in (("", ""), (prefix, ""), ("", prefix)):
        layers = [replace(layer, name=new + layer.name.removeprefix(old)) for layer in plan.layers]
        if all(module_of(layer.name) in modules for layer in layers):
            return replace(plan, architecture=kind, layers=layers)
    return plan


def _refusal(whose: str, why: UndiluteError) -> InvalidValue:
    """The error of rules that cannot be put in force."""
    reason, is_unknown = str(why).rstrip(".?"), any(isinstance(each, UnknownName) for each in (why, why.__context__))
    own = "; a rule of your own must be imported first" if is_unknown else ""
    return InvalidValue(f"the attention rules of {whose!r} cannot be put in force: {reason}{own}; {WITHOUT}.")


def _say(model: PreTrainedModel, note: Any, name: str) -> None:
    """Warn that a model was saved with rules that it does not have, because another implementation was asked for."""
    if note in (OWN, implementation(model.config._attn_implementation or "")):
        return
    path = Path(name) / FILE
    how = f"undilute.apply(model, {str(path)!r})" if path.is_file() else f"undilute.apply with {FILE} of {name!r}"
    if str(note).startswith(IMPLEMENTATION):
        how = f"from_pretrained(…, attn_implementation={note!r})"
    warnings.warn(
        f"{type(model).__name__} was saved with attention rules that are not in force now: {how} puts them back.",
        stacklevel=3,
    )
