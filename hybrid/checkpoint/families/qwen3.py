"""Qwen3-Next and Qwen3.5 (dense text): gated delta nets with a few gated attention layers; an MLP
or a mixture of experts in each."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from hybrid.checkpoint.families.common import (
    ROTARY_BUFFERS,
    TIED_HEAD,
    attention,
    attention_spec,
    gated_mlp,
    root,
)
from hybrid.checkpoint.family import Family
from hybrid.checkpoint.options import Options
from hybrid.checkpoint.rules import Piece, Rule, conv, linear, stacked, vector, weight
from hybrid.config import (
    AttentionSpec,
    Branch,
    GatedDeltaSpec,
    HybridConfig,
    MLPSpec,
    MoESpec,
    NormSpec,
    PartSpec,
)


def delta_spec(options: Options) -> GatedDeltaSpec:
    """The gated delta net of families that prefix its options with `linear_`."""
    options.only("hidden_act", "silu")
    return GatedDeltaSpec(
        num_heads=options.find("linear_num_value_heads"),
        num_key_heads=options.find("linear_num_key_heads"),
        key_dim=options.find("linear_key_head_dim"),
        value_dim=options.find("linear_value_head_dim"),
        conv_width=options.find("linear_conv_kernel_dim", default=4),
        norm_eps=options.find("rms_norm_eps"),
    )


def _feed(options: Options, layer: int) -> tuple[PartSpec, ...]:
    sparse = (
        options.find("num_experts", default=0) > 0
        and layer not in options.find("mlp_only_layers", default=[])
        and (layer + 1) % options.find("decoder_sparse_step", default=1) == 0
    )
    if not sparse:
        return (MLPSpec(options.find("intermediate_size")),)
    return (
        MoESpec(
            num_experts=options.find("num_experts"),
            top_k=options.find("num_experts_per_tok"),
            intermediate_size=options.find("moe_intermediate_size"),
            renormalise=options.find("norm_topk_prob", default=True),
        ),
        MLPSpec(options.find("shared_expert_intermediate_size"), row_gate=True),
    )


def _config(options: Options) -> HybridConfig:
    options = options.nested("text_config")
    norm = NormSpec(options.find("rms_norm_eps", default=1e-6), zero_centred=True)
    options.only("attention_bias", False)
    options.only("attn_output_gate", True)
    mixers: dict[str, PartSpec] = {
        "linear_attention": delta_spec(options),
        "full_attention": dataclasses.replace(
            attention_spec(options, default_share=0.25), qk_norm=norm, output_gate=True
        ),
    }

    def kinds() -> list[str]:
        every = options.find("full_attention_interval", default=4)
        return [
            "linear_attention" if (i + 1) % every else "full_attention"
            for i in range(options.find("num_hidden_layers"))
        ]

    return HybridConfig(
        name=options.find("model_type"),
        hidden_size=options.find("hidden_size"),
        vocab_size=options.find("vocab_size"),
        layers=tuple(
            (Branch((mixers[kind],), norm), Branch(_feed(options, i), norm))
            for i, kind in enumerate(options.layer_kinds(set(mixers), kinds))
        ),
        final_norm=norm,
        tie_embeddings=options.find("tie_word_embeddings", default=False),
    )


def _gated_qkv(
    spec: AttentionSpec, out: np.ndarray, sources: Sequence[np.ndarray]
) -> Iterator[Piece]:
    """Their query projection holds query and gate of each head in turn; ours has all gates last."""
    q, k, v = sources
    inner, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    heads = q.reshape(spec.num_heads, 2, spec.head_dim, -1)
    yield _by_head(out[:, :inner], spec.num_heads), heads[:, 0].transpose(2, 0, 1)
    yield out[:, inner : inner + kv], k.T
    yield out[:, inner + kv : inner + 2 * kv], v.T
    yield _by_head(out[:, inner + 2 * kv :], spec.num_heads), heads[:, 1].transpose(2, 0, 1)


def _interleaved(
    spec: GatedDeltaSpec, out: np.ndarray, sources: Sequence[np.ndarray]
) -> Iterator[Piece]:
    """Their projections go key head by key head: (query, key, its values, their gates) and (its
    write strengths, decays); ours hold all queries, all keys, and so on."""
    groups, ratio = spec.num_key_heads, spec.num_heads // spec.num_key_heads
    qkvz = (spec.key_dim, spec.key_dim, ratio * spec.value_dim, ratio * spec.value_dim)
    at = 0
    for source, widths in zip(sources, (qkvz, (ratio, ratio)), strict=True):
        heads, row = source.reshape(groups, sum(widths), -1), 0
        for width in widths:
            into = _by_head(out[:, at : at + groups * width], groups)
            yield into, heads[:, row : row + width].transpose(2, 0, 1)
            at, row = at + groups * width, row + width


def _by_head(columns: np.ndarray, heads: int) -> np.ndarray:
    """A view [in, heads, width] of columns."""
    return columns.reshape(len(columns), heads, -1)


def _delta(*projections: Rule) -> tuple[Rule, ...]:
    return (
        *projections,
        *conv("linear_attn.conv1d"),
        *vector("A_log", "linear_attn.A_log"),
        *vector("dt_bias", "linear_attn.dt_bias"),
        *weight("norm", "linear_attn.norm"),
        *linear("out_proj", "linear_attn.out_proj"),
    )


_ATTENTION = (
    Rule("qkv.kernel", tuple(f"self_attn.{kind}_proj.weight" for kind in "qkv"), _gated_qkv),
    *(rule for rule in attention("self_attn") if not rule.target.startswith("qkv.")),
)
_BRANCHES = (weight("norm", "input_layernorm"), weight("norm", "post_attention_layernorm"))
_IGNORED = (TIED_HEAD, ROTARY_BUFFERS, r"^mtp\.", r"^model\.visual\.")

QWEN3_NEXT = Family(
    model_types=("qwen3_next",),
    config=_config,
    root=root("model.embed_tokens", "model.norm"),
    parts={
        GatedDeltaSpec: _delta(
            Rule(
                "in_proj.kernel",
                ("linear_attn.in_proj_qkvz.weight", "linear_attn.in_proj_ba.weight"),
                _interleaved,
            )
        ),
        AttentionSpec: _ATTENTION,
        MLPSpec: (*gated_mlp("mlp"), *linear("row_gate", "mlp.shared_expert_gate")),
        MoESpec: (
            *linear("router", "mlp.gate"),
            Rule(
                "up",
                ("mlp.experts.{expert}.gate_proj.weight", "mlp.experts.{expert}.up_proj.weight"),
                stacked,
            ),
            Rule("down", ("mlp.experts.{expert}.down_proj.weight",), stacked),
        ),
    },
    branches=_BRANCHES,
    renames=((r"\.shared_expert\.", "."),),
    ignored=_IGNORED,
)

QWEN3_5 = Family(
    model_types=("qwen3_5_text", "qwen3_5"),
    config=_config,
    root=root("model.embed_tokens", "model.norm"),
    parts={
        GatedDeltaSpec: _delta(
            *linear("in_proj", *(f"linear_attn.in_proj_{kind}" for kind in ("qkv", "z", "b", "a")))
        ),
        AttentionSpec: _ATTENTION,
        MLPSpec: gated_mlp("mlp"),
    },
    branches=_BRANCHES,
    renames=((r"^model\.language_model\.", "model."),),
    ignored=_IGNORED,
)
