"""The cost model of a model configuration."""

from hybrid.config import AttentionSpec, Compute, HybridConfig, Mamba2Spec, MLPSpec
from planner.costs import AttentionCost, CostModel


def model_costs(config: HybridConfig, compute: Compute) -> CostModel:
    """Count a model's FLOPs and bytes.

    The output head is left out: it runs once a request, on the last token.

    Args:
          config: the architecture.
          compute: dtype of keys, values and convolution inputs; rows of a scan chunk.

    Returns:
          Costs a token, a pair of positions and a snapshot.

    Raises:
          TypeError: a kind of layer that has no count here.
    """
    width = 2 if compute.dtype == "bfloat16" else 4
    linear = recurrent = kv_bytes = snapshot_bytes = 0
    attention = []
    for spec in config.parts():
        if isinstance(spec, Mamba2Spec):
            linear += _mamba2_linear(spec, config.hidden_size)
            recurrent += _mamba2_scan(spec, compute.chunk)
            snapshot_bytes += 4 * spec.num_heads * spec.head_dim * spec.state_dim
            snapshot_bytes += width * (spec.conv_width - 1) * spec.conv_dim
        elif isinstance(spec, AttentionSpec):
            linear += _attention_linear(spec, config.hidden_size)
            attention.append(AttentionCost(4 * spec.num_heads * spec.head_dim, spec.window))
            kv_bytes += 2 * width * spec.num_kv_heads * spec.head_dim
        elif isinstance(spec, MLPSpec):
            matrices = 3 if spec.gated else 2
            linear += 2 * matrices * config.hidden_size * spec.intermediate_size
        else:
            raise TypeError(f"no cost is known for a layer of kind {type(spec).__name__}")
    return CostModel(linear, recurrent, tuple(attention), kv_bytes, snapshot_bytes)


def _mamba2_linear(spec: Mamba2Spec, hidden_size: int) -> int:
    into = spec.inner_dim + spec.conv_dim + spec.num_heads
    return 2 * hidden_size * (into + spec.inner_dim)


def _mamba2_scan(spec: Mamba2Spec, chunk: int) -> int:
    """Chunked SSD a token: C B^T and its product with x within the chunk, the chunk's state, the
    state's part of the output (Dao and Gu, 2024, section 6); and the convolution's taps."""
    within = 2 * chunk * (spec.num_groups * spec.state_dim + spec.num_heads * spec.head_dim)
    across = 4 * spec.num_heads * spec.head_dim * spec.state_dim
    return within + across + 2 * spec.conv_width * spec.conv_dim


def _attention_linear(spec: AttentionSpec, hidden_size: int) -> int:
    queries = spec.num_heads * spec.head_dim * (2 if spec.output_gate else 1)
    keys_and_values = 2 * spec.num_kv_heads * spec.head_dim
    return 2 * hidden_size * (queries + keys_and_values + spec.num_heads * spec.head_dim)
