"""Where M snapshots replay least, given how deep later requests have matched: exact, in O(N M)."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy import ndarray

# Chords this many kept points to each side find the long bridges of a hull in a few sweeps.
_CHORD_REACHES = (1024, 256, 64, 16, 4)
_CHORD_ROUNDS = 2


@dataclass(frozen=True)
class OptimalPlacement:
    """Snapshot positions and the replay that they leave, in the unit of the histogram's bins."""

    positions: tuple[int, ...]
    cost: float


def expected_replay(weights: Float64[ndarray, " bins"], positions: Iterable[int]) -> float:
    """Replay that a set of snapshots leaves: sum over t of weights[t] * (t - s(t)).

    s(t) is the deepest position at or below t, 0 (the start of the prompt) where there is none.

    Args:
        weights: float64 [bins], how often a request matched to depth t.
        positions: snapshot positions, in bins, any order.

    Returns:
        The sum, in bins.

    >>> expected_replay(np.array([1.0, 1.0, 2.0, 1.0]), [2])
    2.0
    """
    p_T = _check_weights(weights)
    starts = np.array(sorted({0, *positions}), dtype=np.int64)
    depths_T = np.arange(len(p_T))
    nearest_T = starts[np.searchsorted(starts, depths_T, side="right") - 1]
    return float(p_T @ (depths_T - nearest_T))


def optimal_positions(weights: Float64[ndarray, " bins"], count: int) -> OptimalPlacement:
    """The positions that minimise `expected_replay`, at most `count` of them.

    With S0[b], S1[b] the sums of weights[t] and of t * weights[t] over t < b, a snapshot at a that
    serves the depths a..b-1 leaves (S1[b] - S1[a]) - a (S0[b] - S0[a]), so the best total over the
    depths below b with m snapshots is

        F_m(b) = S1[b] + min over a of { (F_{m-1}(a) - S1[a] + a S0[a]) - a S0[b] }.

    The braces are lines in S0[b] with slope -a: the minimum is read off the lower convex hull of
    their intercepts over a, all b at once. It may run over all a, not only a <= b, for an a above b
    never wins against a = b: its braces exceed those of b by F_{m-1}(a) - F_{m-1}(b) plus the sum
    of weights[t] * (a - t) over b <= t < a, neither of which is negative.

    Args:
        weights: float64 [bins], finite and not negative: how often a match ended at depth t.
        count: snapshots allowed.

    Returns:
        Ascending positions within 1..bins - 1, fewer than `count` where more would not help.

    Raises:
        ValueError: weights that are no histogram, or a negative count.

    Source: the checkpoint placement problem of Sparse Prefix Caching (arXiv 2605.05219); the hull
        form is the textbook convex-hull trick for costs that satisfy the quadrangle inequality.

    >>> optimal_positions(np.array([0.0, 0.0, 5.0, 1.0, 0.0, 4.0]), 2)
    OptimalPlacement(positions=(2, 5), cost=1.0)
    """
    p_T = _check_weights(weights)
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    edges = np.arange(len(p_T) + 1, dtype=np.float64)
    mass = np.concatenate([[0.0], np.cumsum(p_T)])
    moment = np.concatenate([[0.0], np.cumsum(p_T * edges[:-1])])
    corner = edges * mass - moment
    best = moment
    choices: list[Int64[ndarray, " edges"]] = []
    for _ in range(min(count, int(np.count_nonzero(p_T[1:])))):
        intercepts = best + corner
        hull, slopes = _lower_hull(intercepts)
        choice = hull[np.searchsorted(slopes, mass, side="left")]
        best = intercepts[choice] - choice * mass + moment
        choices.append(choice)
    positions: set[int] = set()
    end = len(p_T)
    for choice in reversed(choices):
        end = min(int(choice[end]), end)
        positions.add(end)
    kept = tuple(sorted(p for p in positions if 0 < p < len(p_T) and p_T[p:].any()))
    return OptimalPlacement(kept, expected_replay(p_T, kept))


