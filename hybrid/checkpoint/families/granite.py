"""Granite 4.0 H: Mamba-2 with a few attention layers, an MLP and, in the larger ones, experts
beside it; fixed factors on embedding, residual branches, scores and logits."""

import dataclasses

from hybrid.checkpoint.families.common import (
    ROTARY_BUFFERS,
    TIED_HEAD,
    attention,
    attention_spec,
    mamba2,
    mamba2_spec,
    root,
)
from hybrid.checkpoint.family import Family
from hybrid.checkpoint.options import Options
from hybrid.checkpoint.rules import Rule, experts, linear, weight
from hybrid.config import (
    AttentionSpec,
    Branch,
    HybridConfig,
    Mamba2Spec,
    MLPSpec,
    MoESpec,
    NormSpec,
    PartSpec,
)


def _config(options: Options) -> HybridConfig:
    norm = NormSpec(options.find("rms_norm_eps", default=1e-6))
    attend = dataclasses.replace(
        attention_spec(options), scale=options.find("attention_multiplier", default=1.0)
    )
    if options.only("position_embedding_type", "nope", "rope") != "rope":
        attend = dataclasses.replace(attend, rope_theta=None)
    mixers: dict[str, PartSpec] = {
        "linear_attention": mamba2_spec(options),
        "full_attention": attend,
    }
    feed: tuple[PartSpec, ...] = (MLPSpec(options.find("shared_intermediate_size")),)
    if options.find("num_local_experts", default=0):
        moe = MoESpec(
            num_experts=options.find("num_local_experts"),
            top_k=options.find("num_experts_per_tok"),
            intermediate_size=options.find("intermediate_size"),
            routing="softmax_of_top",
        )
        feed = (moe, *feed)
    factor = options.find("residual_multiplier", default=1.0)
    return HybridConfig(
        name="granite",
        hidden_size=options.find("hidden_size"),
        vocab_size=options.find("vocab_size"),
        layers=tuple(
            (
                Branch((mixers[kind],), norm, multiplier=factor),
                Branch(feed, norm, multiplier=factor),
            )
            for kind in options.layer_kinds(set(mixers))
        ),
        final_norm=norm,
        tie_embeddings=options.find("tie_word_embeddings", default=False),
        embedding_multiplier=options.find("embedding_multiplier", default=1.0),
        logits_multiplier=1.0 / options.find("logits_scaling", default=1.0),
    )


GRANITE = Family(
    model_types=("granitemoehybrid",),
    config=_config,
    root=root("model.embed_tokens", "model.norm"),
    parts={
        Mamba2Spec: mamba2("mamba"),
        AttentionSpec: attention("self_attn"),
        MLPSpec: (
            *linear("up", "shared_mlp.input_linear"),
            *linear("down", "shared_mlp.output_linear"),
        ),
        MoESpec: (
            *linear("router", "block_sparse_moe.router.layer"),
            Rule("up", ("block_sparse_moe.input_linear.weight",), experts),
            Rule("down", ("block_sparse_moe.output_linear.weight",), experts),
        ),
    },
    branches=(weight("norm", "input_layernorm"), weight("norm", "post_attention_layernorm")),
    ignored=(TIED_HEAD, ROTARY_BUFFERS),
)
