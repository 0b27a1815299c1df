"""A request that breaks off leaves an engine that answers right: memory tier, disk tier, pins."""

import jax
import numpy as np
import pytest

from hybrid.disk_tier import DiskTier
from hybrid.engine import Engine
from hybrid.prefix_cache import PrefixCache
from hybrid.runner import ModelRunner
from planner.eviction import Budget, LeastRecentlyUsed
from planner.placement import PlacementPolicy, parse_placement
from planner.prefix_index import PrefixIndex
from planner.report import Reason
from planner.served_demand import ServedDemand
from tests.hybrid.common import tokens_of

TILE, BLOCK = 32, 8


@pytest.mark.parametrize("length", [TILE, 4 * TILE])
def test_capture_at_the_end_of_the_prompt(make_runner, observer, tmp_path, length):
    """Decoding starts from the very state that is kept; its copy must outlive the decoding."""
    prompt = tokens_of(1, length)
    longer = np.concatenate([prompt, tokens_of(2, 20)])
    placement = parse_placement("every:4")
    with observer.engine(make_runner(), placement=placement, directory=tmp_path) as engine:
        completion = engine.generate(prompt, 5)
        last = engine.seen["snapshots"].pop(length)
        jax.tree.map(np.testing.assert_array_equal, last, engine.seen["end"])
        observer.check_exact(engine, completion, prompt)
        completion = engine.generate(longer, 5)
        assert completion.report.restored == length
        observer.check_exact(engine, completion, longer)


class Broken(BaseException):
    """Like an interrupt from the keyboard: no Exception."""


PLACES = [
    (PrefixIndex, "insert", 0),
    (PrefixIndex, "attach", 1),
    (ModelRunner, "decode", 0),
    (ModelRunner, "read_rows", 1),  # the first call is the observer's
    (ModelRunner, "read_rows", 2),
    (PrefixCache, "keep", 0),
    (DiskTier, "_hand_over", 0),
    (DiskTier, "_enter", 0),
]


@pytest.mark.parametrize(
    ("owner", "method", "after", "eviction"),
    [(*place, lambda: ServedDemand(BLOCK)) for place in PLACES]
    + [(PrefixCache, "keep", 0, LeastRecentlyUsed)],
)
def test_broken_off_anywhere(
    make_runner, observer, monkeypatch, tmp_path, owner, method, after, eviction
):
    """Wherever a request ends early, the next ones are right, and nothing stays pinned or lost."""
    first, second = tokens_of(3, 150), tokens_of(4, 150)
    turn = np.concatenate([first[:140], tokens_of(5, 60)])
    options = {"mode": "in_pass", "interval": 4, "directory": tmp_path}
    engine = observer.engine(
        make_runner(), cache_budget_bytes=120_000, eviction=eviction(), **options
    )
    for prompt in (first, second):
        engine.generate(prompt, 2)
    whole, calls = getattr(owner, method), []

    def broken(*args, **options):
        calls.append(method)
        if len(calls) > after:
            raise Broken
        return whole(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, broken)
        with pytest.raises(Broken):
            engine.generate(turn, 2)
    index = engine.cache.index
    for prompt in (turn, first, second, tokens_of(6, 250), turn, first):
        completion = engine.generate(prompt, 2)
        observer.check_exact(engine, completion, prompt)
        assert engine.cache.payload_bytes == (index.used_kv_bytes, index.used_snapshot_bytes)
        assert index.used_bytes <= 120_000
        assert not any(snapshot.pins for snapshot in index.snapshots.values())
    assert completion.report.restored == 128
    engine.close()
    assert engine.disk.stats.unusable_saves == {}
    with observer.engine(make_runner(), **options) as engine:
        completion = engine.generate(turn, 2)
        assert completion.report.restored == 192
        observer.check_exact(engine, completion, turn)
        assert engine.disk.stats.unusable_saves == {}


def test_closed_engine(make_runner, tmp_path):
    runner, prompt = make_runner(), tokens_of(7, 40)
    with Engine(runner, directory=tmp_path) as engine:
        engine.generate(prompt, 1)
    engine.close()
    calls = dict(runner.calls)
    with pytest.raises(ValueError, match="the engine is closed"):
        engine.generate(prompt, 1)
    assert dict(runner.calls) == calls


@pytest.mark.parametrize(
    "limits",
    [
        {"total_bytes": 0, "kv_bytes": 1 << 60},
        {"total_bytes": 1 << 60, "kv_bytes": 100, "snapshot_bytes": 100},
    ],
)
def test_room_is_asked_for_what_can_be_filled(make_runner, limits):
    """A limit that another one keeps from being reached does not count as memory needed."""
    Engine(make_runner(), cache_budget_bytes=Budget(**limits)).close()


def test_short_names_that_agree_are_a_miss(make_runner, observer, monkeypatch, tmp_path):
    """The index on disk knows blocks by eight bytes of their digests; where those of two prompts
    agree, the digests tell."""
    monkeypatch.setattr(
        "hybrid.disk_tier.digest_keys", lambda digests: np.arange(len(digests), dtype=np.int64)
    )
    options = {"mode": "in_pass", "directory": tmp_path}
    with observer.engine(make_runner(), **options) as engine:
        engine.generate(tokens_of(8, 100), 2)
    with observer.engine(make_runner(), **options) as engine:
        prompt = tokens_of(9, 100)
        completion = engine.generate(prompt, 2)
        assert (completion.report.restored, completion.report.reason) == (0, Reason.CORRUPT)
        observer.check_exact(engine, completion, prompt)


class Asked(PlacementPolicy):
    """Captures where the test says."""

    spec = "asked"
    wanted = ()

    def positions(self, context):
        return context.capturable(self.wanted)


def test_exact_rows_that_were_not_saved_are_not_claimed(make_runner, observer, tmp_path):
    """An exact run whose captures the disk has already saves nothing; the inexact rows that are
    there then stay inexact, until a later run saves exact ones."""
    placement = Asked()
    options = {"placement": placement, "directory": tmp_path, "cache_budget_bytes": 10}
    prompt = tokens_of(10, 142)
    turn = np.concatenate([prompt[:139], tokens_of(11, 67)])
    longer = np.concatenate([turn[:203], tokens_of(12, 45)])
    with observer.engine(make_runner(grid="block"), **options) as engine:
        placement.wanted = (136, 200)
        engine.generate(prompt, 1)
        assert engine.generate(turn, 1).report.restored == 136
        engine.generate(turn, 1, reuse=False)
        placement.wanted = (192, 224)
        engine.generate(longer, 1, reuse=False)
        engine.generate(tokens_of(13, 150), 1)  # takes the working buffer
        completion = engine.generate(longer, 1)
        assert completion.report.restored == 224
        observer.check_exact(engine, completion, longer)