def _check_weights(weights: Float64[ndarray, " bins"]) -> Float64[ndarray, " bins"]:
    p_T = np.asarray(weights, dtype=np.float64)
    if p_T.ndim != 1 or p_T.size == 0:
        raise ValueError(f"weights must be a non-empty vector, got shape {p_T.shape}")
    if not np.isfinite(p_T).all() or (p_T < 0).any():
        raise ValueError("weights must be finite and not negative")
    return p_T


def _lower_hull(
    y: Float64[ndarray, " points"], chord_rounds: int = _CHORD_ROUNDS
) -> tuple[Int64[ndarray, " kept"], Float64[ndarray, " gaps"]]:
    """Indices of the lower convex hull of (i, y[i]) and the rising slopes between them.

    A point on or above a chord between two other points is not on the hull, so a sweep may drop all
    such points at once. Sweeps over neighbours settle most inputs; where a sweep drops few, longer
    chords do; a walk along links drops what is left one by one, so the work stays linear.
    """
    x = np.arange(len(y), dtype=np.float64)
    while True:
        slopes = np.diff(y) / np.diff(x)
        above = slopes[:-1] >= slopes[1:]
        dropped = int(np.count_nonzero(above))
        if dropped == 0:
            return x.astype(np.int64), slopes
        if dropped * 16 >= len(x):
            x, y = _without_inner(x, y, above)
        elif chord_rounds > 0:
            chord_rounds -= 1
            x, y = _without_inner(x, y, above)
            for reach in _CHORD_REACHES:
                x, y = _without_inner(x, y, _above_chord(x, y, reach))
        else:
            x, y = _unlink_above(x, y, np.flatnonzero(above) + 1)


def _without_inner(
    x: Float64[ndarray, " points"], y: Float64[ndarray, " points"], above: Bool[ndarray, " inner"]
) -> tuple[Float64[ndarray, " kept"], Float64[ndarray, " kept"]]:
    keep = np.ones(len(x), dtype=bool)
    keep[1:-1] = ~above
    return x[keep], y[keep]


def _above_chord(
    x: Float64[ndarray, " points"], y: Float64[ndarray, " points"], reach: int
) -> Bool[ndarray, " inner"]:
    """Whether each inner point lies above the chord from `reach` points before to as many after."""
    left_x, right_x = _neighbours(x, reach)
    left_y, right_y = _neighbours(y, reach)
    inner_x, inner_y = x[1:-1], y[1:-1]
    return (inner_y - left_y) * (right_x - inner_x) > (right_y - inner_y) * (inner_x - left_x)


def _neighbours(
    values: Float64[ndarray, " points"], reach: int
) -> tuple[Float64[ndarray, " inner"], Float64[ndarray, " inner"]]:
    """The values `reach` places before and after each inner one; the end ones beyond the ends."""
    count = len(values)
    padded = np.empty(count + 2 * reach)
    padded[:reach], padded[reach : reach + count], padded[reach + count :] = (
        values[0],
        values,
        values[-1],
    )
    return padded[1 : count - 1], padded[2 * reach + 1 : 2 * reach + count - 1]


def _unlink_above(
    x: Float64[ndarray, " points"], y: Float64[ndarray, " points"], suspects: Int64[ndarray, " few"]
) -> tuple[Float64[ndarray, " kept"], Float64[ndarray, " kept"]]:
    """Drop points above the chord of their neighbours, outward from the suspects, until none is."""
    last = len(x) - 1
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    keep = np.ones(len(x), dtype=bool)
    todo = suspects.tolist()
    while todo:
        i = todo.pop()
        if not 0 < i < last or not keep[i]:
            continue
        left, right = before.get(i, i - 1), after.get(i, i + 1)
        if (y[i] - y[left]) / (x[i] - x[left]) >= (y[right] - y[i]) / (x[right] - x[i]):
            keep[i] = False
            after[left], before[right] = right, left
            todo += (left, right)
    return x[keep], y[keep]
