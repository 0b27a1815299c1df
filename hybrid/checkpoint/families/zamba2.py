"""Zamba2: Mamba-2 in every layer; before some of them a shared transformer block, corrected at each
use by low-rank adapters, adds to what the mixer reads."""

from hybrid.checkpoint.families.common import ROTARY_BUFFERS, TIED_HEAD, mamba2, root
from hybrid.checkpoint.family import Family
from hybrid.checkpoint.options import Options
from hybrid.checkpoint.rules import Rule, linear, weight
from hybrid.config import (
    AttentionSpec,
    Branch,
    HybridConfig,
    InjectionSpec,
    Mamba2Spec,
    MLPSpec,
    NormSpec,
    SharedBlockSpec,
)

_BLOCK = "shared_transformer"
_QKV_ADAPTER = "{home}shared_transformer.self_attn.linear_%s_adapter_list.{use}"
_MLP_ADAPTER = "{home}shared_transformer.feed_forward.gate_up_proj_adapter_list.{use}"


def _mixer(options: Options, hidden: int, eps: float) -> Mamba2Spec:
    heads, inner = options.find("n_mamba_heads"), options.find("mamba_expand", default=2) * hidden
    return Mamba2Spec(
        num_heads=heads,
        head_dim=options.find("mamba_headdim", default=inner // heads),
        state_dim=options.find("mamba_d_state"),
        num_groups=options.find("mamba_ngroups", default=1),
        conv_width=options.find("mamba_d_conv", default=4),
        conv_bias=options.only("use_conv_bias", True),
        proj_bias=options.only("add_bias_linear", False),
        norm_eps=eps,
        dt_limit=(options.find("time_step_min", default=0.001), float("inf")),
    )


def _block(options: Options, hidden: int, eps: float) -> SharedBlockSpec:
    options.only("use_long_context", False)
    heads = options.find("num_attention_heads")
    head_dim = options.find("attention_head_dim", default=2 * hidden // heads)
    theta, _ = options.rope()
    attention = AttentionSpec(
        num_heads=heads,
        num_kv_heads=options.find("num_key_value_heads", default=heads),
        head_dim=head_dim,
        rope_theta=theta if options.find("use_mem_rope", default=False) else None,
        scale=(head_dim / 2) ** -0.5,
    )
    mlp = MLPSpec(
        options.find("intermediate_size", "ffn_hidden_size", default=4 * hidden),
        activation=options.find("hidden_act", default="gelu"),
    )
    return SharedBlockSpec(attention, mlp, NormSpec(eps))


def _config(options: Options) -> HybridConfig:
    hidden, eps = options.find("hidden_size"), options.find("rms_norm_eps", default=1e-5)
    blocks = options.find("num_mem_blocks", default=1)
    rank = options.find("adapter_rank", default=128)
    mixer = _mixer(options, hidden, eps)
    layers, uses = [], 0
    for kind in options.layer_kinds({"linear_attention", "hybrid"}):
        injection = None
        if kind == "hybrid":
            injection = InjectionSpec(
                block=uses % blocks,
                mlp_rank=rank,
                attention_rank=rank
                if options.find("use_shared_attention_adapter", default=False)
                else None,
            )
            uses += 1
        layers.append((Branch((mixer,), NormSpec(eps), injection=injection),))
    return HybridConfig(
        name="zamba2",
        hidden_size=hidden,
        vocab_size=options.find("vocab_size"),
        layers=tuple(layers),
        final_norm=NormSpec(eps),
        tie_embeddings=options.find("tie_word_embeddings", default=True),
        shared_blocks=(_block(options, hidden, eps),) * min(blocks, uses),
    )


def _low_rank(target: str, source: str) -> tuple[Rule, ...]:
    return (*linear(f"{target}.down", f"{source}.0"), *linear(f"{target}.up", f"{source}.1"))


ZAMBA2 = Family(
    model_types=("zamba2",),
    config=_config,
    root=root("model.embed_tokens", "model.final_layernorm"),
    parts={
        Mamba2Spec: mamba2("mamba"),
        InjectionSpec: (
            *linear("out", "linear"),
            *(
                rule
                for place, kind in enumerate("qkv")
                for rule in _low_rank(f"qkv.{place}", _QKV_ADAPTER % kind)
            ),
            *_low_rank("mlp", _MLP_ADAPTER),
        ),
    },
    branches=(weight("norm", "input_layernorm"),),
    renames=((r"\.mamba_decoder\.", "."),),
    ignored=(TIED_HEAD, ROTARY_BUFFERS),
    shared=(
        *weight("norm", f"{_BLOCK}.input_layernorm"),
        *linear("attention.qkv", *(f"{_BLOCK}.self_attn.{kind}_proj" for kind in "qkv")),
        *linear("attention.out", f"{_BLOCK}.self_attn.o_proj"),
        *weight("mlp_norm", f"{_BLOCK}.pre_ff_layernorm"),
        *linear("mlp.up", f"{_BLOCK}.feed_forward.gate_up_proj"),
        *linear("mlp.down", f"{_BLOCK}.feed_forward.down_proj"),
    ),
)
