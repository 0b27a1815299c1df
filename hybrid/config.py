"""What a model is made of: frozen specs, one a part; a config is a list of residual branches over
them.

A layer is a tuple of *branches*. A branch normalises the residual stream, runs its parts side by
side on that input, sums what they give, and adds the sum to the stream. A Bamba layer is two
branches (mixer, MLP), a Nemotron-H layer is one, a Falcon-H1 layer runs two mixers in its first
branch. New families come from new parts, not from new models.
"""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any


def _positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"{type(owner).__name__}.{name} is {value!r}; expected an integer of at least 1"
            )


@dataclasses.dataclass(frozen=True)
class NormSpec:
    """Root-mean-square normalisation over the last axis.

    Args:
        eps: added to the mean square before the root.
        zero_centred: the stored weight is an offset from one (Gemma, Qwen3-Next) instead of the
            factor itself.
    """

    eps: float = 1e-5
    zero_centred: bool = False


@dataclasses.dataclass(frozen=True)
class Mamba2Spec:
    """A Mamba-2 mixer: projection, causal convolution, SSD scan, D skip, gated norm, projection.

    Args:
        num_heads: H; `num_heads * head_dim` is the inner width.
        head_dim: P, channels a head.
        state_dim: N, columns of the state of one head.
        num_groups: G groups of heads that share B and C; divides `num_heads`.
        conv_width: W, taps of the causal convolution.
        conv_bias, proj_bias: whether those layers have a bias.
        norm_eps: eps of the gated norm; None leaves the norm out (the gate stays).
        norm_groups: groups that the gated norm normalises apart; None normalises the `num_groups`
            groups apart.
        norm_before_gate: normalise, then gate (Falcon-H1) instead of gate, then normalise.
        dt_limit: bounds of the step size after softplus.
        input_multiplier, output_multiplier: factors on the mixer's input and output (muP).
        projection_multipliers: factors on the gate, x, B, C and dt parts of the input projection
            (Falcon-H1).

    Source: Dao and Gu, "Transformers are SSMs", 2024.
    """

    num_heads: int
    head_dim: int
    state_dim: int
    num_groups: int = 1
    conv_width: int = 4
    conv_bias: bool = True
    proj_bias: bool = False
    norm_eps: float | None = 1e-5
    norm_groups: int | None = None
    norm_before_gate: bool = False
    dt_limit: tuple[float, float] = (0.0, float("inf"))
    input_multiplier: float = 1.0
    output_multiplier: float = 1.0
    projection_multipliers: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        _positive(self, "num_heads", "head_dim", "state_dim", "num_groups", "conv_width")
        if self.num_heads % self.num_groups:
            raise ValueError(
                f"Mamba2Spec.num_groups is {self.num_groups}; expected a divisor of "
                f"num_heads = {self.num_heads}"
            )

    @property
    def inner_dim(self) -> int:
        """Width of x and of the gate."""
        return self.num_heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """M, channels of the convolution: x, B and C side by side."""
        return self.inner_dim + 2 * self.num_groups * self.state_dim


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """Causal grouped-query attention.

    Args:
        num_heads: Q query heads; a multiple of `num_kv_heads`.
        num_kv_heads: key/value heads.
        head_dim: P, channels a head.
        rope_theta: base of the rotary embedding; None leaves positions out (NoPE).
        rotary_dim: channels of a head that are rotated; None rotates all.
        window: a position sees itself and the `window - 1` before it; None sees all.
        scale: factor on the scores; None means head_dim ** -0.5.
        bias: biases on the query, key and value projections; `out_bias` on the output projection.
        qk_norm: norm over each query and key head before the rotation; None leaves it out.
        output_gate: a second query projection gates the output through a sigmoid (Qwen3-Next).
        input_multiplier, key_multiplier, output_multiplier: muP factors.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float | None = 10000.0
    rotary_dim: int | None = None
    window: int | None = None
    scale: float | None = None
    bias: bool = False
    out_bias: bool = False
    qk_norm: NormSpec | None = None
    output_gate: bool = False
    input_multiplier: float = 1.0
    key_multiplier: float = 1.0
    output_multiplier: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, "num_heads", "num_kv_heads", "head_dim")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"AttentionSpec.num_kv_heads is {self.num_kv_heads}; expected a divisor of "
                f"num_heads = {self.num_heads}"
            )
        rotary = self.head_dim if self.rotary_dim is None else self.rotary_dim
        if self.rope_theta is not None and (rotary % 2 or not 0 < rotary <= self.head_dim):
            raise ValueError(
                f"AttentionSpec.rotary_dim is {rotary}; expected an even number in "
                f"2..head_dim = {self.head_dim}"
            )
        if self.window is not None:
            _positive(self, "window")


@dataclasses.dataclass(frozen=True)
class MLPSpec:
    """A feed-forward part.

    Args:
        intermediate_size: width of the hidden layer.
        activation: name of the nonlinearity, see `hybrid.layers.mlp.ACTIVATIONS`.
        gated: two input projections, one through the nonlinearity (SwiGLU), instead of one.
        bias: biases on all projections.
        gate_multiplier, down_multiplier: muP factors on the gate's input and on the output.
    """

    intermediate_size: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    gate_multiplier: float = 1.0
    down_multiplier: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, "intermediate_size")


PartSpec = Mamba2Spec | AttentionSpec | MLPSpec


@dataclasses.dataclass(frozen=True)
class Branch:
    """One residual branch: `stream + multiplier * post_norm(sum of parts(norm(stream)))`.

    Args:
        parts: run side by side on the same input; their outputs are summed in this order.
        norm: before the parts; None leaves it out.
        post_norm: after the sum; None leaves it out.
        multiplier: factor on what is added to the stream.
    """

    parts: tuple[PartSpec, ...]
    norm: NormSpec | None = NormSpec()
    post_norm: NormSpec | None = None
    multiplier: float = 1.0


Layer = tuple[Branch, ...]


@dataclasses.dataclass(frozen=True)
class HybridConfig:
    """An architecture: everything that decides parameter shapes and the function, nothing about how
    it is run.

    Args:
        name: preset or checkpoint name, for reports.
        vocab_size: V; the default 256 takes bytes as tokens.
        hidden_size: D, width of the residual stream.
        layers: the layer pattern.
        final_norm: before the head.
        tie_embeddings: the head is the transposed embedding.
        embedding_multiplier: factor on the embedded tokens.
        logits_multiplier: factor on the logits.
        logits_soft_cap: logits become cap * tanh(logits / cap); None leaves them.
    """

    name: str
    hidden_size: int
    layers: tuple[Layer, ...]
    vocab_size: int = 256
    final_norm: NormSpec = NormSpec()
    tie_embeddings: bool = True
    embedding_multiplier: float = 1.0
    logits_multiplier: float = 1.0
    logits_soft_cap: float | None = None

    def __post_init__(self) -> None:
        _positive(self, "vocab_size", "hidden_size")
        if not self.layers:
            raise ValueError("HybridConfig.layers is empty; expected at least one layer")

    def parts(self) -> Iterator[PartSpec]:
        """All parts in the order in which they run."""
        for layer in self.layers:
            for branch in layer:
                yield from branch.parts

    def to_json(self) -> str:
        """The config as canonical JSON (sorted keys, each spec tagged with its class), for
        fingerprints and run folders."""
        return json.dumps(_tagged(self), sort_keys=True)


def _tagged(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _tagged(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"spec": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [_tagged(item) for item in value]
    if isinstance(value, float):
        return repr(value)
    return value


@dataclasses.dataclass(frozen=True)
class Compute:
    """How a model is run; a change here may change bits, never the meaning.

    Args:
        dtype: of activations, KV and matmul operands: "float32" or "bfloat16". States and decays
            are fp32 always.
        param_dtype: of stored parameters; None means `dtype`.
        implementation: of the scans: "auto", "reference", "xla" or "pallas".
        chunk: rows that a scan treats as one matrix product.
        kv_tile: keys that attention reads at once; anchored at position 0.
        precision: of fp32 matrix products, a `jax.lax.Precision` name; an fp32 operand is rounded
            to bf16 on TPU unless asked.
    """

    dtype: str = "float32"
    param_dtype: str | None = None
    implementation: str = "auto"
    chunk: int = 64
    kv_tile: int = 512
    precision: str = "highest"

    def __post_init__(self) -> None:
        for name in ("dtype", "param_dtype"):
            value = getattr(self, name)
            if value not in ("float32", "bfloat16") and not (
                name == "param_dtype" and value is None
            ):
                raise ValueError(f"Compute.{name} is {value!r}; expected 'float32' or 'bfloat16'")
        _positive(self, "chunk", "kv_tile")

    def to_json(self) -> str:
        """As canonical JSON, for fingerprints."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)
