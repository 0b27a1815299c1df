"""What every scan has to satisfy, whatever the operation and the implementation.

An operation describes itself as a :class:`ScanOp`; `test_scans.py` runs the checks over op x
implementation x shape. Hypothesis draws one :class:`Draw` an example: values by a seed, lengths
and offsets as traced inputs.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from kernels.scan import ScanResult
from kernels.tolerance import tolerance

IMPLEMENTATIONS = ("reference", "xla", "pallas")


@dataclasses.dataclass(frozen=True)
class Shape:
    """One compiled shape; `dims` are the operation's, `core` ones run every time."""

    batch: int
    length: int
    slots: int
    chunk: int
    dims: tuple[int, ...]
    dtype: str = "float32"
    core: bool = False

    def __str__(self) -> str:
        dims = "x".join(map(str, self.dims))
        return f"{self.batch}x{self.length}k{self.slots}c{self.chunk}-{dims}-{self.dtype}"


@dataclasses.dataclass(frozen=True)
class ScanOp:
    """How the suite drives an operation.

    Attributes:
        name: of the operation.
        shapes: at most six.
        draw: random inputs by name from (generator, shape), as numpy float64; cast by the suite.
        fixed_dtypes: inputs that keep a dtype of their own, by name.
        sequence: names of the inputs whose second axis is tokens.
        identity: names of the inputs that are zero in a row that leaves the state unchanged.
        state_shape: without the batch axis, from a shape.
        call: (inputs, initial_state, offsets, lengths, shape, implementation) -> ScanResult.
        state_dtype: None = the inputs' own.
        implementations: those it has.
        exact_everywhere: a capture's bits equal a shorter run's at every offset, not only on
            chunks.
        in_order: whether (shape, implementation) adds rows one after another or by a matrix
            product, so that identity rows among them change no bit.
    """

    name: str
    shapes: tuple[Shape, ...]
    draw: Callable[[np.random.Generator, Shape], dict[str, np.ndarray]]
    sequence: tuple[str, ...]
    identity: tuple[str, ...]
    state_shape: Callable[[Shape], tuple[int, ...]]
    call: Callable[..., ScanResult]
    fixed_dtypes: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)
    state_dtype: str | None = "float32"
    implementations: tuple[str, ...] = IMPLEMENTATIONS
    exact_everywhere: bool = False
    in_order: Callable[[Shape, str], bool] = lambda shape, implementation: True

    def __str__(self) -> str:
        return self.name


def call_by_chunk(scan: Callable[..., ScanResult]) -> Callable[..., ScanResult]:
    """How the suite calls an operation that takes `chunk`."""

    def call(
        inputs: dict[str, jax.Array],
        state: jax.Array,
        offsets: jax.Array | None,
        lengths: jax.Array,
        shape: Shape,
        implementation: str,
    ) -> ScanResult:
        return scan(
            **inputs,
            initial_state=state,
            capture_offsets=offsets,
            lengths=lengths,
            chunk=shape.chunk,
            implementation=implementation,
        )

    return call


@dataclasses.dataclass(frozen=True)
class Draw:
    """One drawn example."""

    seed: int
    lengths: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]


def draws(shape: Shape) -> st.SearchStrategy[Draw]:
    """Values by a seed; lengths and offsets, with the unused, repeated and on-grid ones."""
    grid = list(range(0, shape.length + 1, shape.chunk))
    length = st.integers(0, shape.length) | st.sampled_from([0, shape.length, *grid])
    offset = st.integers(0, shape.length + 2) | st.sampled_from([0, shape.length, *grid])
    row = st.tuples(*[offset] * shape.slots)
    return st.builds(
        Draw,
        seed=st.integers(0, 2**20),
        lengths=st.tuples(*[length] * shape.batch),
        offsets=st.tuples(*[row] * shape.batch),
    )


@functools.cache
def compiled(op: ScanOp, shape: Shape, implementation: str) -> Callable[..., ScanResult]:
    """The one program of a shape: lengths and offsets are traced."""

    def run(inputs: Any, state: jax.Array, offsets: Any, lengths: jax.Array) -> ScanResult:
        return op.call(inputs, state, offsets, lengths, shape, implementation)

    return jax.jit(run)


