# SPDX-License-Identifier: Apache-2.0
"""Python's plain values as JSON and back, with their types: tuples stay tuples, keys may be numbers.

A value of a class that is made from one of them (a named tuple, an enumeration of int) comes back as
the plain one. A value of any other type is refused: nothing is ever pickled.
"""

import base64
import json
import math
from typing import Any


def tagged(value: Any) -> Any:
    """None, bool, int, str and finite floats are themselves, all else is {type: contents}."""
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"f": str(value)}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytes):
        return {"b": base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return {"t": [tagged(v) for v in value]}
    if isinstance(value, list):
        return {"l": [tagged(v) for v in value]}
    if isinstance(value, set):
        return {"s": [tagged(v) for v in value]}
    if isinstance(value, frozenset):
        return {"z": [tagged(v) for v in value]}
    if isinstance(value, dict):
        return {"d": [[tagged(k), tagged(v)] for k, v in value.items()]}
    raise TypeError(f"{type(value).__module__}.{type(value).__name__} cannot be stored as JSON: the "
                    "planner's data may hold None, numbers, text, bytes, tuples, lists, sets, dicts")


def untagged(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    (kind, v), = value.items()
    if kind == "f":
        return float(v)
    if kind == "b":
        return base64.b64decode(v)
    if kind == "t":
        return tuple(untagged(x) for x in v)
    if kind == "l":
        return [untagged(x) for x in v]
    if kind == "s":
        return {untagged(x) for x in v}
    if kind == "z":
        return frozenset(untagged(x) for x in v)
    if kind == "d":
        return {untagged(k): untagged(x) for k, x in v}
    raise ValueError(f"unknown kind '{kind}' of value")


def dumps(value: Any) -> str:
    return json.dumps(tagged(value), separators=(",", ":"))
