"""OLMo Hybrid: gated delta nets whose states may flip sign, norms before them; attention layers
with norms after their branches."""

import dataclasses

from hybrid.checkpoint.families.common import (
    ROTARY_BUFFERS,
    TIED_HEAD,
    attention,
    attention_spec,
    gated_mlp,
    root,
)
from hybrid.checkpoint.families.qwen3 import delta_spec
from hybrid.checkpoint.family import Family
from hybrid.checkpoint.options import Options
from hybrid.checkpoint.rules import conv, linear, vector, weight
from hybrid.config import AttentionSpec, Branch, GatedDeltaSpec, HybridConfig, MLPSpec, NormSpec

_DELTA_NORM_EPS = 1e-5  # fixed in transformers, whatever rms_norm_eps says


def _config(options: Options) -> HybridConfig:
    norm = NormSpec(options.find("rms_norm_eps", default=1e-6))
    delta = dataclasses.replace(
        delta_spec(options),
        norm_eps=_DELTA_NORM_EPS,
        negative_eigenvalues=options.find("linear_allow_neg_eigval", default=True),
    )
    attend = dataclasses.replace(attention_spec(options), qk_norm=norm, qk_norm_joint=True)
    # Released files leave positions out by a base that is null.
    if options.find("rope_parameters", default={}).get("rope_theta", 1) is None:
        attend = dataclasses.replace(attend, rope_theta=None)
    mlp = MLPSpec(options.find("intermediate_size"))
    layers = {
        "linear_attention": (Branch((delta,), norm), Branch((mlp,), norm)),
        "full_attention": (Branch((attend,), None, norm), Branch((mlp,), None, norm)),
    }
    return HybridConfig(
        name="olmo_hybrid",
        hidden_size=options.find("hidden_size"),
        vocab_size=options.find("vocab_size"),
        layers=tuple(layers[kind] for kind in options.layer_kinds(set(layers))),
        final_norm=norm,
        tie_embeddings=options.find("tie_word_embeddings", default=False),
    )


OLMO_HYBRID = Family(
    model_types=("olmo_hybrid",),
    config=_config,
    root=root("model.embed_tokens", "model.norm"),
    parts={
        GatedDeltaSpec: (
            *linear("in_proj", *(f"linear_attn.{kind}_proj" for kind in "qkvgba")),
            *conv(*(f"linear_attn.{kind}_conv1d" for kind in "qkv")),
            *vector("A_log", "linear_attn.A_log"),
            *vector("dt_bias", "linear_attn.dt_bias"),
            *weight("norm", "linear_attn.o_norm"),
            *linear("out_proj", "linear_attn.o_proj"),
        ),
        AttentionSpec: attention("self_attn"),
        MLPSpec: gated_mlp("mlp"),
    },
    branches=(
        (*weight("norm", "input_layernorm"), *weight("post_norm", "post_attention_layernorm")),
        (
            *weight("norm", "post_attention_layernorm"),
            *weight("post_norm", "post_feedforward_layernorm"),
        ),
    ),
    renames=(
        (r"\.attention_layer_norm\.", ".input_layernorm."),
        (r"\.feedforward_layer_norm\.", ".post_attention_layernorm."),
    ),
    ignored=(TIED_HEAD, ROTARY_BUFFERS),
)
