"""Whether a value that came as JSON is of a field's type: what was received is trusted no further.

fits = checks_of(Step)              # once, by field
fits["step"](True)                  # False: a bool is no int
"""

import math
import types
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Union, get_args, get_origin, get_type_hints

Check = Callable[[Any], bool]
LARGEST = 2**63  # of a whole number
LARGEST_FLOAT = 1e100  # sums and products of such are still finite
TEXT_CHARACTERS = 1 << 18
ITEMS = 1 << 18  # of a list or dict


class EventFault(ValueError):
    """An event that is not what it says it is, or not its rank's to send. str() is one line that begins with "it"."""


def checks_of(kind: type) -> dict[str, Check]:
    """For each field of the dataclass, whether a value is of its type."""
    hints = get_type_hints(kind)
    return {field.name: _check_of(hints[field.name]) for field in fields(kind)}


def _check_of(hint: Any) -> Check:
    """For int, float, str, bool, None, unions, and lists and dicts of them."""
    if get_origin(hint) in (Union, types.UnionType):
        options = [_check_of(option) for option in get_args(hint)]
        return lambda value: any(option(value) for option in options)
    if get_origin(hint) is list:
        (item,) = map(_check_of, get_args(hint))
        return lambda value: type(value) is list and len(value) <= ITEMS and all(map(item, value))
    if get_origin(hint) is dict:
        key, item = map(_check_of, get_args(hint))
        return lambda value: (
            type(value) is dict and len(value) <= ITEMS and all(map(key, value)) and all(map(item, value.values()))
        )
    return _SIMPLE[hint]


def _is_int(value: Any) -> bool:
    return type(value) is int and -LARGEST < value < LARGEST


def _is_float(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value) and -LARGEST_FLOAT < value < LARGEST_FLOAT
    return _is_int(value)


_SIMPLE: dict[Any, Check] = {
    int: _is_int,
    float: _is_float,
    str: lambda value: type(value) is str and len(value) <= TEXT_CHARACTERS,
    bool: lambda value: type(value) is bool,
    types.NoneType: lambda value: value is None,
}
