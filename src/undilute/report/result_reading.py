"""Which JSON is a result?  Pydantic reads it by the classes of result.py: every field must be there, and no other.

The annotations of these classes are taken in the sense of JSON: a ``float`` is a number that stays an int if it is one,
or null, which stands for NaN; a ``Sequence`` is a list; ``Any`` is a setting, whose lists are tuples.
"""

from __future__ import annotations

import math
import sys
from typing import Annotated, Any, get_type_hints

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    PlainValidator,
    StrictBool,
    Tag,
    TypeAdapter,
    ValidationError,
    create_model,
)

from undilute.errors import InvalidValue
from undilute.report.result import Chart, Comparison, HeatMap, Result, Series

LARGEST = sys.float_info.max
WANTED = {"bool_type": "true or false", "list_type": "a list", "dict_type": "an object", "model_type": "an object"}


def read(content: object) -> Result:
    """The result that is in JSON's types; an error in one sentence names the first place that is wrong."""
    try:
        made: Result = RESULT.validate_python(content)
    except ValidationError as error:
        raise _explained(error, content) from None
    except RecursionError:
        raise InvalidValue("it is nested too deeply: it cannot have been written by undilute.") from None
    return made


def _explained(error: ValidationError, content: Any) -> InvalidValue:
    first = error.errors(include_url=False)[0]
    where, here = "result", content
    for part in first["loc"]:  # between the names there are pydantic's own for the kinds that were tried
        if isinstance(here, list) and isinstance(part, int):
            where, here = f"{where}[{part}]", here[part]
        elif isinstance(here, dict) and part in here:
            where, here = f"{where}.{part}", here[part]
    context = first.get("ctx", {})
    if isinstance(context.get("error"), InvalidValue):
        return InvalidValue(str(context["error"]))
    kind = first["type"]
    if kind == "extra_forbidden":
        return InvalidValue(f"its {where} is unknown: remove it.")
    if kind == "missing":
        wanted = f"an object with {first['loc'][-1]!r}"
    elif kind == "literal_error":
        wanted = f"one of {context['expected']}"
    else:
        wanted = WANTED.get(kind) or str(context.get("error") or f"readable ({first['msg']})")
    shown = repr(first["input"])
    return InvalidValue(f"its {where} is {shown if len(shown) < 60 else f'{shown[:60]} …'}: must be {wanted}.")


# ---------------------------------------------------------------- kinds of values; what a ValueError says, it must be


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text")
    return value


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
        raise ValueError("a number that a float can hold")
    return value


def _base(value: Any) -> int:
    if value not in (0, 2, 10):
        raise ValueError("0, 2 or 10")
    return int(value)


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        raise ValueError("one value")
    return value if value is None or isinstance(value, str | bool) else _number(value)


def _setting(value: Any) -> Any:
    return tuple(map(_setting, value)) if isinstance(value, list) else value


def _even(series: Series) -> Series:
    columns = [each for each in (series.y, series.low, series.high, series.boxes) if each is not None]
    if any(len(each) != len(series.x) for each in columns) or any(len(box) != 5 for box in series.boxes or ()):
        raise ValueError("a series of columns of equal length, and boxes of five numbers")
    return series


# ---------------------------------------------------------------- the classes of result.py

Text = Annotated[str, PlainValidator(_text)]
KINDS: dict[str, Any] = {
    "str": Text,
    "float": Annotated[float, PlainValidator(_number)],
    "int": Annotated[int, PlainValidator(_base)],  # the only ones are bases of axes
    "bool": StrictBool,
    "Any": Annotated[Any, PlainValidator(_setting)],
    "Row": dict[Text, Annotated[Any, PlainValidator(_cell)]],
    "Sequence": list,
    "Mapping": dict,
}


def _kind(cls: type, *checks: Any, **others: Any) -> Any:
    """What pydantic needs to know to read an object of a class, by its annotations."""
    hints = get_type_hints(cls, localns=KINDS | others, include_extras=True)
    fields: dict[str, Any] = {name: (hint, ...) for name, hint in hints.items()}
    model = create_model(cls.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    made = AfterValidator(lambda values: cls(**{name: getattr(values, name) for name in hints}))
    return Annotated[model, made, *checks]


def _drawn_as(value: Any) -> str:
    """A heat map has values, a chart has none."""
    return "heat map" if isinstance(value, dict) and "values" in value else "chart"


CHART = _kind(Chart, Tag("chart"), Series=_kind(Series, AfterValidator(_even)))
PICTURE: Any = Annotated[CHART | _kind(HeatMap, Tag("heat map")), Discriminator(_drawn_as)]
RESULT: TypeAdapter[Any] = TypeAdapter(_kind(Result, Comparison=_kind(Comparison), Chart=PICTURE, HeatMap=PICTURE))
