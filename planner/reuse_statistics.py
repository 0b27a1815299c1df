"""How soon positions of a kind are asked for again, learnt online: hazards by age, and their index.

Ages are counted in requests and fall into buckets that widen geometrically. For each class of
positions two histograms are kept, events (asked for again at that age) and exposure (requests spent
at that age, asked for or not), so that positions whose next use is still to come count too.
"""

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray

BUCKETS = 64
_PER_OCTAVE = 4
_EDGES = 2.0 ** (np.arange(BUCKETS + 1) / _PER_OCTAVE) - 1
_WIDTHS = np.diff(_EDGES)
_KERNEL = np.exp(-0.5 * (np.arange(-4, 5) / 1.5) ** 2)
_KERNEL /= _KERNEL.sum()
_PRIOR_HAZARD = 0.15 / (_EDGES[:-1] + 1)
"""Before anything is learnt: as if the time to the next use were spread evenly over its logarithm,
which ranks by age, as LRU does."""
_PRIOR_EVENTS = 3.0
"""How many events the prior, the average of all, and that of the group are worth, each spread over
the octaves of age; and how many the average of neighbouring ages is worth, at every age."""


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
    """

    def __init__(self, groups: int, per_group: int) -> None:
        """Start with nothing learnt."""
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
        overall = _hazard(group_events.sum(0), group_exposure.sum(0), _PRIOR_HAZARD)
        hazards = [
            _hazard(
                self._events[kind],
                exposure[kind],
                _hazard(group_events[group], group_exposure[group], overall),
            )
            for kind, group in enumerate(np.arange(len(exposure)) // self._per_group)
        ]
        return _gittins(np.stack(hazards))


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


def _hazard(
    events: Float64[ndarray, " b"],
    exposure: Float64[ndarray, " b"],
    prior: Float64[ndarray, " b"],
) -> Float64[ndarray, " b"]:
    """Events per exposure, drawn towards that of neighbouring ages, and this towards a prior."""
    nearby = _drawn(
        np.convolve(events, _KERNEL, "same"),
        np.convolve(exposure, _KERNEL, "same"),
        prior,
        _PRIOR_EVENTS * _PER_OCTAVE / BUCKETS,
    )
    return _drawn(events, exposure, nearby, _PRIOR_EVENTS)


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
