"""config.json, read by name; what the parts cannot do is refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybrid.checkpoint.errors import CheckpointError

_LAYER_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}
_MISSING = object()


class Options:
    """The options of one checkpoint.

    Args:
        values: the object in config.json.
        path: of the file, for messages.
    """

    def __init__(self, values: dict[str, Any], path: Path) -> None:
        self.values, self.path = values, path

    def find(self, *names: str, default: Any = _MISSING) -> Any:
        """The first of `names` that is present and not null.

        Raises:
            CheckpointError: none is, and there is no default.
        """
        for name in names:
            value = self.values.get(name)
            if value is not None:
                return _plain(value)
        if default is _MISSING:
            raise CheckpointError(f"{self.path}: option {' or '.join(names)} is missing")
        return default

    def only(self, name: str, *allowed: Any) -> Any:
        """The option, which must be one of `allowed`; the first of them where it is absent.

        Raises:
            CheckpointError: names the option, its value and the values that the parts can do.
        """
        value = self.find(name, default=allowed[0])
        if value not in allowed:
            raise self.unsupported(name, value, " or ".join(repr(item) for item in allowed))
        return value

    def nested(self, name: str) -> "Options":
        """The options under `name` over those beside it, for files that describe several models;
        these options themselves where there is no such entry."""
        inner = self.values.get(name)
        return self if inner is None else Options({**self.values, **inner}, self.path)

    def unsupported(self, name: str, value: Any, expected: str) -> CheckpointError:
        """The error for an option that no part implements."""
        return CheckpointError(
            f"{self.path}: option {name} = {value!r} is not supported; expected {expected}"
        )

    def rope(
        self, default_theta: float = 10000.0, default_share: float = 1.0
    ) -> tuple[float, float]:
        """Base of the rotary embedding and the share of a head that rotates, from either form of
        the options.

        Raises:
            CheckpointError: a scaled variant of the embedding.
        """
        rope = self.find("rope_parameters", "rope_scaling", default={})
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise self.unsupported("rope_type", kind, "'default'")
        theta = rope.get("rope_theta") or self.find("rope_theta", default=default_theta)
        share = rope.get("partial_rotary_factor") or self.find(
            "partial_rotary_factor", default=default_share
        )
        return float(theta), float(share)

    def layer_kinds(
        self, allowed: set[str], default: Callable[[], list[str]] | None = None
    ) -> list[str]:
        """The kind of every layer; the older names "mamba" and "attention" mean
        "linear_attention" and "full_attention".

        Args:
            allowed: kinds that the family has.
            default: kinds where the file has no list; None requires one.

        Raises:
            CheckpointError: a kind that the family does not have, or a list of another length than
                num_hidden_layers.
        """
        kinds = self.find("layer_types", "layers_block_type", default=None)
        if kinds is None and default is not None:
            kinds = default()
        if kinds is None:
            raise CheckpointError(f"{self.path}: option layer_types is missing")
        kinds = [_LAYER_KINDS.get(kind, kind) for kind in kinds]
        for kind in kinds:
            if kind not in allowed:
                raise self.unsupported("layer_types", kind, f"layers among {sorted(allowed)}")
        count = self.find("num_hidden_layers", default=len(kinds))
        if count != len(kinds):
            raise CheckpointError(
                f"{self.path}: num_hidden_layers is {count} but layer_types lists {len(kinds)}"
            )
        return kinds


def _plain(value: Any) -> Any:
    """Undo the tagged form in which newer files write infinities."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict) and set(value) == {"__float__"}:
        return float(value["__float__"])
    return value
