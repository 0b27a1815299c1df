"""The programs that copy states and rows out of a workspace and into it, a fixed amount a call."""

import jax
import numpy as np

from hybrid.state import Rows, Snapshot


def take_slot(captured: Snapshot, slot: jax.Array) -> Snapshot:
    """The states in one capture slot.

    Args:
        captured: with a slot axis after the batch axis.
        slot: int32 [].

    Returns:
        Copies, without the slot axis.
    """
    return jax.tree.map(
        lambda x: jax.lax.dynamic_index_in_dim(x, slot, axis=1, keepdims=False), captured
    )


def load_rows(buffers: Rows, rows: Rows, start: jax.Array) -> Rows:
    """The buffers with `rows` written at positions from `start` on; `start` is int32 []."""
    return jax.tree.map(
        lambda buffer, new: jax.lax.dynamic_update_slice_in_dim(buffer, new, start, axis=2),
        buffers,
        rows,
    )


def read_rows(count: int, buffers: Rows, start: jax.Array) -> Rows:
    """The `count` rows from position `start` on; `start` is int32 []."""
    return jax.tree.map(
        lambda buffer: jax.lax.dynamic_slice_in_dim(buffer, start, count, axis=2), buffers
    )


def padded_rows(rows: Rows, at: int, count: int) -> Rows:
    """Rows at..at + count of host arrays, zeros where there are none."""

    def cut(x: np.ndarray) -> np.ndarray:
        x = x[:, :, at : at + count]
        return np.pad(x, ((0, 0), (0, 0), (0, count - x.shape[2]), (0, 0)))

    return jax.tree.map(cut, rows)
