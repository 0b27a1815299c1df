"""The constants of served demand: how much is remembered, how fast it is forgotten, the priors."""

import math
from dataclasses import dataclass

from planner.checks import check_int

_WIDEST_KERNEL = 12.0
"""Buckets; a wider kernel would reach past the histogram that it smooths."""


@dataclass(frozen=True, slots=True)
class DemandConstants:
    """What served demand and its statistics of reuse take for given.

    Attributes:
        remembered: positions remembered for each snapshot held, beside the first thousand.
        forget: share of the old counts that is left after a learning step; 1 forgets nothing.
        kernel_buckets: standard deviation of the weights by which neighbouring ages are averaged,
            in buckets of a quarter octave of age.
        prior_events: how many events the prior, the average of all, and that of the group are
            worth, each spread over the octaves of age; and how many the average of neighbouring
            ages is worth, at every age.
        prior_hazard: uses per request, times the age in requests plus one, before anything is
            learnt: the time to the next use is spread evenly over its logarithm, which ranks by
            age, as LRU does.

    Raises:
        ValueError: a constant out of its range; names it.

    >>> DemandConstants(forget=1.5)
    Traceback (most recent call last):
        ...
    ValueError: forget must be above 0 and at most 1, got 1.5
    """

    remembered: int = 6
    forget: float = 0.98
    kernel_buckets: float = 1.5
    prior_events: float = 3.0
    prior_hazard: float = 0.15

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_int("remembered", self.remembered, 1)
        for name, most in (
            ("forget", 1.0),
            ("kernel_buckets", _WIDEST_KERNEL),
            ("prior_events", math.inf),
            ("prior_hazard", 1.0),
        ):
            value = getattr(self, name)
            if not (0 < value <= most and math.isfinite(value)):
                limit = f" and at most {most:g}" if math.isfinite(most) else " and finite"
                raise ValueError(f"{name} must be above 0{limit}, got {value!r}")
