"""How does a treatment enter a model?  In place, whatever its kind, and it is undone on exit.

    with undilute.apply(model, "adaptive"):
        model.generate(...)
    undilute.apply(model, {"layers.12.*": "ssmax", "layers.*.heads.3": "top-k"})
    undilute.apply(model, ["ssmax", Muted([3, 4])])    # one after the other, undone in reverse

A treatment is anything that can enter a model, or what the model reads, and leave it again: an object with a ``label``
and a method ``enter(model)``.

    class Muted:
        label = "muted heads"

        def enter(self, model):
            handle = model.register_forward_pre_hook(...)
            return undilute.treatment.InForce(handle.remove)

A kind of treatment is a file in ``undilute/treatment/kinds``, or in the user's own program: a class like this one and,
if it has a short form that users can type, a function that reads it (:func:`kind`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, overload, runtime_checkable

from undilute.errors import InvalidValue

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from undilute.rules.base import Map, Rule, Scale
    from undilute.treatment.kinds.gains import Gains
    from undilute.treatment.kinds.rules import Treated
    from undilute.treatment.plan import Plan

    RuleLike: TypeAlias = str | Rule | Map | Scale
    RulesLike: TypeAlias = RuleLike | Mapping[str, RuleLike] | Plan | PathLike[str] | Gains


class InForce(AbstractContextManager["InForce"]):
    """A treatment in force. Leave it as a context, or call ``undo()``; or keep it for good.

    Parameters
    ----------
    undo : puts the model back as it was before; called at most once
    summary : what is in force, in one sentence
    """

    def __init__(self, undo: Callable[[], object], summary: str = "") -> None:
        self._undo: Callable[[], object] | None = undo
        self.summary = summary

    def undo(self) -> None:
        """Put the model back as it was before; calling it again does nothing."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


@runtime_checkable
class Treatment(Protocol):
    """Anything that can enter a model, or what it reads, and leave it again."""

    @property
    def label(self) -> str:
        """What it is, in a few words, for tables and charts."""

    def enter(self, model: PreTrainedModel) -> InForce:
        """Put it in force at once; an error, and nothing changed, if the model cannot have it."""


class Several:
    """Treatments that are entered in order and undone in reverse."""

    def __init__(self, parts: Sequence[Treatment]) -> None:
        self.parts = parts
        self.label = " + ".join(each.label for each in parts)

    def enter(self, model: PreTrainedModel) -> InForce:
        """All of them, or none if one of them fails."""
        begun: list[InForce] = []

        def undo() -> None:
            while begun:
                begun[-1].undo()
                begun.pop()

        try:
            for each in self.parts:
                begun.append(entered(each, model))
        except BaseException:
            undo()
            raise
        return InForce(
            undo, " Then: ".join(now.summary or each.label for now, each in zip(begun, self.parts, strict=True))
        )


def entered(treatment: Treatment, model: PreTrainedModel) -> InForce:
    """The treatment in force; an error if ``enter`` returns what may not be in force, or cannot be undone."""
    now: object = treatment.enter(model)
    if not isinstance(now, InForce):
        raise InvalidValue(
            f"enter of {treatment.label} returned a {type(now).__name__}: must put the treatment in force and return "
            "undilute.treatment.InForce(undo)."
        )
    return now


Reader = Callable[[Any], Treatment | None]
_readers: dict[str, Reader] = {}


def kind(name: str) -> Callable[[Reader], Reader]:
    """Decorator: let everything that takes a treatment understand what this function reads.

    Parameters
    ----------
    name : of the kind

    Returns
    -------
    a decorator for ``read(given) → Treatment``, which returns None for whatever is of another kind
    """

    def add(read: Reader) -> Reader:
        _readers[name] = read
        return read

    return add


def get(given: Any) -> Treatment:
    """The treatment that is meant: an object that is one, a list of several, or what a kind reads.

    Examples
    --------
    >>> get({"layers.12.*": "ssmax"}).label, get(["ssmax", "top-k"]).label
    ('ssmax for layers.12.*', 'ssmax + top-k')
    """
    from undilute.treatment import kinds

    if isinstance(given, Treatment) and not isinstance(given, type):
        return given
    if isinstance(given, list | tuple):
        if not given:
            raise InvalidValue("the treatment is an empty list: must hold at least one.")
        return Several([get(each) for each in given])
    for module in pkgutil.iter_modules(kinds.__path__):
        importlib.import_module(f"{kinds.__name__}.{module.name}")
    for read in reversed(_readers.values()):  # rules, which take any text, are the first of all and asked last
        if (found := read(given)) is not None:
            return found
    raise InvalidValue(
        f"treatment = {given!r}: must be a rule, {{pattern: rule}}, a plan or the path of one, an object with a label "
        "and enter(model), or a list of these."
    )


@overload
def apply(model: PreTrainedModel, treatment: RulesLike, *, learn: Sequence[str] = ()) -> Treated: ...
@overload
def apply(model: PreTrainedModel, treatment: Treatment | Sequence[Any]) -> InForce: ...


def apply(model: PreTrainedModel, treatment: Any, *, learn: Sequence[str] = ()) -> InForce:
    """Treat a Hugging Face model, in place, until the context is left or for good.

    Parameters
    ----------
    model : a causal language model or encoder whose attention goes through ``AttentionInterface``; with or without
        cache, padding, grouped heads, sliding windows, soft caps; in training too
    treatment : a rule (name or object) for every head; ``{pattern: rule}`` for some, where a later pattern wins (see
        ``undilute.treatment.layers``); a :class:`Plan`, or the path of one; any object with a ``label`` and
        ``enter(model)``; or a list of these, entered in order. Heads without a rule keep their softmax
    learn : names of rules' parameters to learn, such as ``("s",)`` for SSMax: each head and layer gets its own, as a
        parameter of the model that starts at the rule's value. ``"gain"`` learns a factor on each head's output

    Returns
    -------
    Treated
        A context manager; the treatment is in force at once, so the result may also be ignored. ``undo()`` ends it.
        Undo treatments of the same layers in reverse order. Treatments other than rules give an :class:`InForce`,
        which only has ``undo()``.

    Notes
    -----
    ``torch.save(model)`` keeps rules. ``save_pretrained`` writes their plan next to the weights, and
    ``from_pretrained`` puts it in force again. Without undilute it refuses, in a sentence that names undilute
    (``undilute.treatment.loaded``). A treatment ends when the model is given another ``attn_implementation``. Do not
    begin or end one while another thread runs the model.

    With tensor parallelism heads keep their numbers in the whole model; every process must apply the same treatment.
    For data-parallel training apply learned rules first, then wrap the model.

    Examples
    --------
    >>> import torch, transformers, undilute as ud
    >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=1)
    >>> model = transformers.GPT2LMHeadModel(config).eval()
    >>> ids = torch.arange(20)[None]
    >>> before = model(ids).logits
    >>> with ud.apply(model, "ssmax"):
    ...     torch.equal(model(ids).logits, before)
    False
    >>> torch.equal(model(ids).logits, before)
    True
    """
    from undilute.treatment.kinds.gains import Gains
    from undilute.treatment.kinds.rules import Rules

    found = get(treatment)
    if isinstance(found, Rules | Gains):
        return found.enter(model, learn)
    if learn:
        raise InvalidValue(f"learn = {learn!r}: only rules have parameters to learn, not {found.label}.")
    return entered(found, model)
