"""The simulator's account of a trace is the engine's, request by request, field by field.

Placements and evictions come from their registries, so a new policy is covered by being there.
"""

import itertools
from inspect import Parameter, signature

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.traces import Recorded, read_trace, trace_requests
from experiments.workloads import stdlib_sessions
from hybrid.engine import Engine
from planner.costs import AttentionCost, CostModel
from planner.eviction import Budget
from planner.eviction_policies import EVICTIONS, make_eviction
from planner.interner import BlockInterner
from planner.placement import PLACEMENTS, parse_placement
from planner.schedule import MODES
from planner.session import Scheduling
from planner.simulator import simulate
from planner.trace import TraceRequest
from tests.shared_data import shared_trace

TILE, BLOCK, CAPACITY = 32, 8, 256
TEXT_CAPACITY = 1024


def sample_spec(name):
    """A placement of the registry; what it has to be told is 4: snapshots, or a tile in blocks."""
    required = [
        p for p in signature(PLACEMENTS[name]).parameters.values() if p.default is Parameter.empty
    ]
    return name + ":" * bool(required) + ",".join("4" for _ in required)


SPECS = [sample_spec(name) for name in PLACEMENTS]
ALL_PAIRS = list(itertools.product(SPECS, EVICTIONS))
EACH_ONCE = list(zip(SPECS, itertools.cycle(EVICTIONS), strict=False))
EACH_ONCE += [("tail|match|every:8", eviction) for eviction in EVICTIONS]


def check_accounts(runner, trace, limits, placement=None, eviction="lru", **options):
    """Run a trace both ways; the reports, which must be equal."""

    def policy():
        return None if placement is None else parse_placement(placement)

    shapes = runner.shapes
    with Engine(runner, cache_budget_bytes=limits, placement=policy(), **options) as engine:
        index = engine.cache.index
        costs = CostModel(
            1000, 10, (AttentionCost(10),), index.block_bytes // BLOCK, index.snapshot_bytes
        )
    engine = Engine(
        runner,
        cache_budget_bytes=limits,
        placement=policy(),
        eviction=make_eviction(eviction, costs, BLOCK),
        **options,
    )
    simulated = simulate(
        trace,
        Scheduling(tile=shapes.tile, grid=shapes.grid, placement=policy(), **options),
        costs,
        budget=limits,
        eviction=make_eviction(eviction, costs, BLOCK),
    )
    previous = {}
    for request, expected in zip(trace, simulated.requests, strict=True):
        earlier = previous.setdefault(request.session, [])
        report = engine.generate(
            request.tokens, 1, boundaries=request.boundaries, previous_totals=earlier[-8:]
        ).report
        earlier.append(request.total_tokens)
        found, said = report.as_dict(), expected.report.as_dict()
        # A pass that holds more captures than the runner has slots runs as several.
        assert found.pop("passes") >= said.pop("passes")
        assert found.pop("time_to_first_token_s") > 0
        assert said.pop("time_to_first_token_s") is None
        assert found == said, f"request {request.index}"
    return [request.report for request in simulated.requests]


STREAMS = np.random.default_rng(0).integers(0, 256, (3, CAPACITY)).astype(np.int32)


def prompt_of(choice):
    first, second, at, length = choice
    return np.concatenate([STREAMS[first][: min(at, length)], STREAMS[second][at:length]])


def trace_of(prompts):
    interner = BlockInterner(BLOCK, lambda: np.empty(0, np.int64))
    return [
        TraceRequest(
            index=index,
            arrival_s=float(index),
            session=str(index % 2),
            total_tokens=len(prompt),
            output_tokens=1,
            block_size=BLOCK,
            block_keys=interner.keys(prompt),
            boundaries=tuple(range(5, len(prompt), 60)),
            tokens=prompt,
        )
        for index, prompt in enumerate(prompts)
    ]


