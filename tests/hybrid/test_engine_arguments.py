"""What a request and an engine refuse, at once and in words that say what and what was expected."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

from hybrid.arguments import MAX_TEMPERATURE
from hybrid.config import Compute
from hybrid.engine import Engine
from hybrid.runner import RunnerConfig


@pytest.mark.parametrize(
    "prompt",
    [
        np.arange(40, dtype=np.uint8),
        np.arange(40, dtype=np.uint64),
        jnp.arange(40),
        list(range(40)),
        range(40),
        bytearray(range(40)),
        np.arange(0, 40)[::-1][::-1],
    ],
    ids=lambda prompt: type(prompt).__name__,
)
def test_any_sequence_of_integers_will_do(make_runner, prompt):
    with Engine(make_runner()) as engine:
        expected = engine.generate(np.arange(40, dtype=np.int32), 2).tokens
        np.testing.assert_array_equal(engine.generate(prompt, 2).tokens, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_tokens": [[1], [1, 2]]}, "prompt_tokens is no array of integers"),
        ({"prompt_tokens": b"abc"}, r"prompt_tokens has shape \(\)"),
        ({"prompt_tokens": [10**30]}, "prompt_tokens has dtype object"),
        ({"temperature": 1e39}, r"temperature is 1e\+39; expected .* at most 1e\+30"),
        ({"temperature": 10**400}, "temperature is 1000"),
        ({"temperature": float("inf")}, "temperature is inf; expected a finite number"),
        ({"stop_tokens": 5}, "stop_tokens is 5; expected several ids"),
        ({"stop_tokens": iter([1, 256])}, "a stop token must be at most 255, got 256"),
        ({"on_tokens": "print"}, "on_tokens is 'print'; expected a function"),
    ],
)
def test_refused_before_anything_runs(make_runner, options, message):
    runner = make_runner()
    engine, calls = Engine(runner), dict(runner.calls)
    with pytest.raises(ValueError, match=message):
        engine.generate(**{"prompt_tokens": [1], "max_new_tokens": 1, **options})
    assert dict(runner.calls) == calls
    assert engine.cache.index.clock == 0


def test_the_highest_temperature_still_draws(make_runner):
    with Engine(make_runner()) as engine, warnings.catch_warnings():
        warnings.simplefilter("error")
        tokens = engine.generate([1, 2, 3], 40, temperature=MAX_TEMPERATURE).tokens
    assert len(set(tokens.tolist())) > 20


def test_stop_tokens_from_an_iterator(make_runner):
    with Engine(make_runner()) as engine:
        assert len(engine.generate([1, 2, 3], 9, stop_tokens=iter(range(256))).tokens) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"placement": "every:4"}, "placement must be a PlacementPolicy, got 'every:4'"),
        ({"eviction": "lru"}, "policy must be an EvictionPolicy, got 'lru'"),
        ({"directory": ""}, "directory is ''; expected a path"),
        ({"directory": 5}, "directory is 5; expected a path"),
    ],
)
def test_engine_options(make_runner, options, message):
    with pytest.raises(ValueError, match=message):
        Engine(make_runner(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"implementation": "cuda"}, "Compute.implementation is 'cuda'; expected one of auto"),
        ({"precision": "best"}, "Compute.precision is 'best'; expected one of default"),
    ],
)
def test_compute(options, message):
    with pytest.raises(ValueError, match=message):
        Compute(**options)


@pytest.mark.parametrize("kept_rows", [128.0, True, 0, -128, 100])
def test_kept_rows(kept_rows):
    with pytest.raises(ValueError, match=r"kept_rows is .*; expected a multiple of tile = 128"):
        RunnerConfig(capacity=128, kept_rows=kept_rows)
