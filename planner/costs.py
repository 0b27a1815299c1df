"""What prefill costs: FLOPs and bytes as functions of position.

A multiply-add counts as two. Counted are the matrix products, causal attention (only keys that a
position sees) and the recurrence in its chunked form; norms, activations and copies are not.
"""

from dataclasses import dataclass

from planner.checks import check_int
from planner.schedule import Schedule


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """One attention layer.

    Attributes:
        flops_per_pair: for one query position and one key position, all heads, scores and values.
        window: keys that a position sees, itself included; None sees all.
    """

    flops_per_pair: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of one model.

    Attributes:
        linear_flops_per_token: of all products with weights.
        recurrent_flops_per_token: of all recurrent layers' scans and convolutions.
        attention: one entry an attention layer.
        kv_bytes_per_token: keys and values of all attention layers.
        snapshot_bytes: recurrent and convolution states of all recurrent layers at one position.
    """

    linear_flops_per_token: int
    recurrent_flops_per_token: int
    attention: tuple[AttentionCost, ...]
    kv_bytes_per_token: int
    snapshot_bytes: int


def attention_pairs(start: int, end: int, window: int | None = None) -> int:
    """Pairs of a query at a position in start..end - 1 and a key that it sees.

    Args:
        start: first query position.
        end: one past the last.
        window: keys that a position sees, itself included; None sees all.

    Returns:
        The number of pairs.

    Raises:
        ValueError: an argument out of its bounds.

    >>> attention_pairs(0, 4), attention_pairs(2, 4), attention_pairs(2, 4, window=2)
    (10, 7, 4)
    """
    start = check_int("start", start, 0)
    end = check_int("end", end, start)
    if window is None:
        return (end * (end + 1) - start * (start + 1)) // 2
    window = check_int("window", window, 1)
    ramp = min(max(window, start), end)  # positions below it see less than the window
    return attention_pairs(start, ramp) + (end - ramp) * window


def prefill_flops(costs: CostModel, start: int, end: int) -> int:
    """FLOPs of computing the positions start..end - 1, given all that is below them.

    Args:
        costs: of the model.
        start: first position.
        end: one past the last.

    Returns:
        FLOPs; those of two adjoining spans add up to those of their union.
    """
    tokens = end - start
    per_token = costs.linear_flops_per_token + costs.recurrent_flops_per_token
    return tokens * per_token + sum(
        layer.flops_per_pair * attention_pairs(start, end, layer.window)
        for layer in costs.attention
    )


def schedule_flops(costs: CostModel, schedule: Schedule, tile: int) -> int:
    """FLOPs of running a schedule, where every tile that a pass touches is computed whole.

    Args:
        costs: of the model.
        schedule: chunks and passes.
        tile: tokens a tile.

    Returns:
        FLOPs; a pass that ends inside a tile costs the next one that tile again.
    """
    tile = check_int("tile", tile, 1)
    return sum(
        prefill_flops(costs, start // tile * tile, -(-end // tile) * tile)
        for start, end in schedule.passes
    )
