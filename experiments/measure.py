"""Timing on shared, noisy machines: interleaved pairs, medians, ceilings of the same run."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Interval(NamedTuple):
    """A median with the 95% interval of its position among the ordered values.

    Args:
        median, low, high: in the unit of the values.
        samples: how many values there were.
    """

    median: float
    low: float
    high: float
    samples: int


def timed(run: Callable[[], Any]) -> float:
    """Seconds that `run` takes until all arrays that it returns are there."""
    import jax

    started = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - started


def interleaved_pairs(
    baseline: Callable[[], Any], candidate: Callable[[], Any], pairs: int
) -> tuple[list[float], list[float]]:
    """Time two programs in turns, the first of each pair alternating, both warmed up once.

    Args:
        baseline, candidate: return arrays to wait for.
        pairs: how often each is timed.

    Returns:
        Seconds of each, pair by pair.
    """
    timed(baseline)
    timed(candidate)
    base_s, candidate_s = [], []
    for pair in range(pairs):
        if pair % 2:
            candidate_s.append(timed(candidate))
        base_s.append(timed(baseline))
        if not pair % 2:
            candidate_s.append(timed(candidate))
    return base_s, candidate_s


def median_interval(values: Sequence[float]) -> Interval:
    """The median and a 95% interval that assumes nothing of the distribution.

    The interval lies between two order statistics; their ranks come from the binomial distribution
    of how many values fall below the true median.

    Args:
        values: at least one.

    Returns:
        The interval; with fewer than six values it is their whole range, and covers less than 95%.

    Source: Conover, "Practical Nonparametric Statistics", section 3.2.

    >>> median_interval([5.0, 1.0, 3.0, 2.0, 4.0])
    Interval(median=3.0, low=1.0, high=5.0, samples=5)
    >>> median_interval(range(1, 42))
    Interval(median=21, low=14, high=28, samples=41)
    """
    ordered, n = sorted(values), len(values)
    below, rank = 0.0, 0
    while rank < n // 2:
        below += math.comb(n, rank) / 2**n
        if below > 0.025:
            break
        rank += 1
    low = max(rank - 1, 0)
    return Interval(statistics.median(ordered), ordered[low], ordered[n - 1 - low], n)


def ratios(base_s: Sequence[float], candidate_s: Sequence[float]) -> Interval:
    """How many times as long as the baseline the candidate takes, pair by pair."""
    return median_interval([c / b for b, c in zip(base_s, candidate_s, strict=True)])


def gemm(rows: int, inner: int, columns: int, dtype: str = "float32") -> Callable[[], Any]:
    """A matrix product [rows, inner] x [inner, columns] to time, compiled.

    Args:
        rows, inner, columns: sizes.
        dtype: of the operands; the result is fp32.

    Returns:
        A function that runs it.
    """
    import jax
    import jax.numpy as jnp

    a = jnp.ones((rows, inner), dtype)
    b = jnp.ones((inner, columns), dtype)
    product = jax.jit(
        lambda a, b: jax.lax.dot(a, b, precision="highest", preferred_element_type=jnp.float32)
    )
    jax.block_until_ready(product(a, b))
    return lambda: product(a, b)
