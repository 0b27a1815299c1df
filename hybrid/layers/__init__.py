"""The parts that layers are made of, and the one table from spec to part."""

from flax import nnx

from hybrid.config import (
    AttentionSpec,
    Compute,
    GatedDeltaSpec,
    Mamba2Spec,
    MLPSpec,
    MoESpec,
    PartSpec,
    RGLRUSpec,
    ShortConvSpec,
)
from hybrid.layers.attention import Attention
from hybrid.layers.gated_delta import GatedDelta
from hybrid.layers.mamba2 import Mamba2
from hybrid.layers.mlp import MLP
from hybrid.layers.moe import MoE
from hybrid.layers.part import Part
from hybrid.layers.rg_lru import RGLRU
from hybrid.layers.short_conv import ShortConv

_PARTS: dict[type, type] = {
    AttentionSpec: Attention,
    GatedDeltaSpec: GatedDelta,
    MLPSpec: MLP,
    Mamba2Spec: Mamba2,
    MoESpec: MoE,
    RGLRUSpec: RGLRU,
    ShortConvSpec: ShortConv,
}


def build_part(spec: PartSpec, hidden_size: int, compute: Compute, rngs: nnx.Rngs) -> Part:
    """The module for `spec`.

    Raises:
        TypeError: no part is registered for that kind of spec.
    """
    if type(spec) not in _PARTS:
        known = ", ".join(sorted(kind.__name__ for kind in _PARTS))
        raise TypeError(f"no part for {type(spec).__name__}; expected one of {known}")
    return _PARTS[type(spec)](spec, hidden_size, compute, rngs)
