"""Bamba: Mamba-2 with a few attention layers, an MLP in each."""

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
from hybrid.config import (
    AttentionSpec,
    Branch,
    HybridConfig,
    Mamba2Spec,
    MLPSpec,
    NormSpec,
    PartSpec,
)


def _config(options: Options) -> HybridConfig:
    norm = NormSpec(options.find("rms_norm_eps"))
    mixers: dict[str, PartSpec] = {
        "linear_attention": mamba2_spec(options),
        "full_attention": attention_spec(options, default_share=0.5),
    }
    mlp = MLPSpec(
        options.find("intermediate_size"),
        activation=options.only("hidden_act", "silu"),
        bias=options.find("mlp_bias", default=False),
    )
    at = options.find("attn_layer_indices", default=[])

    def kinds() -> list[str]:
        count = options.find("num_hidden_layers")
        return ["full_attention" if i in at else "linear_attention" for i in range(count)]

    return HybridConfig(
        name="bamba",
        hidden_size=options.find("hidden_size"),
        vocab_size=options.find("vocab_size"),
        layers=tuple(
            (Branch((mixers[kind],), norm), Branch((mlp,), norm))
            for kind in options.layer_kinds(set(mixers), kinds)
        ),
        final_norm=norm,
        tie_embeddings=options.find("tie_word_embeddings", default=False),
    )


BAMBA = Family(
    model_types=("bamba",),
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
