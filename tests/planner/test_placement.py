import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.optimal_placement import optimal_positions
from planner.placement import (
    PLACEMENTS,
    OverlapHistogram,
    PlacementContext,
    PlacementPolicy,
    parse_placement,
    place,
)
from planner.placement.learned import MAX_BINS

SPECS = (
    "none",
    "every:8",
    "chunk_ends:0",
    "chunk_ends:4",
    "last",
    "tail",
    "fork",
    "match",
    "last|fork",
    "last|match",
    "vllm:0",
    "vllm:256",
    "megatron",
    "balanced:5",
    "sqrt",
    "dyadic",
    "dp:3,0.9",
    "messages:2",
    "llama_cpp:100,32",
)


@st.composite
def contexts(draw: st.DrawFn) -> PlacementContext:
    block_size = 16
    total = draw(st.integers(1, 2600))
    grid = draw(st.sampled_from([16, 32, 64, 128]))
    matched = draw(st.integers(0, (total - 1) // block_size)) * block_size
    return PlacementContext(
        total=total,
        block_size=block_size,
        grid=grid,
        matched=matched,
        restored=draw(st.integers(0, matched // grid)) * grid,
        chunk_ends=tuple(sorted(draw(st.sets(st.integers(1, total), max_size=6)))),
        branches=draw(st.booleans()),
        visits=draw(st.integers(0, 3)),
        boundaries=tuple(sorted(draw(st.sets(st.integers(0, total), max_size=6)))),
    )


@given(st.sampled_from(SPECS), st.lists(contexts(), min_size=1, max_size=6))
@settings(max_examples=400)
def test_positions_ascend_on_the_grid_within_what_is_computed(spec, prompts):
    policy = parse_placement(spec)
    for context in prompts:
        context = dataclasses.replace(context, grid=prompts[0].grid, restored=0)
        positions = place(policy, context)
        assert list(positions) == sorted(set(positions))
        assert all(context.restored < p <= context.total for p in positions)
        assert all(p % context.grid == 0 for p in positions)


@given(st.sampled_from(SPECS), st.sampled_from(SPECS), contexts())
def test_a_union_captures_for_both_and_only_what_is_not_restored_already(one, other, context):
    policy = parse_placement(one) | parse_placement(other)
    assert policy.spec == f"{one}|{other}"
    assert parse_placement(policy.spec).spec == policy.spec
    both = {*place(parse_placement(one), context), *place(parse_placement(other), context)}
    assert set(place(policy, context)) == both
    cold = dataclasses.replace(context, restored=0)
    if "llama_cpp" not in policy.spec:  # its periodic checkpoints count from the restored position
        fresh = set(place(parse_placement(policy.spec), cold))
        assert both == {p for p in fresh if p > context.restored}


def long_prompt(**changes: object) -> PlacementContext:
    fields: dict[str, object] = {
        "total": 32772,
        "block_size": 16,
        "grid": 16,
        "matched": 20000,
        "restored": 16384,
        "chunk_ends": (8192, 16384, 24576, 32752, 32772),
        "branches": True,
        "boundaries": (0, 30000, 32000),
    }
    return PlacementContext(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "on_blocks", "on_tiles"),
    [
        ("none", (), ()),
        ("every:512", (24576, 32768), (24576, 32768)),
        ("chunk_ends:0", (32752,), (32704,)),
        ("chunk_ends:512", (24576, 32752), (24576, 32704)),
        ("last", (32768,), (32768,)),
        ("tail", (32752, 32768), (32704, 32768)),
        ("fork", (20000,), (19968,)),
        ("marconi", (20000, 32768), (19968, 32768)),
        ("sglang", (20000, 32768), (19968, 32768)),
        ("vllm", (20000, 32768), (19968, 32768)),
        ("vllm:8192", (20000, 24576, 32768), (19968, 24576, 32768)),
        ("megatron", (20000, 32752, 32768), (19968, 32704, 32768)),
        ("balanced:3", (16384 + 8192,), (16384 + 8192,)),
        (
            "sqrt",
            tuple(range(45 * 16 * 23, 32773, 45 * 16)),
            tuple(range(17 * 1408 - 7 * 1408 + 1408 * 2, 32773, 1408)),
        ),
        ("dyadic", (32768,), (32768,)),
        ("messages", (32000,), (32000,)),
        ("messages:2", (30000 // 16 * 16, 32000), (29952, 32000)),
        ("llama_cpp", (24576, 32000, 32256, 32768), (24576, 32000, 32256, 32768)),
    ],
)
def test_each_rule_on_one_prompt(spec, on_blocks, on_tiles):
    assert place(parse_placement(spec), long_prompt()) == on_blocks
    assert place(parse_placement(spec), long_prompt(grid=64)) == on_tiles


def test_a_fork_needs_a_path_that_goes_on_and_a_match_does_not():
    grown = long_prompt(branches=False)
    assert place(parse_placement("fork"), grown) == ()
    assert place(parse_placement("match"), grown) == (20000,)
    served = long_prompt(restored=20000)
    assert place(parse_placement("fork|match"), served) == ()


def test_balanced_is_what_the_dynamic_programme_finds_for_equally_likely_depths():
    context = PlacementContext(total=1600, block_size=16, grid=16)
    best = optimal_positions(np.ones(100), 4)
    assert place(parse_placement("balanced:4"), context) == tuple(16 * p for p in best.positions)


def test_dp_learns_where_matches_end():
    policy = parse_placement("dp:2,1.0")
    prompt = PlacementContext(total=1600, block_size=16, grid=16)
    assert place(policy, prompt) == ()
    for matched in (320, 960, 960, 320, 640):
        place(policy, dataclasses.replace(prompt, matched=matched))
    assert place(policy, prompt) == (320, 960)
    assert place(policy, dataclasses.replace(prompt, total=700)) == (320, 640)


def test_an_old_match_fades():
    histogram = OverlapHistogram(0.5)
    for depth in (3, 7, 7):
        histogram.add(depth)
    weights = histogram.weights(7)
    assert weights.tolist() == [0, 0, 0, 0.25, 0, 0, 0, 1.5]
    for _ in range(2000):
        histogram.add(1)
    assert histogram.weights(7)[1] == pytest.approx(2.0)
    assert histogram.weights(7)[7] == pytest.approx(0.0)


def test_bins_widen_and_keep_their_weight():
    histogram = OverlapHistogram()
    for depth in (5, 400, 3 * MAX_BINS):
        histogram.add(depth)
    assert histogram.bin_steps == 4
    weights = histogram.weights(3 * MAX_BINS)
    assert weights.sum() == 3
    assert weights[[1, 100, 3 * MAX_BINS // 4]].tolist() == [1, 1, 1]


class OffGrid(PlacementPolicy):
    def __init__(self, positions: tuple[int, ...]) -> None:
        self.wanted = positions

    @property
    def spec(self) -> str:
        return "hand-made"

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        return self.wanted


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ((40,), "'hand-made' asks for position 40, off the grid of 64"),
        ((128, 64), "must ascend"),
        ((0,), "must ascend"),
        ((1024,), r"within \(0, 1000\]"),
    ],
)
def test_a_policy_off_the_grid_or_out_of_range_is_named(positions, message):
    with pytest.raises(ValueError, match=message):
        place(OffGrid(positions), PlacementContext(total=1000, block_size=16, grid=64))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("every:1", "'every:1' places snapshots every 16 tokens, off the grid of 64"),
        ("vllm:100", "'vllm:100' retains states every 100 tokens, off the grid of 64"),
    ],
)
def test_an_interval_off_the_grid_is_named(spec, message):
    with pytest.raises(ValueError, match=message):
        place(parse_placement(spec), PlacementContext(total=1000, block_size=16, grid=64))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "unknown placement ''; known: balanced"),
        ("nope:3", "unknown placement 'nope'"),
        ("tail|", "unknown placement ''"),
        ("tail:3", "'tail' takes no arguments, got '3'"),
        ("every", "'every' takes interval, got ''"),
        ("every:x", "'every' takes interval: int; got 'x'"),
        ("every:1,2", "'every' takes interval, got '1,2'"),
        ("every:0", "interval must be at least 1"),
        ("balanced:0", "count must be at least 1"),
        ("dp:3,1.5", "decay must lie in"),
        ("chunk_ends:-1", "interval must be at least 0"),
    ],
)
def test_a_wrong_spec_is_explained(spec, message):
    with pytest.raises(ValueError, match=message):
        parse_placement(spec)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_name_parses_back_to_the_same_policy(name):
    arguments = {"every": ":2", "chunk_ends": ":2", "balanced": ":2", "dp": ":2"}
    policy = parse_placement(name + arguments.get(name, ""))
    assert parse_placement(policy.spec).spec == policy.spec
    assert policy.spec in repr(policy)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": 24}, "grid must be a multiple of block_size = 16, got 24"),
        ({"matched": 40000}, "matched must be at most 32771"),
        ({"restored": 20016}, "restored must be at most 20000"),
        ({"total": 0}, "total must be at least 1"),
    ],
)
def test_a_context_that_contradicts_itself_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        long_prompt(**changes)
