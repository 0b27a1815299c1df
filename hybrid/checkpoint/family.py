"""What a published family is to us: how its config reads, and one table of rules."""

import dataclasses
from collections.abc import Callable, Mapping

from hybrid.checkpoint.options import Options
from hybrid.checkpoint.rules import Rule
from hybrid.config import HybridConfig


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of checkpoints.

    Args:
        model_types: values of `model_type` in config.json.
        config: options -> architecture.
        root: rules for what lies outside the layers; sources are whole names.
        parts: rules for every kind of part, by its spec; sources lie below the layer.
        branches: rules for the norms of a layer's branches, by the branch's place in its layer.
        layer: prefix of a layer's tensors.
        renames: (pattern, replacement) applied to the names in the file first, so that older and
            newer files read alike.
        ignored: patterns of tensors that are no part of the language model's function.
        shared: rules for a block that several branches use; sources lie below the layer that
            stores it.
    """

    model_types: tuple[str, ...]
    config: Callable[[Options], HybridConfig]
    root: tuple[Rule, ...]
    parts: Mapping[type, tuple[Rule, ...]]
    branches: tuple[tuple[Rule, ...], ...]
    layer: str = "model.layers.{layer}."
    renames: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    shared: tuple[Rule, ...] = ()
