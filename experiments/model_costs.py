"""The cost model of a model configuration."""

from typing import NamedTuple

from hybrid.config import (
    AttentionSpec,
    Compute,
    GatedDeltaSpec,
    HybridConfig,
    InjectionSpec,
    Mamba2Spec,
    MLPSpec,
    MoESpec,
    PartSpec,
    RGLRUSpec,
    SharedBlockSpec,
    ShortConvSpec,
)
from hybrid.state import kv_bytes_per_token, snapshot_bytes
from planner.costs import AttentionCost, CostModel


class _Count(NamedTuple):
    """FLOPs a token of products with weights, and of scans and convolutions."""

    linear: int
    recurrent: int = 0


def model_costs(config: HybridConfig, compute: Compute) -> CostModel:
    """Count a model's FLOPs and bytes.

    The output head is left out: it runs once a request, on the last token. Of a mixture of experts
    the experts that a row chooses count, whatever the implementation computes besides.

    Args:
        config: the architecture.
        compute: dtype of keys, values and convolution inputs; rows of a scan chunk.

    Returns:
        Costs a token, a pair of positions and a snapshot.

    Raises:
        TypeError: a kind of layer that has no count here.
    """
    hidden = config.hidden_size
    counts, attention = [], []
    for branch in config.branches():
        if branch.injection is not None:
            block = config.shared_blocks[branch.injection.block]
            counts.append(_injection(branch.injection, block, hidden))
            attention.append(_pairs(block.attention))
        for spec in branch.parts:
            counts.append(_part(spec, hidden, compute.chunk))
            if isinstance(spec, AttentionSpec):
                attention.append(_pairs(spec))
    return CostModel(
        sum(count.linear for count in counts),
        sum(count.recurrent for count in counts),
        tuple(attention),
        kv_bytes_per_token(config, compute),
        snapshot_bytes(config, compute),
    )


def _pairs(spec: AttentionSpec) -> AttentionCost:
    return AttentionCost(4 * spec.num_heads * spec.head_dim, spec.window)


def _part(spec: PartSpec, hidden: int, chunk: int) -> _Count:
    if isinstance(spec, Mamba2Spec):
        into = spec.inner_dim + spec.conv_dim + spec.num_heads
        return _Count(2 * hidden * (into + spec.inner_dim), _ssd(spec, chunk))
    if isinstance(spec, GatedDeltaSpec):
        into = spec.conv_dim + spec.values_dim + 2 * spec.num_heads
        return _Count(2 * hidden * (into + spec.values_dim), _gated_delta(spec, chunk))
    if isinstance(spec, RGLRUSpec):
        gates = 4 * spec.width * (spec.width // spec.num_blocks)
        return _Count(6 * hidden * spec.width + gates, 2 * spec.width * (spec.conv_width + 1))
    if isinstance(spec, ShortConvSpec):
        return _Count(8 * hidden * hidden, 2 * spec.conv_width * hidden)
    if isinstance(spec, AttentionSpec):
        return _Count(_attention(spec, hidden, hidden))
    if isinstance(spec, MLPSpec):
        return _Count(_mlp(spec.gated, spec.intermediate_size, hidden) + 2 * hidden * spec.row_gate)
    if isinstance(spec, MoESpec):
        experts = spec.top_k * _mlp(spec.gated, spec.intermediate_size, hidden)
        return _Count(2 * hidden * spec.num_experts + experts)
    raise TypeError(f"no cost is known for a layer of kind {type(spec).__name__}")


def _mlp(gated: bool, inner: int, hidden: int) -> int:
    return 2 * (3 if gated else 2) * hidden * inner


def _attention(spec: AttentionSpec, in_size: int, out_size: int) -> int:
    queries = spec.num_heads * spec.head_dim * (2 if spec.output_gate else 1)
    keys_and_values = 2 * spec.num_kv_heads * spec.head_dim
    return 2 * in_size * (queries + keys_and_values) + 2 * out_size * spec.num_heads * spec.head_dim


def _injection(spec: InjectionSpec, block: SharedBlockSpec, hidden: int) -> _Count:
    """A use of a shared block: attention over twice the hidden size, MLP, corrections, output."""
    attention, mlp = block.attention, block.mlp
    linear = _attention(attention, 2 * hidden, hidden)
    linear += _mlp(mlp.gated, mlp.intermediate_size, hidden) + 2 * hidden * hidden
    if spec.mlp_rank is not None:
        inner = mlp.intermediate_size * (2 if mlp.gated else 1)
        linear += 2 * spec.mlp_rank * (hidden + inner)
    if spec.attention_rank is not None:
        widths = (attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim
        linear += 2 * spec.attention_rank * (3 * 2 * hidden + widths)
    return _Count(linear)


def _ssd(spec: Mamba2Spec, chunk: int) -> int:
    """Chunked SSD a token: C B^T and its product with x within the chunk, the chunk's state, the
    state's part of the output (Dao and Gu, 2024, section 6); and the convolution's taps."""
    within = 2 * chunk * (spec.num_groups * spec.state_dim + spec.num_heads * spec.head_dim)
    across = 4 * spec.num_heads * spec.head_dim * spec.state_dim
    return within + across + 2 * spec.conv_width * spec.conv_dim


def _gated_delta(spec: GatedDeltaSpec, chunk: int) -> int:
    """Chunked gated delta rule a token: K K^T and Q K^T, the inverse applied to keys and values,
    the scores applied to the new values; the state read for corrections and for the output, and
    written (Yang et al., 2024, section 3.3); and the convolution's taps."""
    within = 4 * chunk * spec.keys_dim
    within += 2 * chunk * spec.num_heads * (spec.key_dim + 2 * spec.value_dim)
    across = 6 * spec.num_heads * spec.key_dim * spec.value_dim
    return within + across + 2 * spec.conv_width * spec.conv_dim