class Example:
    """A drawn example bound to an operation and an implementation."""

    def __init__(self, op: ScanOp, shape: Shape, implementation: str, draw: Draw) -> None:
        self.op, self.shape, self.implementation = op, shape, implementation
        rng = np.random.default_rng(draw.seed)
        self.inputs = {
            name: jnp.asarray(value, op.fixed_dtypes.get(name, shape.dtype))
            for name, value in op.draw(rng, shape).items()
        }
        self.state = jnp.asarray(
            rng.normal(size=(shape.batch, *op.state_shape(shape))), op.state_dtype or shape.dtype
        )
        self.lengths = np.asarray(draw.lengths, np.int32)
        self.offsets = np.asarray(draw.offsets, np.int32).reshape(shape.batch, shape.slots)

    @property
    def used(self) -> np.ndarray:
        """Which slots hold a capture."""
        return (self.offsets >= 1) & (self.offsets <= self.lengths[:, None])

    def run(self, **changes: Any) -> ScanResult:
        """Run with some of inputs, state, offsets, lengths, implementation replaced."""
        program = compiled(self.op, self.shape, changes.pop("implementation", self.implementation))
        given = {
            "inputs": self.inputs,
            "state": self.state,
            "offsets": self.offsets,
            "lengths": self.lengths,
            **changes,
        }
        offsets = given["offsets"]
        result = program(
            given["inputs"],
            given["state"],
            None if offsets is None else jnp.asarray(offsets, jnp.int32),
            jnp.asarray(given["lengths"], jnp.int32),
        )
        return ScanResult(*(np.asarray(leaf) for leaf in result))

    def masked(self, keep_BT: np.ndarray, value: float, names: tuple[str, ...]) -> dict[str, Any]:
        """Inputs whose tokens that are not kept hold `value`."""
        changed = dict(self.inputs)
        for name in names:
            array = changed[name]
            keep = keep_BT.reshape(keep_BT.shape + (1,) * (array.ndim - 2))
            changed[name] = jnp.where(keep, array, jnp.asarray(value, array.dtype))
        return changed


