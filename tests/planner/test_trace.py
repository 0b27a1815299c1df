import dataclasses

import numpy as np
import pytest

from planner.trace import TraceRequest, check_trace, scoped_keys


def request(index: int = 0, arrival_s: float = 0.0, total: int = 10, **changes: object) -> object:
    fields: dict[str, object] = {
        "index": index,
        "arrival_s": arrival_s,
        "session": "s",
        "total_tokens": total,
        "output_tokens": 1,
        "block_size": 4,
        "block_keys": np.arange(total // 4),
    }
    return TraceRequest(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("total", "limit"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (10, 2), (12, 2)]
)
def test_a_match_leaves_a_token_to_compute(total, limit):
    assert request(total=total).match_limit_blocks == limit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 0}, "block_size must be positive, got 0"),
        ({"total": 0}, "total_tokens > 0"),
        ({"block_keys": np.arange(3)}, "one key per full block, 2 for 10 tokens"),
        ({"block_keys": np.arange(2, dtype=np.int32)}, "int64"),
        ({"boundaries": (3, 3)}, "must ascend"),
        ({"boundaries": (3, 11)}, "must ascend"),
        ({"tokens": np.arange(9)}, "expected 10 tokens, got 9"),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        request(**changes)


def test_a_trace_in_order_passes_and_one_out_of_order_is_named():
    trace = [request(0, 1.0), request(1, 1.0), request(2, 3.0)]
    check_trace(trace)
    with pytest.raises(ValueError, match="expected request 1 at place 1, got request 2"):
        check_trace([trace[0], trace[2], trace[1]])
    late = dataclasses.replace(trace[2], arrival_s=0.5)
    with pytest.raises(ValueError, match=r"request 2 arrives at 0.5 s, before request 1 at 1.0 s"):
        check_trace([trace[0], trace[1], late])
    other = dataclasses.replace(trace[2], block_size=2, block_keys=np.arange(5))
    with pytest.raises(ValueError, match="block size 2"):
        check_trace([trace[0], trace[1], other])


def test_scoped_keys_never_meet_across_scopes():
    ids = np.array([0, 5, 2**31 - 1])
    keys = np.concatenate([scoped_keys(ids, scope) for scope in (0, 1, 7, 2**32 - 1)])
    assert len(np.unique(keys)) == len(keys)
    with pytest.raises(ValueError, match="ids must lie"):
        scoped_keys(np.array([2**31]), 0)
    with pytest.raises(ValueError, match="scope must lie"):
        scoped_keys(ids, -1)
