"""What a Keras callback remembers, as JSON-plain data and back, to the bit.

>>> decoded(encoded({"best": float("inf"), "seen": (1, None)}))
{'best': inf, 'seen': (1, None)}
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LARGEST = 1024
"""Items of the largest array or list that is kept; a model's weights are no such thing."""


class TooLarge(Exception):
    """A value has more than :data:`LARGEST` items."""


def encoded(value: Any) -> Any:
    """``value`` as data that JSON holds: numbers that are none and numpy's types are marked.

    Raises:
        TooLarge: It is an array or a list of too many items.
        TypeError: It is of no kind that is kept: a file, a function, a tensor.
    """
    # By exact type: numpy's float64 is a float too, and would come back as another.
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, (np.ndarray, np.generic)):
        return _encoded_array(value)
    if isinstance(value, (list, tuple, dict)) and len(value) > LARGEST:
        raise TooLarge
    if isinstance(value, (list, tuple)):
        items = [encoded(item) for item in value]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {"dict": {key: encoded(item) for key, item in value.items()}}
    raise TypeError(f"{type(value).__name__} is not kept")


def _encoded_array(value: Any) -> dict[str, Any]:
    if value.dtype.kind not in "biuf":
        raise TypeError(f"{value.dtype} is not kept")
    if value.size > LARGEST:
        raise TooLarge
    items = [encoded(item) for item in np.asarray(value).ravel().tolist()]
    shape = list(value.shape) if isinstance(value, np.ndarray) else None  # None: a scalar
    return {"array": items, "dtype": value.dtype.name, "shape": shape}


def decoded(value: Any) -> Any:
    """What :func:`encoded` was given; of a class derived from list, tuple or dict the plain one."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float(value["float"])
    if "array" in value:
        array = np.array(decoded(value["array"]), value["dtype"])
        return array[0] if value["shape"] is None else array.reshape(value["shape"])
    if "tuple" in value:
        return tuple(decoded(value["tuple"]))
    return {key: decoded(item) for key, item in value["dict"].items()}
