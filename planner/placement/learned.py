"""Placements that learn where matches end."""

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from planner.checks import check_int
from planner.optimal_placement import optimal_positions
from planner.placement.context import PlacementContext, PlacementPolicy

MAX_BINS = 512


class OverlapHistogram:
    """How deep requests have matched, old ones fading; bins widen as deeper matches come.

    Args:
        decay: weight that a request keeps when the next one comes, in (0, 1]; 1 forgets nothing.

    Raises:
        ValueError: a decay out of range.
    """

    def __init__(self, decay: float = 1.0) -> None:
        """Start empty."""
        if not 0.0 < decay <= 1.0:
            raise ValueError(f"decay must lie in (0, 1], got {decay}")
        self.decay = decay
        self.bin_steps = 1
        self.seen = 0
        self._gain = 1.0
        self._weights = np.zeros(MAX_BINS)

    def add(self, depth_steps: int) -> None:
        """Count a match.

        Args:
            depth_steps: where it ended, in grid steps.
        """
        while depth_steps // self.bin_steps >= MAX_BINS:
            pairs = self._weights.reshape(-1, 2).sum(axis=1)
            self._weights = np.concatenate([pairs, np.zeros(MAX_BINS - len(pairs))])
            self.bin_steps *= 2
        self.seen += 1
        self._gain /= self.decay
        self._weights[depth_steps // self.bin_steps] += self._gain
        if self._gain > 1e100:
            self._weights /= self._gain
            self._gain = 1.0

    def weights(self, depth_steps: int) -> Float64[ndarray, " bins"]:
        """Weights of the bins up to a depth, newest request 1.

        Args:
            depth_steps: the last depth of interest, in grid steps.

        Returns:
            float64 [bins], a bin being `bin_steps` grid steps.
        """
        return self._weights[: depth_steps // self.bin_steps + 1] / self._gain


class OptimalForHistogram(PlacementPolicy):
    """The `count` positions that replay least if matches end where earlier ones did.

    Source: Sparse Prefix Caching (arXiv 2605.05219) plans the checkpoints of one cache entry for
    the distribution of its overlap depths. Here there is one distribution over all prompts, learnt
    online with exponential decay, cut at the prompt's length, in at most 512 bins whose lower edges
    are the candidate positions; the plan is redone when a thirtieth of the requests are new.
    Until a match has been seen it captures nothing.
    """

    def __init__(self, count: int, decay: float = 0.999) -> None:
        """Start with an empty histogram.

        Args:
            count: snapshots a prompt.
            decay: weight that a request keeps when the next one comes.
        """
        self.count = check_int("count", count, 1)
        self.histogram = OverlapHistogram(decay)
        self._plans: dict[tuple[int, int], tuple[int, ...]] = {}
        self._planned_at = 0

    @property
    def spec(self) -> str:
        """dp:count,decay."""
        return f"dp:{self.count},{self.histogram.decay:g}"

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """The plan for the prompt's length."""
        step = self.histogram.bin_steps * context.grid
        plan = (step, context.total // step)
        if plan not in self._plans:
            weights = self.histogram.weights(context.total // context.grid)
            self._plans[plan] = optimal_positions(weights, self.count).positions
        return context.capturable(p * step for p in self._plans[plan])

    def observe(self, context: PlacementContext) -> None:
        """Count where the prompt's match ended."""
        self.histogram.add(context.matched // context.grid)
        if self.histogram.seen - self._planned_at > self._planned_at // 30:
            self._planned_at = self.histogram.seen
            self._plans.clear()
