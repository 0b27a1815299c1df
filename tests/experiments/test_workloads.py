import json
import os
import subprocess
import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from experiments.errors import UserError
from experiments.traces.recorded import Recorded
from experiments.workloads import Outputs, Request, Workload, stdlib_sessions, trace_workload


def tokens(*values):
    return np.array(values, dtype=np.int32)


def answers_of(workload):
    return [np.full(r.output_tokens, 65 + i, np.int32) for i, r in enumerate(workload.requests)]


def test_equal_seeds_give_equal_workloads_in_any_process():
    script = "from experiments.workloads import *; print(stdlib_sessions(3).digest())"
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {stdlib_sessions(3).digest()}
    assert stdlib_sessions(4).digest() not in digests


@hypothesis.given(
    seed=st.integers(0, 10**6),
    sessions=st.integers(1, 4),
    turns=st.integers(1, 4),
    output_tokens=st.integers(1, 9),
)
def test_sessions_share_the_system_prompt_and_each_turn_extends_the_last(
    seed, sessions, turns, output_tokens
):
    workload = stdlib_sessions(seed, sessions, turns, 300, output_tokens)
    answers = answers_of(workload)
    prompts = [workload.prompt(i, answers) for i in range(len(workload.requests))]
    assert [len(prompt) for prompt in prompts] == workload.prompt_lengths()
    assert workload.longest() == max(len(prompt) for prompt in prompts) + output_tokens
    assert len(prompts) == sessions * turns + (turns > 1)
    system = prompts[0][:400]
    for request, prompt in zip(workload.requests, prompts, strict=True):
        assert np.array_equal(prompt[:400], system)
        assert prompt.min() >= 0
        assert prompt.max() < 256
        if request.after is not None:
            before = np.concatenate([prompts[request.after], answers[request.after]])
            assert np.array_equal(prompt[: len(before)], before)
            assert 150 <= len(prompt) - len(before) <= 450


def test_a_python_without_sources_is_told_so(tmp_path):
    with pytest.raises(UserError, match=r"needs the standard library's source files.*--trace PATH"):
        stdlib_sessions(0, library=tmp_path)
    with pytest.raises(UserError, match="--turns 0: expected at least 1"):
        stdlib_sessions(0, turns=0)


def test_a_workload_in_the_wrong_order_is_refused():
    with pytest.raises(ValueError, match="request 0 continues request 0"):
        Workload("bad", (Request("a", tokens(1), after=0),))
    with pytest.raises(ValueError, match="request 0 adds no token"):
        Workload("bad", (Request("a", tokens()),))


@hypothesis.given(data=st.data())
def test_the_digest_sees_every_change(data):
    count = data.draw(st.integers(1, 4))
    requests = [
        Request(
            "s",
            np.array(data.draw(st.lists(st.integers(0, 255), min_size=1, max_size=3)), np.int32),
            data.draw(st.integers(0, 2)),
            data.draw(st.none() | st.integers(0, place - 1)) if place else None,
        )
        for place in range(count)
    ]
    place = data.draw(st.integers(0, count - 1))
    old = requests[place]
    new = Request("s", np.append(old.new_tokens, np.int32(0)), old.output_tokens, old.after)
    other = Request("s", old.new_tokens, old.output_tokens + 1, old.after)
    digests = {
        Workload("w", (*requests[:place], request, *requests[place + 1 :])).digest()
        for request in (old, new, other)
    }
    assert len(digests) == 3


def test_answers_are_recorded_once_and_replayed(tmp_path):
    workload = stdlib_sessions(0, 2, 2, 60, 5)
    answers = answers_of(workload)
    asked = []

    def generate(index, request, prompt):
        asked.append(prompt)
        return np.append(answers[index], 7), index  # one token more than was asked for

    path = tmp_path / "answers.json"
    recording = Outputs.record(workload, generate, path)
    for index, measured in enumerate(recording):
        assert measured == index
        assert path.exists() == (index + 1 == len(workload.requests))
    replayed = Outputs.load(path, workload)
    assert len(asked) == len(workload.requests)
    for prompt, again in zip(asked, replayed.prompts(), strict=True):
        assert np.array_equal(prompt, again)
    assert Outputs.load(tmp_path / "none.json", workload) is None
    with pytest.raises(UserError, match="answers of another workload"):
        Outputs.load(path, stdlib_sessions(1, 2, 2, 60, 5))
    content = json.loads(path.read_text())
    for broken in ("{", "[]", json.dumps({**content, "answers": 3}), json.dumps({"answers": []})):
        path.write_text(broken)
        with pytest.raises(UserError, match="not a file of recorded answers"):
            Outputs.load(path, workload)


def test_a_trace_is_replayed_as_it_was_recorded():
    text = np.frombuffer(b"user: hello there", dtype=np.uint8)
    recorded = [Recorded(0.0, "a", len(text), 3, 512, text=text)]
    workload = trace_workload("t", recorded)
    assert bytes(workload.prompt(0, []).astype(np.uint8)) == bytes(text)
    assert workload.longest() == len(text) + 1
