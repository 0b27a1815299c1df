"""Argument checks shared by the planner: a whole number within bounds, or a clear ValueError."""

from numbers import Integral

import numpy as np


def check_int(
    name: str, value: object, minimum: int | None = None, maximum: int | None = None
) -> int:
    """Return `value` as a python int, or say what is wrong with it.

    Args:
        name: the argument's name, as the caller knows it.
        value: a python or numpy integer; bools and floats are refused, whole-valued or not.
        minimum: least value allowed, or None.
        maximum: greatest value allowed, or None.

    Returns:
        The value as a python int.

    Raises:
        ValueError: not an integer, or out of bounds; names the argument and the value.

    >>> check_int("total", np.int32(7), minimum=0)
    7
    >>> check_int("total", 7.0)
    Traceback (most recent call last):
        ...
    ValueError: total must be an integer, got 7.0
    """
    if type(value) is not int:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
            raise ValueError(f"{name} must be an integer, got {value!r}")
        value = int(value)
    if minimum is not None and value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    if maximum is not None and value > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {value}")
    return value


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return `value` when it is one of `choices`, else say which there are.

    Args:
        name: the argument's name.
        value: the value given.
        choices: the values allowed.

    Returns:
        The value.

    Raises:
        ValueError: the value is none of them.
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}")
    return value
