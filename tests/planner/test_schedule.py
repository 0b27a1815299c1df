from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.prefill_plan import (
    is_checkpoint_chunk_end,
    last_boundary,
    plan_chunk_len,
    tail_split_point,
)
from planner.schedule import MODES, plan_positions, plan_prefill

CACHING = ("planned", "chunk_end", "in_pass", "split")


@st.composite
def plans(draw, modes=MODES):
    start = draw(st.just(0) | st.integers(0, 700))
    total = start + draw(st.integers(300, 900) | st.integers(0, 300))
    budgets = st.integers(50, 300) | st.integers(1, 50)
    block_size = draw(st.sampled_from([1, 3, 4, 16, 64]))
    return {
        "total": total,
        "start": start,
        "first_budget": draw(budgets),
        "budget": draw(budgets),
        "block_size": block_size,
        "tile": block_size * draw(st.sampled_from([1, 2, 4])),
        "interval": draw(st.integers(0, 9)),
        "mode": draw(st.sampled_from(modes)),
        "grid": draw(st.sampled_from(["tile", "block"])),
        "min_tail_tokens": draw(st.sampled_from([0, 0, 20, 300])),
    }


def floor(plan, position):
    return position // plan["tile"] * plan["tile"] if plan["grid"] == "tile" else position


def split_of(plan):
    split = tail_split_point(plan["total"], plan["block_size"], plan["min_tail_tokens"])
    return floor(plan, split or 0)


def tail_of(plan):
    last = last_boundary(plan["total"], plan["block_size"])
    return {floor(plan, max(0, last)), floor(plan, max(0, last - plan["block_size"]))} - {0}


def marked_of(plan):
    step = plan["interval"] * plan["block_size"]
    return {floor(plan, p) for p in range(step, plan["total"], step)} - {0} if step else set()


@settings(max_examples=300)
@given(plans())
def test_chunks_and_passes_tile_the_prompt_within_budget(plan):
    schedule = plan_prefill(**plan)
    position = plan["start"]
    for index, chunk in enumerate(schedule.chunks):
        assert chunk.start == position
        assert 0 < chunk.end - chunk.start <= plan["budget" if index else "first_budget"]
        for start, end in chunk.passes:
            assert start == position < end
            position = end
        assert chunk.end == position
        assert all(chunk.start < p <= chunk.end for p in chunk.captures)
        assert list(chunk.captures) == sorted(set(chunk.captures))
    assert position == plan["total"]


@settings(max_examples=300)
@given(plans([mode for mode in MODES if mode != "naive"]))
def test_other_ends_are_on_the_grid_where_it_lies_inside_the_budget(plan):
    for index, chunk in enumerate(plan_prefill(**plan).chunks[:-1]):
        allowed = range(chunk.start + 1, chunk.start + plan["budget" if index else "first_budget"])
        allowed = [*allowed, allowed.stop]
        unit = plan["tile"] if plan["grid"] == "tile" else plan["block_size"]
        if any(p % unit == 0 for p in allowed):
            assert chunk.end % unit == 0
        elif any(p % plan["block_size"] == 0 for p in allowed):
            assert chunk.end % plan["block_size"] == 0


@settings(max_examples=300)
@given(plans(["in_pass", "split"]))
def test_every_planned_position_is_captured_exactly_once(plan):
    schedule = plan_prefill(**plan)
    planned = (tail_of(plan) | marked_of(plan) | {split_of(plan)}) - {0}
    assert list(schedule.captures) == sorted(p for p in planned if p > plan["start"])
    inner = sum(len(chunk.passes) - 1 for chunk in schedule.chunks)
    ends = {end for _, end in schedule.passes}
    if plan["mode"] == "split":
        assert ends >= set(schedule.captures)
    else:
        assert inner == 0
        assert [c.end for c in schedule.chunks] == [
            c.end for c in plan_prefill(**(plan | {"mode": "off"})).chunks
        ]


@settings(max_examples=300)
@given(plans(["planned", "chunk_end"]))
def test_planned_keeps_checkpoint_ends_and_the_split_of_the_last_chunk(plan):
    schedule = plan_prefill(**plan)
    split = split_of(plan)
    for chunk in schedule.chunks[:-1]:
        keep = chunk.end in tail_of(plan) | marked_of(plan) | {split} - {0}
        assert chunk.captures == ((chunk.end,) if keep else ())
        assert not chunk.start < split < chunk.end
        if plan["grid"] == "block" and chunk.end != split:
            arguments = (plan["total"], plan["block_size"], plan["interval"])
            assert keep == is_checkpoint_chunk_end(chunk.end, *arguments)
    for chunk in schedule.chunks[-1:]:
        inside = chunk.start < split
        assert chunk.captures == ((split,) if inside else ())
        assert len(chunk.passes) == 1 + (inside and plan["mode"] == "chunk_end")


@given(plans(["planned", "chunk_end"]))
def test_block_grid_cuts_are_those_of_the_rule(plan):
    plan |= {"grid": "block"}
    offset, split = plan["start"], split_of(plan) or None
    for index, chunk in enumerate(plan_prefill(**plan).chunks):
        proposed = min(plan["budget" if index else "first_budget"], plan["total"] - offset)
        offset += plan_chunk_len(offset, plan["total"], proposed, plan["block_size"], split)
        assert chunk.end == offset


