"""The engine over its memory tier: warm equals cold bit for bit, and every report adds up."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.eviction import Budget
from planner.placement import PlacementPolicy, parse_placement
from planner.report import Reason
from planner.schedule import MODES
from tests.hybrid.common import tokens_of

TILE, BLOCK, CAPACITY = 32, 8, 256
EXACT_MODES = [mode for mode in MODES if mode != "naive"]


STREAMS = np.stack([tokens_of(seed, CAPACITY) for seed in range(3)])


def prompt_of(stems):
    """A prompt that follows one stream up to a point, then another."""
    (first, at), (second, length) = stems
    at, length = min(at, length), max(at, length)
    return np.concatenate([STREAMS[first][:at], STREAMS[second][at:length]])


stem = st.tuples(st.integers(0, 2), st.integers(1, CAPACITY - 4))
requests = st.lists(st.tuples(stem, stem).map(prompt_of), min_size=2, max_size=5)


def check_payloads(engine):
    index = engine.cache.index
    assert engine.cache.payload_bytes == (index.used_kv_bytes, index.used_snapshot_bytes)
    limit = index.budget.total_bytes
    assert limit is None or index.used_bytes <= limit


def check_requests(runner, observer, prompts, mode, interval, budgets, cache_kb):
    engine = observer.engine(
        runner,
        mode=mode,
        interval=interval,
        first_budget=budgets[0],
        budget=budgets[1],
        cache_budget_bytes=None if cache_kb is None else cache_kb * 1000,
    )
    for prompt in [*prompts, prompts[0]]:
        completion = engine.generate(prompt, 3)
        observer.check_exact(engine, completion, prompt)
        report = completion.report
        assert report.total == len(prompt)
        assert report.restored % TILE == 0
        assert report.restored <= report.matched <= len(prompt) - 1
        assert report.recomputed == len(prompt) - report.restored
        assert report.captured == len(engine.seen["snapshots"])
        assert report.time_to_first_token_s > 0
        check_payloads(engine)


drawn = given(
    prompts=requests,
    mode=st.sampled_from(EXACT_MODES),
    interval=st.integers(0, 6),
    budgets=st.tuples(st.integers(20, 300), st.integers(20, 300)),
    cache_kb=st.sampled_from([None, 40, 90, 200]),
)


@settings(max_examples=12)
@drawn
def test_warm_equals_cold(make_runner, observer, **request):
    check_requests(make_runner("float32"), observer, **request)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["xla", "pallas"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@settings(max_examples=100)
@drawn
def test_warm_equals_cold_at_length(make_runner, observer, dtype, implementation, **request):
    check_requests(make_runner(dtype, implementation), observer, **request)


@pytest.mark.parametrize("mode", [mode for mode in EXACT_MODES if mode != "off"])
def test_repeat_computes_one_tile(make_runner, observer, mode):
    engine = observer.engine(make_runner(), mode=mode, interval=2, budget=50)
    prompt = tokens_of(1, 205)
    engine.generate(prompt, 2)
    completion = engine.generate(prompt, 2)
    assert completion.report.matched == 200
    assert completion.report.restored == 192
    assert completion.report.passes == 1
    assert completion.report.reason is Reason.HIT
    observer.check_exact(engine, completion, prompt)


def test_reasons(make_runner, observer):
    engine = observer.engine(make_runner(), mode="in_pass", interval=0)
    long, short = tokens_of(1, 200), tokens_of(2, 30)

    def reason(prompt, engine=engine, **options):
        return engine.generate(prompt, 1, **options).report.reason

    assert reason(long) is Reason.COLD
    assert reason(long) is Reason.HIT
    assert reason(long, reuse=False) is Reason.CACHE_OFF
    assert reason(short) is Reason.TOO_SHORT
    assert reason(np.concatenate([long[:70], short])) is Reason.NO_SNAPSHOT_BELOW_MATCH
    sparse = observer.engine(make_runner(), mode="chunk_end", interval=4, budget=64)
    reason(long, sparse)
    assert reason(np.concatenate([long[:110], short]), sparse) is Reason.PARTIAL
    index = engine.cache.index
    budget = index.snapshot_bytes + 30 * index.block_bytes
    tight = observer.engine(make_runner(), interval=0, cache_budget_bytes=budget)
    reason(long, tight)
    reason(tokens_of(3, 200), tight)
    assert reason(long, tight) is Reason.EVICTED
    check_payloads(tight)


def test_lends_its_rows(make_runner, observer):
    """What the working buffer holds is not copied; what decode wrote there is not believed."""
    runner = make_runner()
    engine = observer.engine(runner, mode="in_pass", interval=0)
    prompt = tokens_of(4, 130)
    answer = engine.generate(prompt, 8).tokens
    loads = runner.calls["load_rows"]
    observer.check_exact(engine, engine.generate(prompt, 8), prompt)
    turn = np.concatenate([prompt, answer, tokens_of(5, 70)])
    completion = engine.generate(turn, 2)
    assert completion.report.restored == 128
    observer.check_exact(engine, completion, turn)
    assert runner.calls["load_rows"] == loads
    engine.generate(tokens_of(6, 100), 2)
    loads, passes = runner.calls["load_rows"], runner.calls["prefill"]
    completion = engine.generate(turn, 2)
    assert runner.calls["load_rows"] > loads
    assert runner.calls["prefill"] == passes + 1
    observer.check_exact(engine, completion, turn)


def test_evicted_payloads_are_freed(make_runner, observer):
    engine = observer.engine(make_runner(), mode="in_pass", interval=1, cache_budget_bytes=60_000)
    for seed in range(6):
        engine.generate(tokens_of(seed, 150), 1)
        check_payloads(engine)
    blocks = engine.cache._blocks.values()
    assert blocks
    assert all(leaf.base is None for block in blocks for leaf in jax.tree.leaves(block))


@pytest.mark.parametrize("planted", ["scan", "conv", "keys", "values", "other position"])
def test_planted_wrong_payload_is_seen(make_runner, observer, planted):
    """The comparison of warm with cold does fail where one restored array is wrong."""
    engine = observer.engine(make_runner(), mode="in_pass", interval=4)
    prompt = tokens_of(9, 100)
    engine.generate(prompt, 2)
    engine.generate(tokens_of(10, 100), 2)  # takes the working buffer, so that rows are copied
    snapshots = engine.cache._snapshots
    match = engine.cache.index.lookup(engine.cache.interner.keys(prompt), 100, touch=False)
    held = snapshots[match.snapshot.id]
    if planted in ("scan", "conv"):
        wrong = np.array(getattr(held[-1], planted))
        wrong.flat[3] += 0.5
        changed = dataclasses.replace(held[-1], **{planted: wrong})
        snapshots[match.snapshot.id] = (*held[:-1], changed)
    elif planted == "other position":
        (other,) = (s for s in match.snapshot.node.snapshots if s.position == 64)
        snapshots[match.snapshot.id] = snapshots[other.id]
    else:
        block_id = int(engine.cache.index.block_ids(engine.cache.interner.keys(prompt), 5)[4])
        getattr(engine.cache._blocks[block_id][0], planted)[0, 0, 3, 1] += 0.5
    completion = engine.generate(prompt, 2)
    assert completion.report.restored == 96
    with pytest.raises(AssertionError):
        observer.check_exact(engine, completion, prompt)


def test_naive_restores_off_the_grid(make_runner, observer):
    """The baseline that fails: chunk ends off the grid restore within a tolerance, marked inexact,
    and what they compute never serves as exact."""
    runner = make_runner(grid="block")
    engine = observer.engine(runner, mode="naive", interval=1, first_budget=65, budget=64)
    prompt = tokens_of(11, 200)
    engine.generate(prompt, 2)
    assert sorted(engine.seen["snapshots"]) == [65, 129, 193]
    assert not any(s.exact for s in engine.cache.index.snapshots.values())
    report = engine.generate(prompt, 2).report
    assert (report.matched, report.restored, report.replayed) == (192, 129, 63)
    _, cold = observer.cold(runner, prompt, 2)
    assert (engine.seen["logits"] != cold["logits"]).any()
    scale = np.abs(cold["logits"]).max()
    np.testing.assert_allclose(engine.seen["logits"], cold["logits"], rtol=0, atol=1e-5 * scale)
    longer = np.concatenate([prompt[:195], tokens_of(12, 45)])
    assert engine.generate(longer, 2).report.restored == 129
    keys, index = engine.cache.interner.keys(longer), engine.cache.index
    assert index.lookup(keys, len(longer), touch=False, exact=True).matched == 192
    assert index.lookup(keys, len(longer), touch=False, exact=False).matched == 232


def test_exact_after_inexact(make_runner, observer):
    """What an inexact request computed is not lent or kept as exact, and exact work replaces it."""
    runner = make_runner(grid="block")
    engine = observer.engine(runner, mode="in_pass", interval=1)
    prompt = tokens_of(13, 142)
    observer.check_exact(engine, engine.generate(prompt, 2), prompt)
    exact = {s.position for s in engine.cache.index.snapshots.values() if s.exact}
    assert exact == {32, 64, 96, 128}
    turn = np.concatenate([prompt[:139], tokens_of(14, 67)])
    assert engine.generate(turn, 2).report.restored == 136  # inside a chunk of the scan
    assert engine._buffer.agreement(turn) == 136
    exact = {s.position for s in engine.cache.index.snapshots.values() if s.exact}
    assert exact == {32, 64, 96, 128}
    check_payloads(engine)
    observer.check_exact(engine, engine.generate(turn, 2, reuse=False), turn)
    check_payloads(engine)
    exact = {s.position for s in engine.cache.index.snapshots.values() if s.exact}
    assert exact == {32, 64, 96, 128, 160, 192}
    engine.generate(tokens_of(15, 60), 1)  # takes the working buffer, so that rows are copied
    branch = np.concatenate([turn[:199], tokens_of(16, 10)])
    completion = engine.generate(branch, 2)
    assert completion.report.restored == 192
    observer.check_exact(engine, completion, branch)


def test_draws(make_runner, observer):
    engine = observer.engine(make_runner(), interval=2)
    prompt = tokens_of(16, 90)
    many = engine.generate(prompt, 40, temperature=0.8, seed=5)
    again = engine.generate(prompt, 40, temperature=0.8, seed=5)
    np.testing.assert_array_equal(many.tokens, again.tokens)
    observer.check_exact(engine, again, prompt, temperature=0.8, seed=5)
    one = engine.generate(prompt, 1, temperature=0.8, seed=5)
    assert one.tokens.dtype == np.int32
    np.testing.assert_array_equal(one.tokens, many.tokens[:1])
    other = engine.generate(prompt, 40, temperature=0.8, seed=6)
    assert (other.tokens != many.tokens).any()


def test_placement_chooses_positions(make_runner, observer):
    engine = observer.engine(make_runner(), placement=parse_placement("every:8"), interval=1)
    engine.generate(tokens_of(17, 200), 1)
    assert sorted(engine.seen["snapshots"]) == [64, 128, 192]


def test_placement_sees_the_conversation(make_runner, observer):
    class Asked(PlacementPolicy):
        spec = "asked"

        def positions(self, context):
            self.context = context
            return context.capturable((64,))

    policy = Asked()
    engine = observer.engine(make_runner(), placement=policy)
    engine.generate(tokens_of(23, 100), 1, boundaries=(10, 90), previous_totals=(70, 80))
    assert (policy.context.boundaries, policy.context.previous_totals) == ((10, 90), (70, 80))
    assert policy.context.chunk_ends == (100,)


def test_bytes_written(make_runner, observer):
    engine = observer.engine(make_runner(), mode="in_pass", interval=4)
    report = engine.generate(tokens_of(18, 100), 1).report
    index = engine.cache.index
    assert report.snapshots == 3
    assert report.bytes_written == 12 * index.block_bytes + 3 * index.snapshot_bytes
    assert report.bytes_written == sum(engine.cache.payload_bytes)
    assert engine.generate(tokens_of(18, 100), 1).report.bytes_written == 0


def test_no_room(make_runner, observer):
    engine = observer.engine(make_runner(), mode="in_pass", cache_budget_bytes=10)
    prompt = tokens_of(19, 100)
    for _ in range(2):
        completion = engine.generate(prompt, 2)
        assert completion.report.skipped_blocks == 12
        assert completion.report.snapshots == completion.report.bytes_written == 0
        observer.check_exact(engine, completion, prompt)
    engine = observer.engine(
        make_runner(), mode="in_pass", cache_budget_bytes=Budget(snapshot_bytes=0)
    )
    report = engine.generate(prompt, 1).report
    assert (report.captured, report.skipped_snapshots, report.skipped_blocks) == (2, 2, 0)


def test_failure_leaves_nothing_behind(make_runner, observer, monkeypatch):
    engine = observer.engine(make_runner(), mode="in_pass")
    prompt = tokens_of(20, 100)
    engine.generate(prompt, 1)
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "prefill", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.generate(prompt, 1)
    assert engine._buffer.agreement(prompt) == 0
    assert all(not s.pins for s in engine.cache.index.snapshots.values())
    completion = engine.generate(prompt, 1)
    assert completion.report.restored == 96
    observer.check_exact(engine, completion, prompt)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, r"shape \(0,\); expected one axis and at least one token"),
        ([[1, 2]], {}, r"shape \(1, 2\)"),
        ([0.5], {}, "dtype float64; expected integers"),
        ([True], {}, "dtype bool; expected integers"),
        ([1, 256], {}, r"ids 1\.\.256; expected 0\.\.255"),
        ([-1], {}, r"ids -1\.\.-1; expected 0\.\.255"),
        ([1] * CAPACITY, {}, "256 prompt tokens and 1 new ones make 257; the runner's capacity"),
        ([1] * 200, {"max_new_tokens": 57}, "200 prompt tokens and 57 new ones"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ([1], {"max_new_tokens": 1.0}, "max_new_tokens must be an integer, got 1.0"),
        ([1], {"temperature": -0.1}, "temperature is -0.1; expected a finite number"),
        ([1], {"temperature": float("nan")}, "temperature is nan; expected a finite number"),
        ([1], {"temperature": "hot"}, "temperature is 'hot'; expected a number"),
        ([1], {"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_bad_input(make_runner, observer, prompt, options, message):
    engine = observer.engine(make_runner())
    calls = dict(engine.runner.calls)
    with pytest.raises(ValueError, match=message):
        engine.generate(prompt, **{"max_new_tokens": 1, **options})
    assert dict(engine.runner.calls) == calls
    assert engine.cache.index.clock == 0


def test_shortest_and_longest_prompt(make_runner, observer):
    engine = observer.engine(make_runner())
    for length in (1, 2, TILE, CAPACITY - 1):
        prompt = tokens_of(21, length)
        for _ in range(2):
            observer.check_exact(engine, engine.generate(prompt, 1), prompt)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "sometimes"}, "mode must be one of"),
        ({"interval": -1}, "interval must be at least 0"),
        ({"budget": 0}, "budget must be at least 1"),
        ({"first_budget": 0}, "first_budget must be at least 1"),
        ({"cache_budget_bytes": -1}, "total_bytes must be at least 0"),
    ],
)
def test_bad_options(make_runner, observer, options, message):
    with pytest.raises(ValueError, match=message):
        observer.engine(make_runner(), **options)
