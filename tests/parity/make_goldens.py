"""Write goldens/: tiny random models of every family as the transformers library saves and runs
them.

    pip install 'waypoint[parity]'
    python tests/parity/make_goldens.py [NAME ...]

The models differ from the published ones in size alone; between them they use the options that the
published sizes do not all use (biases, both norm orders, experts, adapters, shards, bf16 files).
"""

import copy
import inspect
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent / "goldens"
TOTAL, OFFSETS, VOCAB = 40, (16, 17, 32), 64

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.1,
}
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}


def _only(options: dict, *dropped: str) -> dict:
    return {name: value for name, value in options.items() if name not in dropped}


MODELS = {
    "bamba": (
        "BambaConfig",
        {
            **SMALL,
            **MAMBA,
            "num_hidden_layers": 2,
            "attn_layer_indices": [1],
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "time_step_limit": (0.05, 0.9),
        },
    ),
    "falcon_h1": (
        "FalconH1Config",
        {
            **SMALL,
            **MAMBA,
            "num_hidden_layers": 2,
            "mamba_d_ssm": 64,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": True,
            "mamba_conv_bias": False,
            "embedding_multiplier": 1.5,
            "lm_head_multiplier": 0.6,
            "key_multiplier": 0.8,
            "attention_in_multiplier": 0.7,
            "attention_out_multiplier": 1.2,
            "ssm_in_multiplier": 0.9,
            "ssm_out_multiplier": 1.1,
            "ssm_multipliers": [0.9, 0.8, 1.1, 1.2, 0.7],
            "mlp_multipliers": [0.9, 1.1],
        },
    ),
    "granite_moe": (
        "GraniteMoeHybridConfig",
        {
            **SMALL,
            **MAMBA,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "intermediate_size": 24,
            "shared_intermediate_size": 32,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "position_embedding_type": "rope",
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
            "tie_word_embeddings": True,
        },
    ),
    "lfm2": (
        "Lfm2Config",
        {
            **SMALL,
            "num_hidden_layers": 2,
            "layer_types": ["conv", "full_attention"],
            "conv_bias": True,
            "block_auto_adjust_ff_dim": True,
            "block_multiple_of": 16,
        },
    ),
    "mamba2": (
        "Mamba2Config",
        {
            **_only(SMALL, "num_attention_heads", "num_key_value_heads", "intermediate_size"),
            "num_hidden_layers": 2,
            "num_heads": 4,
            "head_dim": 16,
            "state_size": 8,
            "n_groups": 1,
            "chunk_size": 16,
            "use_bias": True,
        },
    ),
    "nemotron_h": (
        "NemotronHConfig",
        {
            **SMALL,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
            "head_dim": 8,
            "mamba_num_heads": 4,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 2,
            "chunk_size": 16,
            "n_routed_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 24,
            "routed_scaling_factor": 1.5,
        },
    ),
    "olmo_hybrid": (
        "OlmoHybridConfig",
        {
            **SMALL,
            **DELTA,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
        },
    ),
    "qwen3_5": (
        "Qwen3_5TextConfig",
        {
            **SMALL,
            **DELTA,
            "head_dim": 16,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_next": (
        "Qwen3NextConfig",
        {
            **SMALL,
            **DELTA,
            "head_dim": 16,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 24,
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
        },
    ),
    "recurrent_gemma": (
        "RecurrentGemmaConfig",
        {
            **SMALL,
            "num_key_value_heads": 1,
            "num_hidden_layers": 2,
            "block_types": ["recurrent", "attention"],
            "lru_width": 32,
            "attention_window_size": 12,
            "w_init_variance_scale": 0.3,
        },
    ),
    "zamba2": (
        "Zamba2Config",
        {
            **SMALL,
            "num_key_value_heads": 4,
            "num_hidden_layers": 3,
            "layers_block_type": ["hybrid", "hybrid", "hybrid"],
            "num_mem_blocks": 2,
            "n_mamba_heads": 4,
            "mamba_d_state": 8,
            "mamba_ngroups": 1,
            "chunk_size": 16,
            "adapter_rank": 4,
            "use_shared_attention_adapter": True,
            "use_mem_rope": True,
        },
    ),
}
SHARDED, BF16 = "mamba2", "qwen3_5"


def build(name: str) -> torch.nn.Module:
    """A model whose every parameter is away from its neutral value."""
    kind, options = MODELS[name]
    torch.manual_seed(sum(name.encode()))
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**options))
    model = model.eval().float()
    with torch.no_grad():
        choice_biases = [v for k, v in model.named_buffers() if "e_score" in k]
        for value in [*model.parameters(), *choice_biases]:
            if value.dim() == 1:
                value.add_(0.2 * torch.randn_like(value))
        if name == BF16:
            for value in model.parameters():
                value.copy_(value.bfloat16())
    return model


def states(cache, offset: int) -> dict[str, np.ndarray]:
    """The fixed-size states of every layer that has them, in the library's layout."""
    found = {}
    for index in range(len(cache.layers)):
        for key, get in (("rec", cache.get_recurrent_state), ("conv", cache.get_conv_state)):
            try:
                value = get(index, state_idx=0)
            except (AttributeError, IndexError, TypeError, ValueError):
                continue
            if value is not None:
                found[f"l{index}.{key}@{offset}"] = value[0].numpy().copy()
    return found


@torch.no_grad()
def run(model: torch.nn.Module, tokens: np.ndarray, with_states: bool) -> dict[str, np.ndarray]:
    """Logits, states after every offset, and the noise of a resume from each."""
    ids = torch.tensor(tokens[None].astype(np.int64))
    logits = model(ids, use_cache=False).logits[0]
    golden = {
        "tokens": tokens,
        "logits": logits.numpy(),
        "offsets": np.asarray(OFFSETS, np.int32),
    }
    noise = []
    placed = "position_ids" in inspect.signature(model.forward).parameters
    for offset in OFFSETS if with_states else ():
        first = model(ids[:, :offset], use_cache=True)
        golden |= states(first.cache, offset)
        # Bamba counts positions from 0 on every call unless it is told.
        where = {"position_ids": torch.arange(offset, TOTAL)[None]} if placed else {}
        rest = model(ids[:, offset:], cache=copy.deepcopy(first.cache), use_cache=True, **where)
        noise.append(float((rest.logits[0] - logits[offset:]).abs().max()))
    assert max(noise, default=0.0) < 1e-5, f"transformers' own resume differs by {noise}"
    return {**golden, "resume_err": np.asarray(noise, np.float32)}


def write(name: str) -> None:
    """Make one golden folder anew."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = build(name)
    tokens = np.random.default_rng(sum(name.encode())).integers(3, VOCAB, TOTAL, dtype=np.int32)
    golden = run(model, tokens, with_states=name != "recurrent_gemma")
    saved = copy.deepcopy(model).bfloat16() if name == BF16 else model
    saved.save_pretrained(folder, max_shard_size="30KB" if name == SHARDED else "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(folder / "golden.npz", **golden)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(
        f"{name}: {size / 1024:.0f} KiB, {len(golden) - 4} states, largest logit "
        f"{np.abs(golden['logits']).max():.2f}, resume noise {golden['resume_err'].max(initial=0)}"
    )


if __name__ == "__main__":
    for requested in sys.argv[1:] or MODELS:
        write(requested)
