"""Placements that space snapshots over the prompt without looking at what matched."""

from dataclasses import dataclass
from math import isqrt

from planner.checks import check_int
from planner.placement.context import PlacementContext
from planner.placement.rules import Rule


@dataclass(frozen=True, repr=False)
class Balanced(Rule):
    """`count` snapshots that cut the prompt into equal parts.

    Source: the balanced baseline of Sparse Prefix Caching (arXiv 2605.05219); optimal when every
    match depth is equally likely. The parts are of the whole prompt, so a warm request captures
    only those of its positions that it computes.

    Attributes:
        count: snapshots a prompt.
    """

    name = "balanced"
    count: int

    def __post_init__(self) -> None:
        """Refuse a count under one."""
        check_int("count", self.count, 1)

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """The ends of the parts but the last, floored to the grid."""
        parts = self.count + 1
        return context.capturable(
            context.floor(context.total * part // parts) for part in range(1, parts)
        )


@dataclass(frozen=True, repr=False)
class SquareRoot(Rule):
    """As many snapshots as the square root of the prompt's grid steps, evenly spaced.

    Source: the square-root schedule of activation checkpointing (arXiv 1604.06174), a baseline of
    Sparse Prefix Caching: stored states and the steps between two of them grow alike.
    """

    name = "sqrt"

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """Multiples of the square root, in grid steps."""
        step = max(isqrt(context.total // context.grid), 1) * context.grid
        return context.capturable(range(step, context.total + 1, step))


@dataclass(frozen=True, repr=False)
class Dyadic(Rule):
    """Powers of two, in grid steps from the start of the prompt.

    Source: the logarithmic baseline of Sparse Prefix Caching: the replay is at most half the match,
    whatever its depth.
    """

    name = "dyadic"

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """1, 2, 4, ... grid steps."""
        steps = (context.total // context.grid).bit_length()
        return context.capturable(context.grid << power for power in range(steps))
