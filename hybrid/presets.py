"""Named configurations: for tests, sized for a CPU, with trained weights, and published sizes."""

import dataclasses

from hybrid.config import AttentionSpec, Branch, HybridConfig, Mamba2Spec, MLPSpec, PartSpec
from hybrid.published import PUBLISHED, published


def _bamba_like(
    name: str, hidden_size: int, pattern: str, mamba: Mamba2Spec, attention: AttentionSpec, mlp: int
) -> HybridConfig:
    mixers: dict[str, PartSpec] = {"M": mamba, "A": attention}
    return HybridConfig(
        name=name,
        hidden_size=hidden_size,
        layers=tuple((Branch((mixers[kind],)), Branch((MLPSpec(mlp),))) for kind in pattern),
    )


def _tiny() -> HybridConfig:
    """Three layers, 0.14M parameters: recurrent, convolution and KV states, small enough for
    hundreds of test runs."""
    return _bamba_like(
        "tiny",
        64,
        "MAM",
        Mamba2Spec(num_heads=4, head_dim=16, state_dim=16, num_groups=2),
        AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16),
        128,
    )


def _default() -> HybridConfig:
    """Eight layers, 7.8M parameters: three Mamba-2 to one attention, for a CPU."""
    return _bamba_like(
        "default",
        256,
        "MMMAMMMA",
        Mamba2Spec(num_heads=8, head_dim=64, state_dim=64),
        AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=64),
        768,
    )


def _python_1m() -> HybridConfig:
    """Six layers, 1.5M parameters; comes with weights that were trained on Python source."""
    return _bamba_like(
        "python-1m",
        128,
        "MMAMMA",
        Mamba2Spec(num_heads=4, head_dim=64, state_dim=32),
        AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=64),
        384,
    )


PRESETS = {"tiny": _tiny, "default": _default, "python-1m": _python_1m}


def preset_names() -> list[str]:
    """All presets, ours first."""
    return [*PRESETS, *PUBLISHED]


def preset(name: str) -> HybridConfig:
    """The configuration called `name`.

    Raises:
        ValueError: no preset has that name; the message lists those that exist.
    """
    if name in PRESETS:
        return PRESETS[name]()
    if name in PUBLISHED:
        return dataclasses.replace(published(name), name=name)
    raise ValueError(f"unknown preset {name!r}; expected one of {', '.join(preset_names())}")
