import hypothesis
import pytest
from hypothesis import strategies as st

from planner.costs import (
    AttentionCost,
    CostModel,
    attention_pairs,
    prefill_flops,
    schedule_flops,
)
from planner.schedule import plan_prefill

COSTS = CostModel(7, 5, (AttentionCost(3), AttentionCost(2, window=9)), 16, 1000)
POSITIONS = st.integers(0, 60)


@hypothesis.given(a=POSITIONS, b=POSITIONS, window=st.none() | st.integers(1, 70))
def test_pairs_against_counting(a, b, window):
    start, end = sorted((a, b))
    seen = [
        (query, key)
        for query in range(start, end)
        for key in range(query + 1)
        if window is None or query - key < window
    ]
    assert attention_pairs(start, end, window) == len(seen)


@hypothesis.given(cuts=st.lists(POSITIONS, min_size=3, max_size=3))
def test_spans_add_up(cuts):
    a, b, c = sorted(cuts)
    parts = prefill_flops(COSTS, a, b) + prefill_flops(COSTS, b, c)
    assert parts == prefill_flops(COSTS, a, c)


@hypothesis.given(total=st.integers(1, 60), tile=st.sampled_from([4, 8]), budget=st.integers(1, 20))
def test_a_schedule_costs_its_whole_tiles(total, tile, budget):
    schedule = plan_prefill(
        total,
        first_budget=budget,
        budget=budget,
        block_size=4,
        tile=tile,
        interval=0,
        mode="naive",
        grid="block",
    )
    tiles = [
        index
        for start, end in schedule.passes
        for index in range(start // tile, (end - 1) // tile + 1)
    ]
    assert schedule_flops(COSTS, schedule, tile) == sum(
        prefill_flops(COSTS, index * tile, index * tile + tile) for index in tiles
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((-1, 2), "start"), ((3, 2), "end"), ((0, 2, 0), "window"), ((0.5, 2), "start")],
)
def test_bad_positions_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        attention_pairs(*arguments)
