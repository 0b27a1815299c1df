"""Nemotron-H: one mixer, attention, MLP or mixture of experts a layer; no positions anywhere."""

from hybrid.checkpoint.families.common import TIED_HEAD, attention, mamba2, root
from hybrid.checkpoint.family import Family
from hybrid.checkpoint.options import Options
from hybrid.checkpoint.rules import Rule, linear, stacked, vector, weight
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

_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


def _mixer(options: Options, eps: float) -> Mamba2Spec:
    options.only("mamba_hidden_act", "silu")
    return Mamba2Spec(
        num_heads=options.find("mamba_num_heads"),
        head_dim=options.find("mamba_head_dim"),
        state_dim=options.find("ssm_state_size"),
        num_groups=options.find("n_groups", "mamba_n_groups"),
        conv_width=options.find("conv_kernel", "mamba_d_conv", default=4),
        conv_bias=options.find("use_conv_bias", "mamba_conv_bias", default=True),
        proj_bias=options.find("use_bias", default=False),
        norm_eps=eps,
        # transformers bounds the step size from below by time_step_min and ignores
        # time_step_limit.
        dt_limit=(options.find("time_step_min", "mamba_dt_min", default=0.001), float("inf")),
    )


def _experts(options: Options, activation: str) -> tuple[PartSpec, ...]:
    options.only("n_group", 1)
    options.only("moe_latent_size", None)
    options.only("n_shared_experts", 1)
    return (
        MoESpec(
            num_experts=options.find("n_routed_experts"),
            top_k=options.find("num_experts_per_tok"),
            intermediate_size=options.find("moe_intermediate_size"),
            activation=activation,
            gated=False,
            routing="sigmoid",
            renormalise=options.find("norm_topk_prob", default=True),
            scale=options.find("routed_scaling_factor", default=1.0),
        ),
        MLPSpec(
            options.find("moe_shared_expert_intermediate_size"),
            activation=activation,
            gated=False,
            bias=options.find("mlp_bias", default=False),
        ),
    )


def _config(options: Options) -> HybridConfig:
    eps = options.find("layer_norm_epsilon", "rms_norm_eps", default=1e-5)
    activation = options.find("mlp_hidden_act", default="relu2")
    heads = options.find("num_attention_heads")
    options.only("sliding_window", None)

    def from_pattern() -> list[str]:
        pattern = options.find("hybrid_override_pattern")
        if set(pattern) - set(_LETTERS):
            raise options.unsupported("hybrid_override_pattern", pattern, "letters among M * - E")
        return [_LETTERS[letter] for letter in pattern]

    kinds = options.layer_kinds(set(_LETTERS.values()), from_pattern)
    mlp = MLPSpec(
        options.find("intermediate_size"),
        activation=activation,
        gated=False,
        bias=options.find("mlp_bias", default=False),
    )
    parts: dict[str, tuple[PartSpec, ...]] = {
        "linear_attention": (_mixer(options, eps),),
        "full_attention": (
            AttentionSpec(
                num_heads=heads,
                num_kv_heads=options.find("num_key_value_heads", default=heads),
                head_dim=options.find("head_dim", "attention_head_dim"),
                rope_theta=None,
            ),
        ),
        "mlp": (mlp,),
        "moe": _experts(options, activation) if "moe" in kinds else (),
    }
    return HybridConfig(
        name="nemotron_h",
        hidden_size=options.find("hidden_size"),
        vocab_size=options.find("vocab_size"),
        layers=tuple((Branch(parts[kind], NormSpec(eps)),) for kind in kinds),
        final_norm=NormSpec(eps),
        tie_embeddings=options.find("tie_word_embeddings", default=False),
    )


NEMOTRON_H = Family(
    model_types=("nemotron_h",),
    config=_config,
    root=root("backbone.embeddings", "backbone.norm_f"),
    layer="backbone.layers.{layer}.",
    parts={
        Mamba2Spec: mamba2("mixer"),
        AttentionSpec: attention("mixer"),
        MLPSpec: (*linear("up", "mixer.up_proj"), *linear("down", "mixer.down_proj")),
        MoESpec: (
            *linear("router", "mixer.gate"),
            *vector("choice_bias", "mixer.gate.e_score_correction_bias"),
            Rule("up", ("mixer.experts.{expert}.up_proj.weight",), stacked),
            Rule("down", ("mixer.experts.{expert}.down_proj.weight",), stacked),
        ),
    },
    branches=(weight("norm", "norm"),),
    renames=((r"^model\.", "backbone."), (r"\.shared_experts\.", ".")),
    ignored=(TIED_HEAD, r"^mtp\."),
)
