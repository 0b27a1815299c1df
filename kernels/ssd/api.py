"""The public SSD operations: checks, defaults and dispatch."""

from jaxtyping import Array, Float, Int32

from kernels.checks import (
    FLOAT_DTYPES,
    check_array,
    check_implementation,
    check_positive,
    check_same_dtype,
    checked_state,
)
from kernels.decay import MAX_CHUNK
from kernels.scan import ScanResult, scan_bounds
from kernels.ssd.reference import ssd_reference, ssd_token
from kernels.ssd.vjp import ssd_pallas_with_gradient
from kernels.ssd.xla import ssd_xla

STATE_AXES = "batch heads head_dim state_dim"
DEFAULT_CHUNK = 64


def ssd_scan(
    x: Float[Array, "B T H P"],
    dt: Float[Array, "B T H"],
    A: Float[Array, " H"],
    B: Float[Array, "B T G N"],
    C: Float[Array, "B T G N"],
    *,
    initial_state: Float[Array, "B H P N"] | None = None,
    capture_offsets: Int32[Array, "B S"] | None = None,
    lengths: Int32[Array, " B"] | None = None,
    chunk: int = DEFAULT_CHUNK,
    implementation: str = "auto",
) -> ScanResult:
    """State-space duality scan of Mamba-2, with states at planned offsets, in one pass.

    Per head: h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T and y_t = h_t C_t, without the D skip and
    gate. Rows with x = 0 and dt = 0 leave the state unchanged bit for bit.

    Args:
        x: inputs [batch, length, heads, head_dim], float32 or bfloat16.
        dt: step sizes [batch, length, heads] >= 0, after softplus; float32 or bfloat16.
        A: [heads] < 0, float32 or bfloat16.
        B: input projections [batch, length, groups, state_dim], dtype of x; head h uses group
            h // (heads // groups).
        C: output projections, like B.
        initial_state: float32 [batch, heads, head_dim, state_dim]; zeros if None.
        capture_offsets: int32 [batch, slots], tokens consumed, 1..length in any order, repeats
            allowed; 0 or more than the row's length marks an unused slot.
        lengths: int32 [batch], tokens that count in each row; all if None.
        chunk: tokens a chunk, at most 128. States at its multiples are exact: the bits of a run of
            that length.
        implementation: "auto" (now the chunked form), "reference" (token loop), "xla" (chunked) or
            "pallas" (kernel).

    Returns:
        ScanResult: y like x, zero beyond `lengths`; final_state float32 [batch, heads, head_dim,
        state_dim]; captured float32 [batch, slots, heads, head_dim, state_dim], zeros in unused
        slots.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a shape that does not fit, or an unknown implementation.

    Source: Dao and Gu, "Transformers are SSMs" (2024).
    """
    op = "ssd_scan"
    check_implementation(op, implementation)
    check_positive(op, "chunk", chunk)
    if chunk > MAX_CHUNK:
        raise ValueError(f"{op}: chunk is {chunk}; expected at most {MAX_CHUNK}")
    sizes: dict[str, int] = {}
    check_array(op, "x", x, "batch length heads head_dim", sizes, FLOAT_DTYPES)
    check_array(op, "dt", dt, "batch length heads", sizes, FLOAT_DTYPES)
    check_array(op, "A", A, "heads", sizes, FLOAT_DTYPES)
    check_array(op, "B", B, "batch length groups state_dim", sizes, FLOAT_DTYPES)
    check_array(op, "C", C, "batch length groups state_dim", sizes, FLOAT_DTYPES)
    state = checked_state(op, "initial_state", initial_state, STATE_AXES, sizes)
    check_same_dtype(op, x=x, B=B, C=C)
    _check_groups(op, sizes)
    if sizes["length"] == 0:
        raise ValueError(f"{op}: x has length 0; expected at least 1")
    bounds = scan_bounds(op, sizes["batch"], sizes["length"], capture_offsets, lengths)
    if implementation == "reference":
        return ssd_reference(x, dt, A, B, C, state, bounds)
    if implementation == "pallas":
        return ssd_pallas_with_gradient(chunk, (x, dt, A, B, C, state), bounds)
    return ssd_xla(x, dt, A, B, C, state, bounds, chunk)


def ssd_step(
    x: Float[Array, "B H P"],
    dt: Float[Array, "B H"],
    A: Float[Array, " H"],
    B: Float[Array, "B G N"],
    C: Float[Array, "B G N"],
    state: Float[Array, "B H P N"],
) -> tuple[Float[Array, "B H P"], Float[Array, "B H P N"]]:
    """One token of :func:`ssd_scan`, for decode.

    Args:
        x: [batch, heads, head_dim], float32 or bfloat16.
        dt: [batch, heads] >= 0.
        A: [heads] < 0.
        B: [batch, groups, state_dim], dtype of x.
        C: like B.
        state: float32 [batch, heads, head_dim, state_dim].

    Returns:
        y [batch, heads, head_dim] in the dtype of x, and the new state.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a shape that does not fit.
    """
    op = "ssd_step"
    sizes: dict[str, int] = {}
    check_array(op, "x", x, "batch heads head_dim", sizes, FLOAT_DTYPES)
    check_array(op, "dt", dt, "batch heads", sizes, FLOAT_DTYPES)
    check_array(op, "A", A, "heads", sizes, FLOAT_DTYPES)
    check_array(op, "B", B, "batch groups state_dim", sizes, FLOAT_DTYPES)
    check_array(op, "C", C, "batch groups state_dim", sizes, FLOAT_DTYPES)
    checked_state(op, "state", state, STATE_AXES, sizes)
    check_same_dtype(op, x=x, B=B, C=C)
    _check_groups(op, sizes)
    new_state, y = ssd_token(state, x, dt, A, B, C)
    return y.astype(x.dtype), new_state


def _check_groups(op: str, sizes: dict[str, int]) -> None:
    heads, groups = sizes["heads"], sizes["groups"]
    if groups == 0 or heads % groups:
        raise ValueError(f"{op}: B has {groups} groups; expected a divisor of {heads} heads")