drawn = given(
    trace=st.lists(
        st.tuples(
            st.integers(0, 2), st.integers(0, 2), st.integers(0, 255), st.integers(1, CAPACITY - 1)
        ).map(prompt_of),
        min_size=2,
        max_size=8,
    ).map(trace_of),
    mode=st.sampled_from(MODES),
    placement=st.sampled_from([None, "tail|every:8", *SPECS]),
    eviction=st.sampled_from(list(EVICTIONS)),
    interval=st.integers(0, 5),
    first_budget=st.integers(20, 260),
    budget=st.integers(20, 260),
    limits=st.sampled_from(
        [
            Budget(),
            Budget(total_bytes=40_000),
            Budget(total_bytes=90_000),
            Budget(total_bytes=200_000),
            Budget(kv_bytes=60_000, snapshot_bytes=40_000),
        ]
    ),
)


@pytest.mark.parametrize("grid", ["tile", "block"])
@settings(max_examples=15)
@drawn
def test_engine_does_what_the_simulator_says(make_runner, grid, **options):
    check_accounts(make_runner(grid=grid), **options)


@pytest.mark.slow
@pytest.mark.parametrize("grid", ["tile", "block"])
@settings(max_examples=200)
@drawn
def test_engine_does_what_the_simulator_says_at_length(make_runner, grid, **options):
    check_accounts(make_runner(grid=grid), **options)


def text_limits(runner):
    """Room for three snapshots, and for the blocks of one prompt that fills the runner."""
    with Engine(runner) as engine:
        index = engine.cache.index
    return Budget(
        kv_bytes=TEXT_CAPACITY // BLOCK * index.block_bytes, snapshot_bytes=3 * index.snapshot_bytes
    )


def check_text(runner, trace, placement, eviction):
    reports = check_accounts(runner, trace, text_limits(runner), placement, eviction, budget=256)
    assert any(report.evicted_blocks for report in reports)
    if sum(report.captured for report in reports) > 3:  # else there was room for all
        assert any(report.evicted_snapshots or report.skipped_snapshots for report in reports)


@pytest.fixture(scope="module")
def talks():
    """The shipped workload, shrunk to an eighth: four sessions of four turns, and a branch."""
    workload = stdlib_sessions(0, sessions=4, turns=4, turn_tokens=1600, output_tokens=100)
    draw = np.random.default_rng(0)
    answers = [draw.integers(32, 127, request.output_tokens) for request in workload.requests]
    prompts = [workload.prompt(index, answers) for index in range(len(answers))]
    boundaries = []  # where the prompts end that this one goes on from
    for request in workload.requests:
        after = request.after
        earlier = () if after is None else (*boundaries[after], len(prompts[after]))
        boundaries.append(earlier)
    recorded = [
        Recorded(
            arrival_s=float(index),
            session=request.session,
            total_tokens=len(prompts[index]),
            output_tokens=request.output_tokens,
            block_size=512,
            text=prompts[index].astype(np.uint8),
            boundaries=boundaries[index],
        )
        for index, request in enumerate(workload.requests)
    ]
    found = trace_requests(recorded, BLOCK, scale=1 / 8)
    assert max(request.total_tokens for request in found) < TEXT_CAPACITY
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("placement", "eviction"), ALL_PAIRS)
def test_every_pair_on_the_shipped_workload(make_runner, talks, placement, eviction):
    check_text(make_runner(capacity=TEXT_CAPACITY), talks, placement, eviction)


@pytest.mark.slow
@pytest.mark.parametrize(("placement", "eviction"), EACH_ONCE)
def test_every_policy_on_a_recorded_text_trace(make_runner, placement, eviction):
    """The prompts of a coding agent that fit the runner when one byte in 32 is kept."""
    recorded = read_trace(shared_trace("lmcache-agent/miniswe.jsonl.gz"))
    short = [request for request in recorded if request.total_tokens < 32 * TEXT_CAPACITY - 512]
    trace = trace_requests(short[:60], BLOCK, scale=1 / 32)
    check_text(make_runner(capacity=TEXT_CAPACITY), trace, placement, eviction)
