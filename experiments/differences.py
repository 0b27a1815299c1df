"""What differs between two JSON values, by dotted name."""

import json
from typing import Any

ABSENT = "nothing"
"""Stands for a value that one side lacks."""


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested dictionaries as one with dotted names.

    >>> flat({"seed": 0, "workload": {"name": "w"}})
    {'seed': 0, 'workload.name': 'w'}
    """
    if not isinstance(value, dict) or (name and not value):
        return {name: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= flat(item, f"{name}.{key}" if name else key)
    return found


def changed(left: Any, right: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """What differs between two JSON values.

    Args:
        left, right: the values.
        name: dotted path of both, put in front of each difference.

    Returns:
        (dotted name, left value, right value) for each difference; `ABSENT` where it is missing.

    >>> changed({"tile": 64, "seed": 0}, {"tile": 128, "seed": 0, "new": 1})
    [('tile', 64, 128), ('new', 'nothing', 1)]
    """
    before, after = flat(left, name), flat(right, name)
    names = [*before, *(key for key in after if key not in before)]
    return [
        (key, before.get(key, ABSENT), after.get(key, ABSENT))
        for key in names
        if before.get(key, ABSENT) != after.get(key, ABSENT)
    ]


def as_text(value: Any) -> str:
    """A JSON value for a reader: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
