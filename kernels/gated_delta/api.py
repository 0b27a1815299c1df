"""The public gated delta operations: checks, defaults and dispatch."""

from jaxtyping import Array, Float, Int32

from kernels.checks import (
    FLOAT_DTYPES,
    check_array,
    check_implementation,
    check_same_dtype,
    checked_state,
)
from kernels.gated_delta.reference import gated_delta_reference, gated_delta_token
from kernels.gated_delta.vjp import gated_delta_pallas_with_gradient
from kernels.gated_delta.xla import gated_delta_xla
from kernels.scan import ScanResult, scan_bounds

STATE_AXES = "batch heads key_dim value_dim"
DEFAULT_CHUNK = 32
CHUNKS = (8, 16, 32, 64, 128)


def gated_delta_scan(
    q: Float[Array, "B T G K"],
    k: Float[Array, "B T G K"],
    v: Float[Array, "B T H V"],
    g: Float[Array, "B T H"],
    beta: Float[Array, "B T H"],
    *,
    scale: float | None = None,
    initial_state: Float[Array, "B H K V"] | None = None,
    capture_offsets: Int32[Array, "B S"] | None = None,
    lengths: Int32[Array, " B"] | None = None,
    chunk: int = DEFAULT_CHUNK,
    implementation: str = "auto",
) -> ScanResult:
    """Gated delta rule scan, with states at planned offsets, in one pass.

    Per head: S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T and y_t = scale S_t^T
    q_t. Keys and queries come as the layer makes them (usually with unit length). Rows with k = v =
    0, g = 0 and beta = 0 leave the state unchanged bit for bit.

    Args:
        q: queries [batch, length, key_heads, key_dim], float32 or bfloat16; head h of v uses head
            h // (heads // key_heads).
        k: keys, like q.
        v: values [batch, length, heads, value_dim], dtype of q.
        g: log-decays [batch, length, heads] <= 0, float32 or bfloat16.
        beta: write strengths [batch, length, heads], in (0, 1), or in (0, 2) where a model allows
            negative eigenvalues; float32 or bfloat16.
        scale: factor of y; key_dim ** -0.5 if None.
        initial_state: float32 [batch, heads, key_dim, value_dim]; zeros if None.
        capture_offsets: int32 [batch, slots], tokens consumed, 1..length in any order, repeats
            allowed; 0 or more than the row's length marks an unused slot.
        lengths: int32 [batch], tokens that count in each row; all if None.
        chunk: tokens a chunk: 8, 16, 32, 64 or 128. States at its multiples are exact: the bits of
            a run of that length.
        implementation: "auto" (now the chunked form), "reference" (token loop), "xla" (chunked) or
            "pallas" (kernel).

    Returns:
        ScanResult: y like v, zero beyond `lengths`; final_state float32 [batch, heads, key_dim,
        value_dim]; captured float32 [batch, slots, heads, key_dim, value_dim], zeros in unused
        slots.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a shape that does not fit, a chunk or an implementation that does not exist.

    Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024), equation 10.
    """
    op = "gated_delta_scan"
    check_implementation(op, implementation)
    if chunk not in CHUNKS:
        raise ValueError(f"{op}: chunk is {chunk!r}; expected one of {CHUNKS}")
    sizes: dict[str, int] = {}
    check_array(op, "q", q, "batch length key_heads key_dim", sizes, FLOAT_DTYPES)
    check_array(op, "k", k, "batch length key_heads key_dim", sizes, FLOAT_DTYPES)
    check_array(op, "v", v, "batch length heads value_dim", sizes, FLOAT_DTYPES)
    check_array(op, "g", g, "batch length heads", sizes, FLOAT_DTYPES)
    check_array(op, "beta", beta, "batch length heads", sizes, FLOAT_DTYPES)
    state = checked_state(op, "initial_state", initial_state, STATE_AXES, sizes)
    check_same_dtype(op, q=q, k=k, v=v)
    _check_heads(op, sizes)
    if sizes["length"] == 0:
        raise ValueError(f"{op}: v has length 0; expected at least 1")
    bounds = scan_bounds(op, sizes["batch"], sizes["length"], capture_offsets, lengths)
    scale = _scale(scale, sizes)
    if implementation == "reference":
        return gated_delta_reference(q, k, v, g, beta, scale, state, bounds)
    if implementation == "pallas":
        return gated_delta_pallas_with_gradient((scale, chunk), (q, k, v, g, beta, state), bounds)
    return gated_delta_xla(q, k, v, g, beta, scale, state, bounds, chunk)


def gated_delta_step(
    q: Float[Array, "B G K"],
    k: Float[Array, "B G K"],
    v: Float[Array, "B H V"],
    g: Float[Array, "B H"],
    beta: Float[Array, "B H"],
    state: Float[Array, "B H K V"],
    *,
    scale: float | None = None,
) -> tuple[Float[Array, "B H V"], Float[Array, "B H K V"]]:
    """One token of :func:`gated_delta_scan`, for decode.

    Args:
        q: [batch, key_heads, key_dim], float32 or bfloat16.
        k: like q.
        v: [batch, heads, value_dim], dtype of q.
        g: [batch, heads] <= 0.
        beta: [batch, heads].
        state: float32 [batch, heads, key_dim, value_dim].
        scale: factor of y; key_dim ** -0.5 if None.

    Returns:
        y [batch, heads, value_dim] in the dtype of v, and the new state.

    Raises:
        TypeError: a dtype that is not accepted.
        ValueError: a shape that does not fit.
    """
    op = "gated_delta_step"
    sizes: dict[str, int] = {}
    check_array(op, "q", q, "batch key_heads key_dim", sizes, FLOAT_DTYPES)
    check_array(op, "k", k, "batch key_heads key_dim", sizes, FLOAT_DTYPES)
    check_array(op, "v", v, "batch heads value_dim", sizes, FLOAT_DTYPES)
    check_array(op, "g", g, "batch heads", sizes, FLOAT_DTYPES)
    check_array(op, "beta", beta, "batch heads", sizes, FLOAT_DTYPES)
    checked_state(op, "state", state, STATE_AXES, sizes)
    check_same_dtype(op, q=q, k=k, v=v)
    _check_heads(op, sizes)
    new_state, y = gated_delta_token(state, q, k, v, g, beta, _scale(scale, sizes))
    return y.astype(v.dtype), new_state


def _scale(scale: float | None, sizes: dict[str, int]) -> float:
    return sizes["key_dim"] ** -0.5 if scale is None else float(scale)


def _check_heads(op: str, sizes: dict[str, int]) -> None:
    heads, key_heads = sizes["heads"], sizes["key_heads"]
    if key_heads == 0 or heads % key_heads:
        raise ValueError(f"{op}: k has {key_heads} heads; expected a divisor of v's {heads}")
