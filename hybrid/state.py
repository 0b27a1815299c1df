"""What a model remembers of a prompt: one frozen dataclass a kind of layer, a tuple over the
stateful parts.

Recurrent states are fp32 and have one fixed size; a snapshot is a copy of all of them at one
position. Keys and values have one row a position and are kept in blocks. Checks live at the doors
(`check_states`), not in the hot path.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybrid.config import (
    AttentionSpec,
    Compute,
    GatedDeltaSpec,
    HybridConfig,
    Mamba2Spec,
    PartSpec,
    RGLRUSpec,
    ShortConvSpec,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RecurrentState:
    """A recurrent part after some tokens.

    Args:
        scan: fp32; for Mamba-2 [batch, heads, head_dim, state_dim], for a gated delta net
            [batch, heads, key_dim, value_dim], for an RG-LRU [batch, width].
        conv: [batch, conv_width - 1, channels]: the last inputs of the causal convolution, in the
            compute dtype.
    """

    scan: Any
    conv: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVState:
    """Keys and values of one attention part, rows 0..capacity-1 of one prompt.

    Args:
        keys, values: [batch, kv_heads, capacity, head_dim]; bf16 is stored as its bits in uint16,
            because XLA's CPU backend otherwise converts and copies the whole buffer at every
            update.
    """

    keys: Any
    values: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ConvState:
    """A part that remembers its last inputs alone.

    Args:
        conv: [batch, conv_width - 1, channels], in the compute dtype.
    """

    conv: Any


FixedState = RecurrentState | ConvState
"""States of one size at every position; a snapshot is a copy of all of them."""
State = FixedState | KVState
States = tuple[State, ...]
"""Of a model's stateful parts, in the order in which they run."""
Snapshot = tuple[FixedState, ...]
"""What is stored of a model at one position: the fixed-size states alone."""
Rows = tuple[KVState, ...]
"""Keys and values of some positions, [batch, kv_heads, positions, head_dim] an attention part."""


def storage_dtype(dtype: str) -> Any:
    """The dtype that holds keys and values of compute dtype `dtype`."""
    return jnp.uint16 if dtype == "bfloat16" else jnp.dtype(dtype)


def to_storage(x: jax.Array) -> jax.Array:
    """Reinterpret bf16 as uint16; fp32 stays."""
    return jax.lax.bitcast_convert_type(x, jnp.uint16) if x.dtype == jnp.bfloat16 else x


def from_storage(x: jax.Array) -> jax.Array:
    """Undo `to_storage`."""
    return jax.lax.bitcast_convert_type(x, jnp.bfloat16) if x.dtype == jnp.uint16 else x


def part_state_shape(
    part: PartSpec, compute: Compute, batch: int, capacity: int, hidden_size: int
) -> State | None:
    """Shapes and dtypes of one part's state; None for a part that remembers nothing."""
    dtype = jnp.dtype(compute.dtype)

    def recurrent(scan: tuple[int, ...], width: int, channels: int) -> RecurrentState:
        return RecurrentState(
            scan=jax.ShapeDtypeStruct((batch, *scan), jnp.float32),
            conv=jax.ShapeDtypeStruct((batch, width - 1, channels), dtype),
        )

    if isinstance(part, Mamba2Spec):
        heads = (part.num_heads, part.head_dim, part.state_dim)
        return recurrent(heads, part.conv_width, part.conv_dim)
    if isinstance(part, GatedDeltaSpec):
        heads = (part.num_heads, part.key_dim, part.value_dim)
        return recurrent(heads, part.conv_width, part.conv_dim)
    if isinstance(part, RGLRUSpec):
        return recurrent((part.width,), part.conv_width, part.width)
    if isinstance(part, ShortConvSpec):
        return ConvState(jax.ShapeDtypeStruct((batch, part.conv_width - 1, hidden_size), dtype))
    if isinstance(part, AttentionSpec):
        rows = jax.ShapeDtypeStruct(
            (batch, part.num_kv_heads, capacity, part.head_dim), storage_dtype(compute.dtype)
        )
        return KVState(keys=rows, values=rows)
    return None


def state_shapes(config: HybridConfig, compute: Compute, batch: int, capacity: int) -> States:
    """Shapes and dtypes of all states of a model, in the order of its stateful parts.

    Args:
        config: the architecture.
        compute: dtypes.
        batch: sequences.
        capacity: positions of keys and values.

    Returns:
        States whose leaves are `jax.ShapeDtypeStruct`.
    """
    shapes = (
        part_state_shape(part, compute, batch, capacity, config.hidden_size)
        for part in config.parts()
    )
    return tuple(shape for shape in shapes if shape is not None)


def zeros(shapes: Any) -> Any:
    """The empty state: zeros of the given shapes."""
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)


def recurrent_only(states: States) -> Snapshot:
    """The states that a snapshot holds."""
    return tuple(state for state in states if isinstance(state, FixedState))


def kv_only(states: States) -> Rows:
    """The keys and values."""
    return tuple(state for state in states if isinstance(state, KVState))


def with_recurrent(states: States, snapshot: Snapshot) -> States:
    """The states with a snapshot's in place of those of fixed size."""
    pending = iter(snapshot)
    return tuple(next(pending) if isinstance(s, FixedState) else s for s in states)


def with_kv(states: States, rows: Rows) -> States:
    """The states with other keys and values."""
    pending = iter(rows)
    return tuple(next(pending) if isinstance(s, KVState) else s for s in states)


def tree_bytes(tree: Any) -> int:
    """Bytes of all arrays (or shapes) in `tree`."""
    return sum(
        int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree)
    )


def snapshot_bytes(config: HybridConfig, compute: Compute) -> int:
    """Bytes of one snapshot of one sequence."""
    return tree_bytes(recurrent_only(state_shapes(config, compute, 1, 1)))


def kv_bytes_per_token(config: HybridConfig, compute: Compute) -> int:
    """Bytes of keys and values that one position of one sequence needs."""
    shapes = state_shapes(config, compute, 1, 1)
    return tree_bytes(kv_only(shapes))


def check_states(states: Any, expected: Any, where: str) -> None:
    """Compare structure, shapes and dtypes with what the model expects.

    Args:
        states: tuple of states, arrays of jax or numpy.
        expected: the same tree of `jax.ShapeDtypeStruct`.
        where: the door, for the message.

    Raises:
        ValueError: names the door, the leaf, what was found and what was expected.
    """
    found_leaves, found_tree = jax.tree_util.tree_flatten_with_path(states)
    expected_leaves, expected_tree = jax.tree_util.tree_flatten_with_path(expected)
    if str(found_tree) != str(expected_tree):
        raise ValueError(f"{where}: states have structure {found_tree}; expected {expected_tree}")
    for (path, found), (_, want) in zip(found_leaves, expected_leaves, strict=True):
        if tuple(found.shape) != tuple(want.shape) or np.dtype(found.dtype) != np.dtype(want.dtype):
            raise ValueError(
                f"{where}: state{jax.tree_util.keystr(path)} is {np.dtype(found.dtype).name}"
                f"{list(found.shape)}; expected {np.dtype(want.dtype).name}{list(want.shape)}"
            )
