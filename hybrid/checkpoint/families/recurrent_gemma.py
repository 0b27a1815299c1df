"""RecurrentGemma: RG-LRU blocks with a few layers of local attention, a GeGLU in each."""

from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np

from hybrid.checkpoint.families.common import (
    ROTARY_BUFFERS,
    TIED_HEAD,
    attention,
    gated_mlp,
    root,
)
from hybrid.checkpoint.family import Family
from hybrid.checkpoint.options import Options
from hybrid.checkpoint.rules import Piece, Rule, conv, linear, vector, weight
from hybrid.config import (
    AttentionSpec,
    Branch,
    HybridConfig,
    MLPSpec,
    NormSpec,
    PartSpec,
    RGLRUSpec,
)


def _config(options: Options) -> HybridConfig:
    hidden, heads = options.find("hidden_size"), options.find("num_attention_heads")
    norm = NormSpec(options.find("rms_norm_eps", default=1e-6), zero_centred=True)
    activation = options.find("hidden_activation", default="gelu_pytorch_tanh")
    theta, share = options.rope(default_share=0.5)
    head_dim = options.find("head_dim", default=hidden // heads)
    mixers: dict[str, PartSpec] = {
        "recurrent": RGLRUSpec(
            width=options.find("lru_width", default=hidden),
            num_blocks=heads,
            conv_width=options.find("conv1d_width", default=4),
            activation=activation,
        ),
        "attention": AttentionSpec(
            num_heads=heads,
            num_kv_heads=options.find("num_key_value_heads", default=heads),
            head_dim=head_dim,
            rope_theta=theta,
            rotary_dim=int(head_dim * share),
            window=options.find("attention_window_size", default=2048),
            bias=options.find("attention_bias", default=False),
            out_bias=True,
        ),
    }
    mlp = MLPSpec(options.find("intermediate_size") // 2, activation=activation, bias=True)
    cycle = options.find("block_types", "_block_types", default=["recurrent"] * 2 + ["attention"])
    for kind in cycle:
        if kind not in mixers:
            raise options.unsupported("block_types", kind, f"layers among {sorted(mixers)}")
    # The factor is rounded to bf16 whatever the dtype of the model.
    factor = float(np.sqrt(hidden).astype(ml_dtypes.bfloat16))
    return HybridConfig(
        name="recurrent_gemma",
        hidden_size=hidden,
        vocab_size=options.find("vocab_size"),
        layers=tuple(
            (Branch((mixers[cycle[i % len(cycle)]],), norm), Branch((mlp,), norm))
            for i in range(options.find("num_hidden_layers"))
        ),
        final_norm=norm,
        tie_embeddings=options.find("tie_word_embeddings", default=True),
        embedding_multiplier=factor,
        logits_soft_cap=options.find("logits_soft_cap", default=30.0),
    )


def _halves(spec: RGLRUSpec, out: np.ndarray, sources: Sequence[np.ndarray]) -> Iterator[Piece]:
    """Input gate, then recurrence gate, side by side in the last axis."""
    first, second = np.split(out, 2, axis=-1)
    yield first, sources[0]
    yield second, sources[1]


_LRU = "temporal_block.rg_lru"

RECURRENT_GEMMA = Family(
    model_types=("recurrent_gemma",),
    config=_config,
    root=root("model.embed_tokens", "model.final_norm"),
    parts={
        RGLRUSpec: (
            *linear("in_proj", "temporal_block.linear_y", "temporal_block.linear_x"),
            *conv("temporal_block.conv_1d"),
            *(
                Rule(
                    f"gates_{kind}",
                    (f"{_LRU}.input_gate_{kind}", f"{_LRU}.recurrent_gate_{kind}"),
                    _halves,
                )
                for kind in ("weight", "bias")
            ),
            *vector("decay", f"{_LRU}.recurrent_param"),
            *linear("out_proj", "temporal_block.linear_out"),
        ),
        AttentionSpec: attention("temporal_block"),
        MLPSpec: gated_mlp("mlp_block"),
    },
    branches=(weight("norm", "temporal_pre_norm"), weight("norm", "channel_pre_norm")),
    ignored=(TIED_HEAD, ROTARY_BUFFERS),
)
