"""Published sizes, as the options that their config.json files hold: they read like a checkpoint's.

Only options that decide shapes or the function are kept. `load_pretrained` reads the file that lies
beside the weights instead of these.
"""

from pathlib import Path
from typing import Any

from hybrid.checkpoint.families import BY_MODEL_TYPE
from hybrid.checkpoint.options import Options
from hybrid.config import HybridConfig

_M, _A = "linear_attention", "full_attention"
_LATE_TENS = [_A if i % 10 == 5 else _M for i in range(40)]
_ZAMBA2_HYBRID = (6, 12, 18, 24, 30, 36, 42, 47, 51)

_GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "vocab_size": 100352,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "mamba_n_heads": 48,
    "mamba_d_state": 128,
    "position_embedding_type": "nope",
    "rms_norm_eps": 1e-5,
    "embedding_multiplier": 12.0,
    "tie_word_embeddings": True,
}
_GRANITE_1536: dict[str, Any] = {
    **_GRANITE,
    "hidden_size": 1536,
    "layer_types": _LATE_TENS,
    "attention_multiplier": 1 / 128,
    "logits_scaling": 6.0,
    "residual_multiplier": 0.22,
}

PUBLISHED: dict[str, dict[str, Any]] = {
    "bamba-9b": {
        "model_type": "bamba",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "attn_layer_indices": [9, 18, 27],
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "mamba_n_heads": 128,
        "mamba_d_state": 128,
        "rms_norm_eps": 1e-5,
    },
    "falcon-h1-0.5b": {
        "model_type": "falcon_h1",
        "vocab_size": 32784,
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rope_theta": 1e11,
        "mamba_d_ssm": 1536,
        "mamba_n_heads": 24,
        "mamba_d_state": 128,
        "mamba_norm_before_gate": False,
        "rms_norm_eps": 1e-5,
        "attention_out_multiplier": 0.9375,
        "embedding_multiplier": 5.656854249492381,
        "key_multiplier": 0.390625,
        "lm_head_multiplier": 0.0390625,
        "mlp_multipliers": [0.8838834764831844, 0.5859375],
        "ssm_in_multiplier": 1.25,
        "ssm_multipliers": [0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738],
        "ssm_out_multiplier": 0.23570226039551587,
    },
    "granite-4.0-h-350m": {
        **_GRANITE,
        "hidden_size": 768,
        "layer_types": [_A if i in (10, 13, 17, 27) else _M for i in range(32)],
        "shared_intermediate_size": 2048,
        "attention_multiplier": 1 / 64,
        "logits_scaling": 3.0,
        "residual_multiplier": 0.246,
    },
    "granite-4.0-h-1b": {**_GRANITE_1536, "shared_intermediate_size": 4096},
    "granite-4.0-h-tiny": {
        **_GRANITE_1536,
        "intermediate_size": 512,
        "shared_intermediate_size": 1024,
        "num_local_experts": 64,
        "num_experts_per_tok": 6,
    },
    "lfm2-1.2b": {
        "model_type": "lfm2",
        "vocab_size": 65536,
        "hidden_size": 2048,
        "block_ff_dim": 12288,
        "num_hidden_layers": 16,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "mamba2-2.7b": {
        "model_type": "mamba2",
        "vocab_size": 50288,
        "hidden_size": 2560,
        "num_hidden_layers": 64,
        "num_heads": 80,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 1,
        "tie_word_embeddings": True,
    },
    "nemotron-h-8b": {
        "model_type": "nemotron_h",
        "vocab_size": 131072,
        "hidden_size": 4096,
        "intermediate_size": 21504,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
    },
    "olmo-hybrid-7b": {
        "model_type": "olmo_hybrid",
        "vocab_size": 100352,
        "hidden_size": 3840,
        "intermediate_size": 11008,
        "layer_types": ([_M] * 3 + [_A]) * 8,
        "num_attention_heads": 30,
        "linear_num_key_heads": 30,
        "linear_num_value_heads": 30,
        "linear_key_head_dim": 96,
        "linear_value_head_dim": 192,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": None},
    },
    "qwen3-next-80b-a3b": {
        "model_type": "qwen3_next",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "rope_theta": 1e7,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "rms_norm_eps": 1e-6,
    },
    "qwen3.5-0.8b": {
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "rope_theta": 1e7,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    },
    "recurrentgemma-2b": {
        "model_type": "recurrent_gemma",
        "vocab_size": 256000,
        "hidden_size": 2560,
        "intermediate_size": 15360,
        "num_hidden_layers": 26,
        "num_attention_heads": 10,
        "num_key_value_heads": 1,
        "lru_width": 2560,
    },
    "zamba2-2.7b": {
        "model_type": "zamba2",
        "vocab_size": 32000,
        "hidden_size": 2560,
        "layers_block_type": ["hybrid" if i in _ZAMBA2_HYBRID else _M for i in range(54)],
        "num_mem_blocks": 2,
        "n_mamba_heads": 80,
        "mamba_d_state": 64,
        "num_attention_heads": 32,
    },
}


def published(name: str) -> HybridConfig:
    """The architecture of a published size.

    Args:
        name: a key of `PUBLISHED`.

    Raises:
        KeyError: there is none of that name.
    """
    options = PUBLISHED[name]
    return BY_MODEL_TYPE[options["model_type"]].config(Options(options, Path(name)))
