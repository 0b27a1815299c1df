"""Mamba-2: one mixer a layer."""

from hybrid.checkpoint.families.common import TIED_HEAD, dt_limit, mamba2, root
from hybrid.checkpoint.family import Family
from hybrid.checkpoint.options import Options
from hybrid.checkpoint.rules import weight
from hybrid.config import Branch, HybridConfig, Mamba2Spec, NormSpec


def _config(options: Options) -> HybridConfig:
    options.only("hidden_act", "silu")
    hidden, heads = options.find("hidden_size"), options.find("num_heads")
    head_dim = options.find("head_dim")
    if heads * head_dim != int(options.find("expand", default=2) * hidden):
        raise options.unsupported("head_dim", head_dim, "expand * hidden_size / num_heads")
    eps = options.find("layer_norm_epsilon", default=1e-5)
    mixer = Mamba2Spec(
        num_heads=heads,
        head_dim=head_dim,
        state_dim=options.find("state_size"),
        num_groups=options.find("n_groups"),
        conv_width=options.find("conv_kernel", default=4),
        conv_bias=options.find("use_conv_bias", default=True),
        proj_bias=options.find("use_bias", default=False),
        norm_eps=eps,
        dt_limit=dt_limit(options),
    )
    layer = (Branch((mixer,), NormSpec(eps)),)
    return HybridConfig(
        name="mamba2",
        hidden_size=hidden,
        vocab_size=options.find("vocab_size"),
        layers=(layer,) * options.find("num_hidden_layers"),
        final_norm=NormSpec(eps),
        tie_embeddings=options.find("tie_word_embeddings", default=False),
    )


MAMBA2 = Family(
    model_types=("mamba2",),
    config=_config,
    root=root("backbone.embeddings", "backbone.norm_f"),
    layer="backbone.layers.{layer}.",
    parts={Mamba2Spec: mamba2("mixer")},
    branches=(weight("norm", "norm"),),
    renames=((r"^backbone\.embedding\.", "backbone.embeddings."),),
    ignored=(TIED_HEAD,),
)