@given(plans(["naive"]))
def test_naive_ends_where_the_budget_says(plan):
    schedule = plan_prefill(**plan)
    block_size, interval = plan["block_size"], plan["interval"]
    for index, chunk in enumerate(schedule.chunks):
        budget = plan["budget" if index else "first_budget"]
        assert chunk.end == min(chunk.start + budget, plan["total"])
        block = chunk.end // block_size
        if chunk.end < plan["total"]:
            kept = interval > 0 and block > 0 and block % interval == 0
            assert chunk.captures == ((chunk.end,) if kept else ())
        else:
            assert len(chunk.passes) == 1 + (chunk.start < split_of(plan))


@given(plans())
def test_off_captures_nothing_and_grid_captures_lie_on_the_grid(plan):
    captures = plan_prefill(**plan).captures
    if plan["mode"] == "off":
        assert captures == ()
    elif plan["mode"] != "naive":
        unit = plan["tile"] if plan["grid"] == "tile" else plan["block_size"]
        assert all(p % unit == 0 and plan["start"] < p < plan["total"] for p in captures)


STORY = {
    "total": 32772,
    "first_budget": 8193,
    "budget": 8192,
    "block_size": 16,
    "tile": 64,
    "interval": 16,
}


@pytest.mark.parametrize(
    ("mode", "grid", "restored"),
    [
        ("naive", "tile", 24577),
        ("naive", "block", 24577),
        ("chunk_end", "block", 32752),
        ("planned", "block", 32752),
        ("planned", "tile", 32704),
        ("in_pass", "tile", 32768),
        ("split", "tile", 32768),
        ("off", "tile", 0),
    ],
)
def test_the_story_of_the_tail_split(mode, grid, restored):
    captures = plan_prefill(**STORY, mode=mode, grid=grid).captures
    matched = last_boundary(32772, 16)
    assert max((p for p in captures if p <= matched), default=0) == restored


def check_second_request(totals, tile):
    for total, budget, mode, grid in product(
        totals, (64, 65, 67, 72, 130), CACHING, ("tile", "block")
    ):
        plan = {
            "first_budget": budget,
            "budget": budget,
            "block_size": 16,
            "tile": tile,
            "interval": 0,
        }
        captures = plan_prefill(total, **plan, mode=mode, grid=grid).captures
        matched = last_boundary(total, 16)
        restored = max((p for p in captures if p <= matched), default=0)
        split = tail_split_point(total, 16) or 0
        assert restored >= (split // tile * tile if grid == "tile" else split), (total, plan, mode)


def test_identical_second_request_restores_at_the_split_point():
    check_second_request([*range(33, 200), *range(2400, 2600, 7)], 64)
    check_second_request([*range(33, 200, 3)], 128)


@pytest.mark.slow
@pytest.mark.parametrize("tile", [16, 64, 128])
def test_identical_second_request_restores_at_the_split_point_for_every_total(tile):
    check_second_request(range(33, 2601), tile)


@given(plans(["in_pass"]), st.data())
def test_positions_of_a_policy(plan, data):
    total, block_size = plan["total"], plan["block_size"]
    positions = data.draw(st.lists(st.integers(0, total)))
    if plan["grid"] == "block":
        positions = [p // block_size * block_size for p in positions]
    for name in ("interval", "mode", "min_tail_tokens"):
        del plan[name]
    wanted = sorted({floor(plan, p) for p in positions if floor(plan, p) > plan["start"]})
    inside = plan_positions(positions=positions, capture="in_pass", **plan)
    split = plan_positions(positions=positions, capture="split", **plan)
    assert list(inside.captures) == list(split.captures) == wanted
    assert [replace(c, passes=()) for c in inside.chunks] == [
        replace(c, passes=()) for c in split.chunks
    ]
    assert all(len(chunk.passes) == 1 for chunk in inside.chunks)


@pytest.mark.parametrize(
    "bad",
    [
        {"mode": "best"},
        {"grid": "token"},
        {"tile": 40},
        {"start": 33000},
        {"budget": 0},
        {"first_budget": True},
        {"interval": 1.0},
        {"min_tail_tokens": -1},
        {"total": -1},
    ],
)
def test_bad_arguments_are_named(bad):
    (name,) = bad
    with pytest.raises(ValueError, match=name):
        plan_prefill(**(STORY | {"mode": "planned"} | bad))


def test_policy_positions_must_lie_on_the_block_grid_and_in_the_prompt():
    frame = {"first_budget": 64, "budget": 64, "block_size": 16, "tile": 64}
    with pytest.raises(ValueError, match=r"position .*200"):
        plan_positions(100, [200], **frame)
    with pytest.raises(ValueError, match=r"block boundary .*17"):
        plan_positions(100, [17], grid="block", **frame)
    with pytest.raises(ValueError, match="capture"):
        plan_positions(100, [16], capture="naive", **frame)
