import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.interval_flow import Choice, IntervalFlow


@st.composite
def problems(draw: st.DrawFn) -> list[Choice]:
    """Up to four jobs with up to three choices each, over times 0..6."""
    choices = []
    for job in range(draw(st.integers(1, 4))):
        end = draw(st.integers(1, 6))
        for item in range(draw(st.integers(1, 3))):
            start, gain = draw(st.integers(0, end - 1)), draw(st.integers(1, 9))
            choices.append(Choice(job, item, start, end, gain))
    return choices


def overlap(choices: list[Choice]) -> int:
    times = {c.start for c in choices}
    return max((sum(c.start <= t < c.end for c in choices) for t in times), default=0)


def best_by_trial(choices: list[Choice], slots: int) -> int:
    jobs = {c.job for c in choices}
    options = [[None, *(c for c in choices if c.job == job)] for job in jobs]
    picks = ([c for c in pick if c] for pick in itertools.product(*options))
    return max(sum(c.gain for c in pick) for pick in picks if overlap(pick) <= slots)


@given(problems())
@settings(max_examples=300)
def test_equals_every_selection_tried_at_every_number_of_slots(choices):
    flow = IntervalFlow(choices)
    for slots in range(6):
        gain = flow.grow(slots)
        chosen = flow.chosen()
        assert gain == best_by_trial(choices, slots)
        assert sum(c.gain for c in chosen) == gain
        assert overlap(chosen) <= slots
        assert len({c.job for c in chosen}) == len(chosen)


def random_problem(seed: int, jobs: int) -> list[Choice]:
    rng = np.random.default_rng(seed)
    choices = []
    for job in range(jobs):
        end = int(rng.integers(1, jobs))
        for item in range(int(rng.integers(1, 4))):
            start = int(rng.integers(max(end - 60, 0), end))
            choices.append(Choice(job, item, start, end, int(rng.integers(1, 1000))))
    return choices


@pytest.mark.parametrize("seed", range(3))
def test_slot_prices_prove_a_large_answer_optimal(seed):
    """Weak duality: for any prices of slot-time, no selection earns more than this sum."""
    choices = random_problem(seed, 300)
    flow = IntervalFlow(choices)
    times = sorted({c.start for c in choices} | {c.end for c in choices})
    place = {time: node for node, time in enumerate(times)}
    for slots in (1, 2, 5, 12, 30, 200):
        gain = flow.grow(slots)
        potential = np.array(flow._potential[: len(times)])
        price = np.maximum(-np.diff(potential), 0)
        paid = np.concatenate([[0], np.cumsum(price)])
        surplus: dict[int, int] = {}
        for c in choices:
            left = c.gain - int(paid[place[c.end]] - paid[place[c.start]])
            surplus[c.job] = max(surplus.get(c.job, 0), left)
        assert gain == slots * price.sum() + sum(surplus.values())
        assert overlap(flow.chosen()) <= slots


def test_growing_in_steps_or_at_once_is_the_same():
    choices = random_problem(7, 100)
    steps, once = IntervalFlow(choices), IntervalFlow(choices)
    assert [steps.grow(s) for s in (1, 2, 3, 8)][-1] == once.grow(8)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="start < end and a gain above 0"):
        IntervalFlow([Choice(0, 0, 3, 3, 1)])
    with pytest.raises(ValueError, match="start < end and a gain above 0"):
        IntervalFlow([Choice(0, 0, 2, 3, 0)])
    with pytest.raises(ValueError, match="end together"):
        IntervalFlow([Choice(0, 0, 2, 3, 1), Choice(0, 1, 2, 4, 1)])
    flow = IntervalFlow([Choice(0, 0, 2, 3, 1)])
    flow.grow(2)
    with pytest.raises(ValueError, match="only rise, had 2, got 1"):
        flow.grow(1)
    assert IntervalFlow([]).grow(3) == 0
