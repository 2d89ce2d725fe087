"""What must a plan's file hold?  Each entry with its kind; the first that is wrong is named."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from undilute.errors import InvalidValue, MissingExtra
from undilute.rules.parameters import shown

KINDS = {  # by what pydantic calls the error
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": "a list",
    "too_short": "a list of at least one",
    "dict_type": "an object",
    "model_type": "an object",
}


@cache
def _form() -> Any:
    """What a plan's file must hold."""
    try:
        from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr
    except ModuleNotFoundError:
        raise MissingExtra("pydantic", "models") from None

    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)

    class LayerForm(Strict):
        name: str
        heads: int

    class AssignmentForm(Strict):
        heads: list[int] = Field(min_length=1)
        rule: dict[str, Any]
        layer: StrictInt | StrictStr = Field(default=None)  # type: ignore[assignment]  # its name may be enough
        name: str | None = None
        gains: list[float] | None = None

    class PlanForm(Strict):
        architecture: str
        layers: list[LayerForm]
        assignments: list[AssignmentForm]
        made: dict[str, Any] = Field(default_factory=dict)
        rows: str = "all"

    return PlanForm


def checked(content: Mapping[str, Any]) -> Any:
    """The entries of a plan, each of its kind; the first that is not is named."""
    from pydantic import ValidationError

    try:
        return _form().model_validate(content)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
    where = ""
    for step in wrong["loc"]:
        where += f"[{step}]" if isinstance(step, int) else "" if step in ("int", "str") else f".{step}"
    if wrong["type"] == "missing":
        raise InvalidValue(f"its {where[1:]!r} is missing: a plan must have it, as plan.save writes it.")
    must = "a whole number, or the layer's name" if where.endswith(".layer") else KINDS.get(wrong["type"], wrong["msg"])
    raise InvalidValue(f"its {where[1:]!r} is {shown(wrong['input'])}: must be {must}.")
