"""Falcon-H1: Mamba-2 and attention side by side in every layer, scaled by muP factors."""

import dataclasses

from hybrid.checkpoint.families.common import (
    ROTARY_BUFFERS,
    TIED_HEAD,
    attention,
    attention_spec,
    gated_mlp,
    mamba2,
    mamba2_spec,
    root,
)
from hybrid.checkpoint.family import Family
from hybrid.checkpoint.options import Options
from hybrid.checkpoint.rules import weight
from hybrid.config import AttentionSpec, Branch, HybridConfig, Mamba2Spec, MLPSpec, NormSpec


def _config(options: Options) -> HybridConfig:
    norm = NormSpec(options.find("rms_norm_eps"))
    options.only("projectors_bias", options.find("mamba_proj_bias", default=False))
    normed = options.find("mamba_rms_norm", default=False)
    mixer = dataclasses.replace(
        mamba2_spec(options),
        norm_eps=norm.eps if normed else None,
        norm_before_gate=options.find("mamba_norm_before_gate", default=True),
        input_multiplier=options.find("ssm_in_multiplier", default=1.0),
        output_multiplier=options.find("ssm_out_multiplier", default=1.0),
        projection_multipliers=tuple(options.find("ssm_multipliers", default=[1.0] * 5)),
    )
    heads = dataclasses.replace(
        attention_spec(options),
        input_multiplier=options.find("attention_in_multiplier", default=1.0),
        key_multiplier=options.find("key_multiplier", default=1.0),
        output_multiplier=options.find("attention_out_multiplier", default=1.0),
    )
    gate, down = options.find("mlp_multipliers", default=[1.0, 1.0])
    mlp = MLPSpec(
        options.find("intermediate_size"),
        bias=options.find("mlp_bias", default=False),
        gate_multiplier=gate,
        down_multiplier=down,
    )
    layer = (Branch((mixer, heads), norm), Branch((mlp,), norm))
    return HybridConfig(
        name="falcon_h1",
        hidden_size=options.find("hidden_size"),
        vocab_size=options.find("vocab_size"),
        layers=(layer,) * options.find("num_hidden_layers"),
        final_norm=norm,
        tie_embeddings=options.find("tie_word_embeddings", default=False),
        embedding_multiplier=options.find("embedding_multiplier", default=1.0),
        logits_multiplier=options.find("lm_head_multiplier", default=1.0),
    )


FALCON_H1 = Family(
    model_types=("falcon_h1",),
    config=_config,
    root=root("model.embed_tokens", "model.final_layernorm"),
    parts={
        Mamba2Spec: mamba2("mamba"),
        AttentionSpec: attention("self_attn"),
        MLPSpec: gated_mlp("feed_forward"),
    },
    branches=(weight("norm", "input_layernorm"), weight("norm", "pre_ff_layernorm")),
    ignored=(TIED_HEAD, ROTARY_BUFFERS),
)
