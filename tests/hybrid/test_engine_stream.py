"""Tokens handed on while they are drawn, and stop tokens: the same tokens and states as without."""

import dataclasses

import numpy as np
import pytest

from hybrid.decode import Continuation
from tests.hybrid.common import tokens_of

NEW = 40


@pytest.fixture
def runner(make_runner, monkeypatch):
    runner = make_runner()
    monkeypatch.setattr(runner, "shapes", dataclasses.replace(runner.shapes, decode_steps=8))
    return runner


def check_next_turn(engine, observer, prompt, answer):
    """The cache is what it is after a request that was not watched: the next turn is exact."""
    turn = np.concatenate([prompt, answer, tokens_of(3, 40)])
    completion = engine.generate(turn, 3)
    assert completion.report.restored == 96
    observer.check_exact(engine, completion, turn)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_tokens_are_handed_on_between_calls(runner, observer, temperature):
    engine = observer.engine(runner, mode="in_pass")
    prompt, draws = tokens_of(1, 100), {"temperature": temperature, "seed": 7}
    pieces, calls = [], []

    def on_tokens(new):
        assert new.dtype == np.int32
        pieces.append(new)
        calls.append(runner.calls["decode"])

    before = runner.calls["decode"]
    completion = engine.generate(prompt, NEW, on_tokens=on_tokens, **draws)
    assert [len(piece) for piece in pieces] == [1, 7, 8, 8, 8, 8]
    assert [call - before for call in calls] == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(np.concatenate(pieces), completion.tokens)
    observer.check_exact(engine, completion, prompt, **draws)
    check_next_turn(engine, observer, prompt, completion.tokens)


@pytest.mark.parametrize("place", [0, 1, 7, 8, 20, NEW - 1])
def test_a_stop_token_ends_the_continuation(runner, observer, place):
    """The tokens before it are those of a longer continuation, and no further call is made."""
    prompt, draws = tokens_of(2, 100), {"temperature": 1.0, "seed": 9}
    whole, _ = observer.cold(runner, prompt, NEW, **draws)
    end = next(i for i in range(place, NEW) if whole[i] not in whole[:i])
    engine = observer.engine(runner, mode="in_pass")
    pieces, calls = [], runner.calls["decode"]
    completion = engine.generate(
        prompt, NEW, stop_tokens={whole[end]}, on_tokens=pieces.append, **draws
    )
    np.testing.assert_array_equal(completion.tokens, whole[: end + 1])
    np.testing.assert_array_equal(np.concatenate(pieces), completion.tokens)
    assert runner.calls["decode"] - calls == (end // 8 + 1 if end else 0)
    check_next_turn(engine, observer, prompt, completion.tokens)


def test_a_watcher_that_fails_leaves_nothing_behind(runner, observer):
    engine = observer.engine(runner, mode="in_pass")
    prompt = tokens_of(4, 100)
    engine.generate(prompt, 1)
    with pytest.raises(ZeroDivisionError):
        engine.generate(prompt, NEW, on_tokens=lambda new: 1 // (1 - len(new) % 2))
    assert all(not s.pins for s in engine.cache.index.snapshots.values())
    completion = engine.generate(prompt, 2)
    assert completion.report.restored == 96
    observer.check_exact(engine, completion, prompt)


@pytest.mark.parametrize("stop", [-1, 256, 1.5])
def test_bad_stop_tokens(runner, observer, stop):
    engine = observer.engine(runner)
    with pytest.raises(ValueError, match=f"a stop token must be .* got {stop}"):
        engine.generate(tokens_of(5, 20), 2, stop_tokens=[3, stop])
    assert engine.cache.index.clock == 0


def test_a_continuation_takes_each_token_once():
    taken = []
    continuation = Continuation((9,), taken.append)
    for start, drawn in ((0, [4]), (0, [4, 5, 6]), (3, [7]), (4, [8, 9, 3])):
        ended = continuation.take(start, np.array(drawn, np.int32))
    assert ended
    assert [piece.tolist() for piece in taken] == [[4], [5, 6], [7], [8, 9]]
    assert continuation.tokens.tolist() == [4, 5, 6, 7, 8, 9]
