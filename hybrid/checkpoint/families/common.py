"""Rules and option readings that families share."""

from hybrid.checkpoint.options import Options
from hybrid.checkpoint.rules import Rule, conv, linear, vector, weight
from hybrid.config import AttentionSpec, Mamba2Spec

ROTARY_BUFFERS = r"rotary_emb\.inv_freq$"
TIED_HEAD = r"^lm_head\.weight$"


def root(embedding: str, final_norm: str) -> tuple[Rule, ...]:
    """Embedding, final norm and, where it is not tied, the head."""
    return (
        *weight("embedding", embedding),
        *weight("final_norm", final_norm),
        *linear("lm_head", "lm_head"),
    )


def mamba2(name: str) -> tuple[Rule, ...]:
    """A Mamba-2 mixer called `name` in its layer."""
    return (
        *linear("in_proj", f"{name}.in_proj"),
        *conv(f"{name}.conv1d"),
        *vector("A_log", f"{name}.A_log"),
        *vector("D", f"{name}.D"),
        *vector("dt_bias", f"{name}.dt_bias"),
        *weight("norm", f"{name}.norm"),
        *linear("out_proj", f"{name}.out_proj"),
    )


def attention(name: str, out: str = "o_proj", norm: str = "norm") -> tuple[Rule, ...]:
    """Attention with apart query, key and value projections."""
    return (
        *linear("qkv", *(f"{name}.{kind}_proj" for kind in "qkv")),
        *linear("out", f"{name}.{out}"),
        *weight("q_norm", f"{name}.q_{norm}"),
        *weight("k_norm", f"{name}.k_{norm}"),
    )


def gated_mlp(
    name: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj"
) -> tuple[Rule, ...]:
    """A gated MLP whose gate and up projections are stored apart."""
    return (
        *linear("up", f"{name}.{gate}", f"{name}.{up}"),
        *linear("down", f"{name}.{down}"),
    )


def mamba2_spec(options: Options) -> Mamba2Spec:
    """The mixer of families that prefix its options with `mamba_`."""
    options.only("hidden_act", "silu")
    hidden = options.find("hidden_size")
    inner = options.find("mamba_d_ssm", default=options.find("mamba_expand", default=2) * hidden)
    heads = options.find("mamba_n_heads")
    head_dim = options.find("mamba_d_head", default="auto")
    head_dim = inner // heads if head_dim == "auto" else head_dim
    if heads * head_dim != inner:
        raise options.unsupported(
            "mamba_d_head", head_dim, f"inner width {inner} / mamba_n_heads {heads}"
        )
    return Mamba2Spec(
        num_heads=heads,
        head_dim=head_dim,
        state_dim=options.find("mamba_d_state"),
        num_groups=options.find("mamba_n_groups", default=1),
        conv_width=options.find("mamba_d_conv", default=4),
        conv_bias=options.find("mamba_conv_bias", default=True),
        proj_bias=options.find("mamba_proj_bias", default=False),
        norm_eps=options.find("rms_norm_eps"),
        dt_limit=dt_limit(options),
    )


def dt_limit(options: Options) -> tuple[float, float]:
    """Bounds of the step size."""
    low, high = options.find("time_step_limit", default=(0.0, float("inf")))
    return float(low), float(high)


def attention_spec(
    options: Options, default_share: float = 1.0, default_theta: float = 10000.0
) -> AttentionSpec:
    """Grouped-query attention with a rotary embedding, as most families name its options.

    Args:
        options: of the checkpoint.
        default_share, default_theta: of a head that rotates, and base of the rotation, where the
            options do not say.
    """
    heads = options.find("num_attention_heads")
    head_dim = options.find("head_dim", default=options.find("hidden_size") // heads)
    theta, share = options.rope(default_theta, default_share)
    bias = options.find("attention_bias", default=False)
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=options.find("num_key_value_heads", default=heads),
        head_dim=head_dim,
        rope_theta=theta,
        rotary_dim=int(head_dim * share),
        bias=bias,
        out_bias=bias,
    )
