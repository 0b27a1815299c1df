import itertools
import statistics
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import optimal_placement
from planner.optimal_placement import expected_replay, optimal_positions

weights = st.lists(st.integers(0, 9), min_size=1, max_size=9).map(lambda p: np.array(p, float))


def quadratic_dp(p_T: np.ndarray, count: int) -> float:
    """Every end against every start, a row of starts at a time: O(N^2 M)."""
    bins = len(p_T)
    starts = np.arange(bins + 1.0)
    mass = np.concatenate([[0.0], np.cumsum(p_T)])
    moment = np.concatenate([[0.0], np.cumsum(p_T * np.arange(bins))])
    best = moment
    for _ in range(count):
        nxt = np.empty_like(best)
        for end in range(bins + 1):
            rows = slice(0, end + 1)
            replay = (moment[end] - moment[rows]) - starts[rows] * (mass[end] - mass[rows])
            nxt[end] = (best[rows] + replay).min()
        best = nxt
    return float(best[-1])


def direct_replay(p_T: np.ndarray, positions: tuple[int, ...]) -> float:
    return sum(
        p * (t - max((s for s in positions if s <= t), default=0)) for t, p in enumerate(p_T)
    )


@given(weights, st.integers(0, 4))
@settings(max_examples=300)
def test_equals_every_choice_tried(p_T, count):
    found = optimal_positions(p_T, count)
    best = (
        min(
            direct_replay(p_T, chosen)
            for size in range(count + 1)
            for chosen in itertools.combinations(range(1, len(p_T)), size)
        )
        if len(p_T) > 1
        else 0.0
    )
    assert found.cost == best == direct_replay(p_T, found.positions)
    assert len(found.positions) <= count
    assert all(0 < p < len(p_T) for p in found.positions)
    assert list(found.positions) == sorted(set(found.positions))


def shapes(bins: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    t = np.arange(bins)
    return {
        "uniform": np.ones(bins),
        "random": rng.random(bins),
        "counts": rng.poisson(0.3, bins).astype(float),
        "sparse": np.where(rng.random(bins) < 0.01, 100 * rng.random(bins), 0.0),
        "decaying": np.exp(-t / (bins / 10)),
        "two bumps": np.exp(-((t - bins / 3) ** 2) / bins)
        + np.exp(-((t - 0.7 * bins) ** 2) / bins),
        "steps": np.repeat(rng.random(16), -(-bins // 16))[:bins],
        "one spike": np.eye(1, bins, bins // 2)[0],
        "empty": np.zeros(bins),
    }


@pytest.mark.parametrize("name", shapes(4, 0))
@pytest.mark.parametrize("count", [1, 2, 7])
def test_equals_the_quadratic_dp(name, count):
    p_T = shapes(311, count)[name]
    found = optimal_positions(p_T, count)
    rounding = 1e-13 * float(p_T @ np.arange(311))  # of the prefix sums, which reach this sum
    assert found.cost == pytest.approx(quadratic_dp(p_T, count), rel=1e-12, abs=rounding)
    assert found.cost == pytest.approx(direct_replay(p_T, found.positions), rel=1e-12)


@pytest.mark.parametrize("name", shapes(4, 0))
def test_the_hull_is_the_same_whatever_drops_its_points(name):
    y = np.cumsum(shapes(700, 3)[name]) * np.sin(np.arange(700) / 90)
    hull, slopes = optimal_placement._lower_hull(y)
    for rounds in (0, 1, 50):
        other, other_slopes = optimal_placement._lower_hull(y, chord_rounds=rounds)
        np.testing.assert_array_equal(other, hull)
        np.testing.assert_array_equal(other_slopes, slopes)
    assert (y >= np.interp(np.arange(700), hull, y[hull]) - 1e-9).all()
    assert (np.diff(slopes) > 0).all()


@given(weights, st.integers(0, 4), st.floats(1e-3, 1e3))
def test_more_snapshots_never_replay_more_and_scale_does_not_matter(p_T, count, scale):
    fewer, more = optimal_positions(p_T, count), optimal_positions(p_T, count + 1)
    assert more.cost <= fewer.cost
    assert optimal_positions(scale * p_T, count).cost == pytest.approx(
        scale * fewer.cost, rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize(
    ("p_T", "count", "message"),
    [
        (np.array([]), 1, "non-empty"),
        (np.ones((2, 2)), 1, "non-empty vector"),
        (np.array([1.0, -1.0]), 1, "not negative"),
        (np.array([1.0, np.nan]), 1, "finite"),
        (np.ones(3), -1, "count must not be negative, got -1"),
    ],
)
def test_bad_input_is_named(p_T, count, message):
    with pytest.raises(ValueError, match=message):
        optimal_positions(p_T, count)


@pytest.mark.parametrize("positions", [(), (3,), (5, 2), (1, 2, 3)])
def test_expected_replay_is_its_definition(positions):
    p_T = np.array([4.0, 1.0, 0.0, 2.0, 5.0, 1.0])
    assert expected_replay(p_T, positions) == direct_replay(p_T, positions)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["random", "decaying", "steps"])
def test_takes_a_fiftieth_of_the_quadratic_dp_at_8192_bins(name):
    p_T = shapes(8192, 0)[name]
    rounding = 1e-13 * float(p_T @ np.arange(8192))
    ratios = []
    for _ in range(3):
        fast_s = []
        for _ in range(5):
            start = time.perf_counter()
            found = optimal_positions(p_T, 16)
            fast_s.append(time.perf_counter() - start)
        start = time.perf_counter()
        cost = quadratic_dp(p_T, 16)
        ratios.append((time.perf_counter() - start) / statistics.median(fast_s))
        assert found.cost == pytest.approx(cost, rel=1e-12, abs=rounding)
    assert statistics.median(ratios) >= 50
