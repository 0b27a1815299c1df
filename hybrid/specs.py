"""Frozen specs, one a part: everything that decides a part's parameter shapes and its function."""

import dataclasses


def check_positive(owner: object, *names: str) -> None:
    """Refuse fields that are not integers of at least 1.

    Raises:
        ValueError: names the spec, the field and its value.
    """
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


DEFAULT_NORM = NormSpec()


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
        check_positive(self, "num_heads", "head_dim", "state_dim", "num_groups", "conv_width")
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
        qk_norm_joint: the norm spans all heads together (OLMo) instead of each apart.
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
    qk_norm_joint: bool = False
    output_gate: bool = False
    input_multiplier: float = 1.0
    key_multiplier: float = 1.0
    output_multiplier: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "num_heads", "num_kv_heads", "head_dim")
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
            check_positive(self, "window")


@dataclasses.dataclass(frozen=True)
class MLPSpec:
    """A feed-forward part.

    Args:
        intermediate_size: width of the hidden layer.
        activation: name of the nonlinearity, see `hybrid.layers.mlp.ACTIVATIONS`.
        gated: two input projections, one through the nonlinearity (SwiGLU), instead of one.
        bias: biases on all projections.
        row_gate: the output is scaled by the sigmoid of a projection to one number a row (the
            shared expert of Qwen3-Next).
        gate_multiplier, down_multiplier: muP factors on the gate's input and on the output.
    """

    intermediate_size: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    row_gate: bool = False
    gate_multiplier: float = 1.0
    down_multiplier: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "intermediate_size")


@dataclasses.dataclass(frozen=True)
class GatedDeltaSpec:
    """A gated delta net: projection, causal convolution over queries, keys and values, gated delta
    scan over unit-length queries and keys, gated norm a head, projection.

    Args:
        num_heads: H value heads; a multiple of `num_key_heads`.
        num_key_heads: G query and key heads.
        key_dim: K, channels of a query or key head.
        value_dim: V, channels of a value head.
        conv_width: W, taps of the causal convolution.
        norm_eps: eps of the gated norm.
        negative_eigenvalues: write strengths span (0, 2) instead of (0, 1) (OLMo).

    Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024.
    """

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    conv_width: int = 4
    norm_eps: float = 1e-6
    negative_eigenvalues: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "num_heads", "num_key_heads", "key_dim", "value_dim", "conv_width")
        if self.num_heads % self.num_key_heads:
            raise ValueError(
                f"GatedDeltaSpec.num_key_heads is {self.num_key_heads}; expected a divisor of "
                f"num_heads = {self.num_heads}"
            )

    @property
    def keys_dim(self) -> int:
        """Width of all query heads, and of all key heads."""
        return self.num_key_heads * self.key_dim

    @property
    def values_dim(self) -> int:
        """Width of all value heads, and of the gate."""
        return self.num_heads * self.value_dim

    @property
    def conv_dim(self) -> int:
        """M, channels of the convolution: queries, keys and values side by side."""
        return 2 * self.keys_dim + self.values_dim


@dataclasses.dataclass(frozen=True)
class RGLRUSpec:
    """The recurrent block of Griffin: convolution and RG-LRU in one branch, a nonlinearity in the
    other, their product projected.

    Args:
        width: M, channels of the recurrence.
        num_blocks: the gates' projections are block-diagonal with this many blocks.
        conv_width: W, taps of the causal convolution.
        activation: name of the nonlinearity, see `hybrid.layers.mlp.ACTIVATIONS`.
        decay_power: c, the exponent of the gated decay.

    Source: De et al., "Griffin", 2024, section 2.4.
    """

    width: int
    num_blocks: int
    conv_width: int = 4
    activation: str = "gelu_pytorch_tanh"
    decay_power: float = 8.0

    def __post_init__(self) -> None:
        check_positive(self, "width", "num_blocks", "conv_width")
        if self.width % self.num_blocks:
            raise ValueError(
                f"RGLRUSpec.num_blocks is {self.num_blocks}; expected a divisor of "
                f"width = {self.width}"
            )


@dataclasses.dataclass(frozen=True)
class ShortConvSpec:
    """A gated short convolution: out(C * conv(B * x)) with B, C and x projected from the input.

    Args:
        conv_width: W, taps of the causal convolution.
        bias: biases on the projections and the convolution.

    Source: Liquid AI, "LFM2 Technical Report", 2025.
    """

    conv_width: int = 3
    bias: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "conv_width")


ROUTINGS = ("softmax", "softmax_of_top", "sigmoid")


@dataclasses.dataclass(frozen=True)
class MoESpec:
    """A mixture of experts without capacity limits: every row runs through its `top_k` experts.

    Args:
        num_experts: E.
        top_k: experts a row is sent to.
        intermediate_size: width of an expert's hidden layer.
        activation, gated: of an expert, as in `MLPSpec`.
        routing: "softmax" over all experts' scores, then the top ones; "softmax_of_top" over the
            scores of the top ones; "sigmoid" of each score, the choice shifted by a learned bias.
        renormalise: the weights of the chosen experts are scaled to sum to 1.
        scale: factor on the weights.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    activation: str = "silu"
    gated: bool = True
    routing: str = "softmax"
    renormalise: bool = True
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "num_experts", "top_k", "intermediate_size")
        if self.top_k > self.num_experts:
            raise ValueError(
                f"MoESpec.top_k is {self.top_k}; expected at most num_experts = {self.num_experts}"
            )
        if self.routing not in ROUTINGS:
            raise ValueError(f"MoESpec.routing is {self.routing!r}; expected one of {ROUTINGS}")


@dataclasses.dataclass(frozen=True)
class SharedBlockSpec:
    """A transformer block whose weights several branches use (Zamba2): attention over the residual
    stream and the embedded tokens side by side, then an MLP, without residual connections.

    Args:
        attention: reads twice the hidden size.
        mlp: reads what the attention gives.
        norm: before the attention and before the MLP.
    """

    attention: AttentionSpec
    mlp: MLPSpec
    norm: NormSpec = DEFAULT_NORM


@dataclasses.dataclass(frozen=True)
class InjectionSpec:
    """One use of a shared block: low-rank corrections of its first projections, and an output
    projection, all of its own.

    Args:
        block: place of the block in `HybridConfig.shared_blocks`.
        mlp_rank, attention_rank: ranks of the corrections; None leaves one out.
    """

    block: int
    mlp_rank: int | None = None
    attention_rank: int | None = None


PartSpec = (
    Mamba2Spec | AttentionSpec | MLPSpec | GatedDeltaSpec | RGLRUSpec | ShortConvSpec | MoESpec
)
