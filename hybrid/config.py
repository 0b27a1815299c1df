"""What a model is made of: a config is a list of residual branches over part specs.

A layer is a tuple of *branches*. A branch normalises the residual stream, runs its parts side by
side on that input, sums what they give, and adds the sum to the stream. A Bamba layer is two
branches (mixer, MLP), a Nemotron-H layer is one, a Falcon-H1 layer runs two mixers in its first
branch. New families come from new parts, not from new models.
"""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from hybrid.specs import (
    DEFAULT_NORM,
    AttentionSpec,
    GatedDeltaSpec,
    InjectionSpec,
    Mamba2Spec,
    MLPSpec,
    MoESpec,
    NormSpec,
    PartSpec,
    RGLRUSpec,
    SharedBlockSpec,
    ShortConvSpec,
    check_positive,
)
from kernels.checks import IMPLEMENTATIONS

__all__ = [
    "AttentionSpec",
    "Branch",
    "Compute",
    "GatedDeltaSpec",
    "HybridConfig",
    "InjectionSpec",
    "Layer",
    "MLPSpec",
    "Mamba2Spec",
    "MoESpec",
    "NormSpec",
    "PartSpec",
    "RGLRUSpec",
    "SharedBlockSpec",
    "ShortConvSpec",
]


@dataclasses.dataclass(frozen=True)
class Branch:
    """One residual branch: `stream + multiplier * post_norm(sum of parts(norm(stream)))`.

    Args:
        parts: run side by side on the same input; their outputs are summed in this order.
        norm: before the parts; None leaves it out.
        post_norm: after the sum; None leaves it out.
        multiplier: factor on what is added to the stream.
        injection: a shared block whose output is added to what the norm reads, though not to the
            stream (Zamba2); None for none.
    """

    parts: tuple[PartSpec, ...]
    norm: NormSpec | None = DEFAULT_NORM
    post_norm: NormSpec | None = None
    multiplier: float = 1.0
    injection: InjectionSpec | None = None

    def __post_init__(self) -> None:
        """Refuse a branch that adds nothing."""
        if not self.parts:
            raise ValueError("Branch.parts is (); expected at least one part")


Layer = tuple[Branch, ...]


@dataclasses.dataclass(frozen=True)
class HybridConfig:
    """An architecture: everything that decides parameter shapes and the function, nothing about how
    it is run.

    Args:
        name: preset or checkpoint name, for reports.
        vocab_size: V; the default 256 takes bytes as tokens.
        hidden_size: D, width of the residual stream.
        layers: the layer pattern.
        final_norm: before the head.
        tie_embeddings: the head is the transposed embedding.
        embedding_multiplier: factor on the embedded tokens.
        logits_multiplier: factor on the logits.
        logits_soft_cap: logits become cap * tanh(logits / cap); None leaves them.
        shared_blocks: blocks that the branches' injections name by their place here.
    """

    name: str
    hidden_size: int
    layers: tuple[Layer, ...]
    vocab_size: int = 256
    final_norm: NormSpec = DEFAULT_NORM
    tie_embeddings: bool = True
    embedding_multiplier: float = 1.0
    logits_multiplier: float = 1.0
    logits_soft_cap: float | None = None
    shared_blocks: tuple[SharedBlockSpec, ...] = ()

    def __post_init__(self) -> None:
        check_positive(self, "vocab_size", "hidden_size")
        if not self.layers:
            raise ValueError("HybridConfig.layers is empty; expected at least one layer")
        for injection in self.injections():
            if not 0 <= injection.block < len(self.shared_blocks):
                raise ValueError(
                    f"InjectionSpec.block is {injection.block}; expected the place of one of "
                    f"{len(self.shared_blocks)} shared_blocks"
                )

    def branches(self) -> Iterator[Branch]:
        """All branches in the order in which they run."""
        for layer in self.layers:
            yield from layer

    def injections(self) -> Iterator[InjectionSpec]:
        """All uses of shared blocks in the order in which they run."""
        for branch in self.branches():
            if branch.injection is not None:
                yield branch.injection

    def parts(self) -> Iterator[PartSpec]:
        """All parts in the order in which they run; a shared block's attention and MLP come once a
        use, since each use has its own keys and values."""
        for branch in self.branches():
            if branch.injection is not None:
                block = self.shared_blocks[branch.injection.block]
                yield block.attention
                yield block.mlp
            yield from branch.parts

    def to_json(self) -> str:
        """The config as canonical JSON (sorted keys, each spec tagged with its class), for
        fingerprints and run folders."""
        return json.dumps(_tagged(self), sort_keys=True)


def _tagged(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _tagged(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"spec": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [_tagged(item) for item in value]
    if isinstance(value, float):
        return repr(value)
    return value


PRECISIONS = ("default", "high", "highest")
"""Names of `jax.lax.Precision`."""


@dataclasses.dataclass(frozen=True)
class Compute:
    """How a model is run; a change here may change bits, never the meaning.

    Args:
        dtype: of activations, KV and matmul operands: "float32" or "bfloat16". States and decays
            are fp32 always.
        param_dtype: of stored parameters; None means `dtype`.
        implementation: of the scans: "auto", "reference", "xla" or "pallas".
        chunk: rows that a scan treats as one matrix product.
        kv_tile: keys that attention reads at once; anchored at position 0.
        precision: of fp32 matrix products, one of `PRECISIONS`; an fp32 operand is rounded to bf16
            on TPU unless asked.
    """

    dtype: str = "float32"
    param_dtype: str | None = None
    implementation: str = "auto"
    chunk: int = 64
    kv_tile: int = 512
    precision: str = "highest"

    def __post_init__(self) -> None:
        for name in ("dtype", "param_dtype"):
            value = getattr(self, name)
            if value not in ("float32", "bfloat16") and not (
                name == "param_dtype" and value is None
            ):
                raise ValueError(f"Compute.{name} is {value!r}; expected 'float32' or 'bfloat16'")
        for name, known in (("implementation", IMPLEMENTATIONS), ("precision", PRECISIONS)):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"Compute.{name} is {value!r}; expected one of {', '.join(known)}")
        check_positive(self, "chunk", "kv_tile")

    def to_json(self) -> str:
        """As canonical JSON, for fingerprints."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)