def assert_same_bits(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Equal values everywhere and no NaN; -0 and 0 count as the same."""
    np.testing.assert_array_equal(
        actual.astype(np.float64), expected.astype(np.float64), err_msg=what
    )
    assert np.isfinite(actual.astype(np.float64)).all(), f"{what}: not finite"


def assert_close(
    actual: np.ndarray,
    expected: np.ndarray,
    length: int,
    what: str,
    *,
    dtype: Any = None,
    factor: float = 1.0,
) -> None:
    """Equal within `factor` times the stated tolerance, relative to the largest magnitude."""
    bound = factor * tolerance(jnp.dtype(dtype or actual.dtype), length)
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    assert actual.shape == expected.shape, f"{what}: {actual.shape} against {expected.shape}"
    assert np.isfinite(actual).all(), f"{what}: not finite"
    scale = np.abs(expected).max(initial=0.0)
    error = np.abs(actual - expected).max(initial=0.0)
    assert error <= bound * scale, f"{what}: error {error:.3g} of {scale:.3g}, allowed {bound:.3g}"


def check_against_reference(example: Example) -> None:
    """y, final state and captures agree with the token loop."""
    actual, expected = example.run(), example.run(implementation="reference")
    assert_close(actual.y, expected.y, example.shape.length, "y")
    for what in ("final_state", "captured"):
        assert_close(getattr(actual, what), getattr(expected, what), example.shape.length, what)


def check_captures_change_nothing(example: Example) -> None:
    """y and the final state have the same bits with these captures, unused ones, and no slots."""
    full = example.run()
    for offsets in (np.zeros_like(example.offsets), None):
        other = example.run(offsets=offsets)
        assert_same_bits(other.y, full.y, f"y, offsets {offsets}")
        assert_same_bits(other.final_state, full.final_state, f"final state, offsets {offsets}")


def check_captures_equal_shorter_runs(example: Example) -> None:
    """A capture is the final state of a run of that length: in bits on the chunk grid."""
    captured = example.run().captured
    for slot in range(example.shape.slots):
        used = example.used[:, slot]
        cut = np.where(used, example.offsets[:, slot], example.lengths)
        final = example.run(lengths=cut).final_state
        for row in np.flatnonzero(used):
            what = f"row {row}, slot {slot}, offset {cut[row]}"
            on_grid = cut[row] % example.shape.chunk == 0
            if on_grid or example.op.exact_everywhere or example.implementation == "reference":
                assert_same_bits(captured[row, slot], final[row], what)
            else:
                assert_close(captured[row, slot], final[row], example.shape.length, what)


def check_edges(example: Example) -> None:
    """Zeros beyond the lengths and in unused slots; an empty row returns its initial state."""
    result = example.run()
    beyond = np.arange(example.shape.length)[None, :] >= example.lengths[:, None]
    assert not result.y[beyond].astype(np.float32).any(), "y beyond lengths"
    assert not result.captured[~example.used].astype(np.float32).any(), "unused slots"
    empty = example.lengths == 0
    assert_same_bits(result.final_state[empty], np.asarray(example.state)[empty], "empty rows")


def check_isolation(example: Example) -> None:
    """NaN beyond the lengths, or in another row and its state, changes no bit of a row."""
    clean = example.run()
    inside = np.arange(example.shape.length)[None, :] < example.lengths[:, None]
    dirty = example.run(inputs=example.masked(inside, np.nan, example.op.sequence))
    for what in ScanResult._fields:
        assert_same_bits(getattr(dirty, what), getattr(clean, what), f"{what}, NaN beyond")
    if example.shape.batch == 1:
        return
    victim = example.shape.batch - 1
    rows = np.arange(example.shape.batch) != victim
    keep = np.broadcast_to(rows[:, None], inside.shape)
    state = jnp.where(
        rows.reshape((-1,) + (1,) * (example.state.ndim - 1)), example.state, jnp.nan
    ).astype(example.state.dtype)
    dirty = example.run(inputs=example.masked(keep, np.nan, example.op.sequence), state=state)
    for what in ScanResult._fields:
        assert_same_bits(
            getattr(dirty, what)[rows], getattr(clean, what)[rows], f"{what}, NaN in a row"
        )


def check_identity_rows(example: Example) -> None:
    """Rows of zeros leave the state as it was, bit for bit, at the start and after it."""
    length = example.shape.length
    nothing = np.zeros((example.shape.batch, length), bool)
    whole = np.full(example.shape.batch, length, np.int32)
    still = example.run(inputs=example.masked(nothing, 0.0, example.op.identity), lengths=whole)
    assert_same_bits(still.final_state, np.asarray(example.state), "identity rows")
    # Ending a row with identity rows is the same as ending it by its length.
    inside = np.arange(length)[None, :] < example.lengths[:, None]
    padded = example.run(inputs=example.masked(inside, 0.0, example.op.identity), lengths=whole)
    expected = example.run().final_state
    if example.op.in_order(example.shape, example.implementation):
        assert_same_bits(padded.final_state, expected, "identity tail")
    else:
        assert_close(padded.final_state, expected, length, "identity tail")


def check_slot_order(example: Example) -> None:
    """Slots are independent: permuted offsets give permuted captures, in bits."""
    reversed_slots = example.run(offsets=example.offsets[:, ::-1])
    assert_same_bits(reversed_slots.captured[:, ::-1], example.run().captured, "reversed slots")


CHECKS = (
    check_against_reference,
    check_captures_change_nothing,
    check_captures_equal_shorter_runs,
    check_edges,
    check_isolation,
    check_identity_rows,
    check_slot_order,
)


@functools.cache
def compiled_gradient(op: ScanOp, shape: Shape, implementation: str) -> Callable[..., Any]:
    """The gradient of a weighted sum of all three results, by the inputs and the state."""

    def loss(inputs: Any, state: jax.Array, offsets: Any, lengths: jax.Array, weights: Any) -> Any:
        result = op.call(inputs, state, offsets, lengths, shape, implementation)
        parts = zip(weights, result, strict=True)
        return sum(jnp.sum(weight * leaf.astype(jnp.float32)) for weight, leaf in parts)

    # Unoptimised code compiles sooner; a gradient is held to a tolerance, not to bits.
    return jax.jit(jax.grad(loss, (0, 1)), compiler_options={"xla_backend_optimization_level": 0})


def gradients(example: Example, implementation: str) -> dict[str, np.ndarray]:
    """Gradients of a random linear form of all three results, by input name and for the state."""
    rng = np.random.default_rng(7)
    shapes = jax.eval_shape(
        compiled(example.op, example.shape, "reference"),
        example.inputs,
        example.state,
        jnp.asarray(example.offsets),
        jnp.asarray(example.lengths),
    )
    weights = [jnp.asarray(rng.normal(size=leaf.shape), jnp.float32) for leaf in shapes]
    by_input, by_state = compiled_gradient(example.op, example.shape, implementation)(
        example.inputs,
        example.state,
        jnp.asarray(example.offsets),
        jnp.asarray(example.lengths),
        weights,
    )
    return {name: np.asarray(leaf) for name, leaf in {**by_input, "state": by_state}.items()}


def check_gradients(example: Example) -> None:
    """The gradient agrees with that of the token loop, through every input, state and capture."""
    expected = gradients(example, "reference")
    for name, actual in gradients(example, example.implementation).items():
        # A gradient is a scan as well (backward), of the products of two forward ones.
        assert_close(
            actual, expected[name], example.shape.length, name, factor=4, dtype=example.shape.dtype
        )
