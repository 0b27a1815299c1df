"""Argument checks that every public operation shares: errors name what, where and the expected."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

IMPLEMENTATIONS = ("auto", "reference", "xla", "pallas")
FLOAT_DTYPES = (jnp.float32, jnp.bfloat16)


def check_implementation(op: str, implementation: str) -> None:
    """Raise ValueError unless `implementation` is one of the names that every operation knows."""
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"{op}: implementation is {implementation!r}; "
            f"expected one of {', '.join(IMPLEMENTATIONS)}"
        )


def check_array(
    op: str, name: str, array: jax.Array, axes: str, sizes: dict[str, int], dtypes: Sequence
) -> None:
    """Check dtype and shape of one argument, and learn the sizes of axes not seen before.

    Args:
        op: the operation's name, for the message.
        name: the argument's name, for the message.
        array: the argument.
        axes: the expected axes, separated by spaces; a number stands for itself.
        sizes: axis sizes known so far; new ones are added.
        dtypes: the dtypes that are accepted.

    Raises:
        TypeError: not an array, or a dtype that is not accepted.
        ValueError: a shape that does not agree with `axes` and `sizes`.
    """
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise TypeError(f"{op}: {name} is a {type(array).__name__}; expected an array [{axes}]")
    if not any(array.dtype == dtype for dtype in dtypes):
        wanted = " or ".join(jnp.dtype(dtype).name for dtype in dtypes)
        raise TypeError(f"{op}: {name} has dtype {array.dtype}; expected {wanted}")
    names = axes.split()
    if len(names) == len(array.shape):
        for axis, size in zip(names, array.shape, strict=True):
            if not axis.isdigit():
                sizes.setdefault(axis, size)
    expected = tuple(int(axis) if axis.isdigit() else sizes.get(axis, "?") for axis in names)
    if tuple(array.shape) != expected:
        shown = ", ".join(str(size) for size in expected)
        raise ValueError(
            f"{op}: {name} has shape {tuple(array.shape)}; expected [{axes}] = ({shown})"
        )


def check_same_dtype(op: str, **arrays: jax.Array) -> None:
    """Raise TypeError unless all arrays have one dtype."""
    found = {name: jnp.dtype(array.dtype).name for name, array in arrays.items()}
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{name} {dtype}" for name, dtype in found.items())
        raise TypeError(f"{op}: expected one dtype for {', '.join(found)}; found {shown}")


def check_positive(op: str, name: str, value: int) -> None:
    """Raise ValueError unless `value` is a positive int."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{op}: {name} is {value!r}; expected a positive int")


def checked_state(
    op: str, name: str, state: jax.Array | None, axes: str, sizes: dict[str, int]
) -> jax.Array:
    """An fp32 state of known sizes, zeros where there is none; errors as `check_array` has them."""
    if state is None:
        return jnp.zeros(tuple(sizes[axis] for axis in axes.split()), jnp.float32)
    check_array(op, name, state, axes, sizes, (jnp.float32,))
    return state
