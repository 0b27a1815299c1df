"""How soon positions of a kind are asked for again, learnt online: hazards by age, and their index.

Ages are counted in requests and fall into buckets that widen geometrically. For each class of
positions two histograms are kept, events (asked for again at that age) and exposure (requests spent
at that age, asked for or not), so that positions whose next use is still to come count too.
"""

import math

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

from planner.demand_constants import DemandConstants

BUCKETS = 64
_PER_OCTAVE = 4
_EDGES = 2.0 ** (np.arange(BUCKETS + 1) / _PER_OCTAVE) - 1
_WIDTHS = np.diff(_EDGES)


def bucket_of(age: Float64[ndarray, " n"]) -> Int64[ndarray, " n"]:
    """The bucket of each age.

    >>> bucket_of(np.array([0.0, 1.0, 3.0, 1e9])).tolist()
    [0, 4, 8, 63]
    """
    return np.minimum((_PER_OCTAVE * np.log2(age + 1)).astype(np.int64), BUCKETS - 1)


class ReuseStatistics:
    """Events and exposure by class and age, forgetting slowly.

    Classes come in groups. A class of which little is known is taken for its group, and a group for
    the average of all.

    Args:
        groups: how many groups there are.
        per_group: classes in each; class c belongs to group c // per_group.
        constants: width of the kernel and the priors; None for the defaults.
    """

    def __init__(
        self, groups: int, per_group: int, constants: DemandConstants | None = None
    ) -> None:
        """Start with nothing learnt."""
        constants = constants or DemandConstants()
        self._kernel = _kernel(constants.kernel_buckets)
        self._prior_events = constants.prior_events
        self._prior_hazard = constants.prior_hazard / (_EDGES[:-1] + 1)
        classes = groups * per_group
        self._per_group = per_group
        self._events = np.zeros((classes, BUCKETS))
        self._exposure = np.zeros((classes, BUCKETS))

    def record(self, kind: int, age: float, used: bool) -> None:
        """A position of class `kind` was asked for again (`used`), or stopped being watched."""
        bucket = min(int(_PER_OCTAVE * np.log2(age + 1)), BUCKETS - 1)
        self._exposure[kind, :bucket] += _WIDTHS[:bucket]
        self._exposure[kind, bucket] += max(age - _EDGES[bucket], 0.5)
        if used:
            self._events[kind, bucket] += 1

    def forget(self, factor: float) -> None:
        """Scale all counts down."""
        self._events *= factor
        self._exposure *= factor

    def indices(
        self, kinds: Int64[ndarray, " n"], ages: Float64[ndarray, " n"]
    ) -> Float64[ndarray, "classes buckets"]:
        """The Gittins index of each class and age: uses per request of holding on, at the best time
        to stop.

        Args:
            kinds: classes of the positions that are being watched now.
            ages: requests since each was last asked for.

        Returns:
            float64 [classes, buckets].

        Source: Gittins, "Bandit Processes and Dynamic Allocation Indices", 1979.
        """
        exposure = self._exposure + _exposure_so_far(len(self._events), kinds, ages)
        by_group = (-1, self._per_group, BUCKETS)
        group_events = self._events.reshape(by_group).sum(1)
        group_exposure = exposure.reshape(by_group).sum(1)
        overall = self._hazard(group_events.sum(0), group_exposure.sum(0), self._prior_hazard)
        hazards = [
            self._hazard(
                self._events[kind],
                exposure[kind],
                self._hazard(group_events[group], group_exposure[group], overall),
            )
            for kind, group in enumerate(np.arange(len(exposure)) // self._per_group)
        ]
        return _gittins(np.stack(hazards))

    def _hazard(
        self,
        events: Float64[ndarray, " b"],
        exposure: Float64[ndarray, " b"],
        prior: Float64[ndarray, " b"],
    ) -> Float64[ndarray, " b"]:
        """Events per exposure, drawn towards neighbouring ages, and these towards a prior."""
        nearby = _drawn(
            np.convolve(events, self._kernel, "same"),
            np.convolve(exposure, self._kernel, "same"),
            prior,
            self._prior_events * _PER_OCTAVE / BUCKETS,
        )
        return _drawn(events, exposure, nearby, self._prior_events)


def _kernel(width: float) -> Float64[ndarray, " taps"]:
    """Weights of neighbouring buckets, out to two and a half standard deviations."""
    reach = math.ceil(2.5 * width)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    return weights / weights.sum()


def _exposure_so_far(
    classes: int, kinds: Int64[ndarray, " n"], ages: Float64[ndarray, " n"]
) -> Float64[ndarray, "classes buckets"]:
    """Requests that the watched positions have spent at each age without being asked for."""
    buckets = bucket_of(ages)
    passed = np.zeros((classes, BUCKETS))
    np.add.at(passed, (kinds, buckets), 1.0)
    # A position in bucket b has passed all buckets before b.
    passed = passed[:, ::-1].cumsum(1)[:, ::-1]
    passed = np.concatenate([passed[:, 1:], np.zeros((classes, 1))], axis=1) * _WIDTHS
    np.add.at(passed, (kinds, buckets), np.maximum(ages - _EDGES[buckets], 0.5))
    return passed


def _drawn(
    events: Float64[ndarray, " b"],
    exposure: Float64[ndarray, " b"],
    prior: Float64[ndarray, " b"],
    worth: float,
) -> Float64[ndarray, " b"]:
    """Events per exposure as if `worth` events had been seen at the prior hazard as well."""
    return (events + worth) / (exposure + worth / np.maximum(prior, 1e-12))


def _gittins(hazards: Float64[ndarray, "classes b"]) -> Float64[ndarray, "classes b"]:
    """max over stopping buckets of expected uses / expected requests held, from each bucket on."""
    through = hazards * _WIDTHS
    used = -np.expm1(-through)
    spent = np.where(through > 1e-9, used / np.maximum(hazards, 1e-300), _WIDTHS)
    before = np.cumsum(through, axis=1) - through  # summed hazard before each bucket
    alive = np.exp(np.minimum(before[:, :, None] - before[:, None, :], 0.0))  # [class, from, at]
    ahead = np.triu(np.ones((BUCKETS, BUCKETS)))
    uses = np.cumsum(alive * ahead * used[:, None, :], axis=2)
    requests = np.cumsum(alive * ahead * spent[:, None, :], axis=2)
    return np.max(np.where(ahead > 0, uses / np.maximum(requests, 1e-300), 0.0), axis=2)
