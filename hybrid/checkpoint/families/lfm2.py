"""LFM2: gated short convolutions with a few attention layers, an MLP in each."""

import dataclasses

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
from hybrid.checkpoint.rules import conv, linear, weight
from hybrid.config import (
    AttentionSpec,
    Branch,
    HybridConfig,
    MLPSpec,
    NormSpec,
    PartSpec,
    ShortConvSpec,
)


def _intermediate_size(options: Options) -> int:
    size = options.find("block_ff_dim", "intermediate_size")
    if not options.find("block_auto_adjust_ff_dim", default=True):
        return size
    size = int(2 * size / 3)
    size = int(options.find("block_ffn_dim_multiplier", default=1.0) * size)
    unit = options.find("block_multiple_of", default=256)
    return -(-size // unit) * unit


def _config(options: Options) -> HybridConfig:
    norm = NormSpec(options.find("norm_eps", "block_norm_eps", default=1e-5))
    mixers: dict[str, PartSpec] = {
        "conv": ShortConvSpec(
            options.find("conv_L_cache", default=3), bias=options.find("conv_bias", default=False)
        ),
        "full_attention": dataclasses.replace(
            attention_spec(options, default_theta=1e6), qk_norm=norm
        ),
    }
    mlp = Branch((MLPSpec(_intermediate_size(options)),), norm)

    def kinds() -> list[str]:
        count = options.find("num_hidden_layers")
        at = options.find("full_attn_idxs", default=range(count))
        return ["full_attention" if i in at else "conv" for i in range(count)]

    return HybridConfig(
        name="lfm2",
        hidden_size=options.find("hidden_size"),
        vocab_size=options.find("vocab_size"),
        layers=tuple(
            (Branch((mixers[kind],), norm), mlp) for kind in options.layer_kinds(set(mixers), kinds)
        ),
        final_norm=norm,
        tie_embeddings=options.find("tie_embedding", "tie_word_embeddings", default=True),
    )


LFM2 = Family(
    model_types=("lfm2",),
    config=_config,
    root=root("model.embed_tokens", "model.embedding_norm"),
    parts={
        ShortConvSpec: (
            *linear("in_proj", "conv.in_proj"),
            *conv("conv.conv"),
            *linear("out_proj", "conv.out_proj"),
        ),
        AttentionSpec: attention("self_attn", out="out_proj", norm="layernorm"),
        MLPSpec: gated_mlp("feed_forward", gate="w1", up="w3", down="w2"),
    },
    branches=(weight("norm", "operator_norm"), weight("norm", "ffn_norm")),
    ignored=(TIED_HEAD, ROTARY_BUFFERS),
)
