import gzip
import json

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from experiments.errors import UserError
from experiments.traces import prompt_tokens, read_trace, scaled_length, trace_requests
from experiments.traces.recorded import Recorded, block_tokens, scaled_block
from planner.trace import check_trace
from tests.shared_data import shared_trace

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 10, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 3]},
    {"timestamp": 10, "input_length": 300, "output_length": 0, "hash_ids": [4]},
]
WEKA = {
    "id": "s1",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "type": "n", "in": 200, "out": 9, "hash_ids": [1, 2, 3]},
        {
            "t": 2.0,
            "type": "subagent",
            "agent_id": "a",
            "requests": [{"t": 1.0, "type": "n", "in": 70, "out": 1, "hash_ids": [9]}],
        },
        {"t": 2.5, "type": "s", "in": 260, "out": 9, "hash_ids": [1, 2, 3, 4]},
    ],
}
RANGES = {
    **WEKA,
    "requests": [{"t": 1, "in": 330, "out": 2, "hash_ranges": [[1, 3], [7, 2]]}],
}
AGENT = [
    {"timestamp": 2_000_000, "input": "user: hi\nassistant: ho", "output": "x", "session_id": "a"},
    {"timestamp": 1_000_000, "input": "user: hi", "output": "é", "session_id": "a"},
    {"timestamp": 1_500_000, "input": "", "output": "", "session_id": "a"},
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def changed(rows, place, **change):
    rows = [dict(row) for row in rows]
    rows[place] |= change
    return [{k: v for k, v in row.items() if v is not ...} for row in rows]


def test_mooncake(tmp_path):
    found = read_trace(write(tmp_path / "m.jsonl", MOONCAKE))
    assert [(r.arrival_s, r.total_tokens, r.output_tokens) for r in found] == [
        (0.0, 1100, 5),
        (0.01, 1500, 5),
        (0.01, 300, 0),
    ]
    requests = trace_requests(found)
    check_trace(requests)
    assert [request.block_keys.tolist() for request in requests] == [[0, 1], [0, 1], []]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_weka_session_file(tmp_path, indent, packed):
    text = json.dumps(WEKA, indent=indent)
    path = tmp_path / ("w.json.gz" if packed else "w.json")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    found = read_trace(path)
    assert [(r.arrival_s, r.session, r.total_tokens) for r in found] == [
        (0.0, "s1", 200),
        (2.5, "s1", 260),
        (3.0, "s1/a", 70),
    ]
    check_trace(trace_requests(found))


def test_weka_sessions_share_nothing_and_ranges_are_ids(tmp_path):
    found = read_trace(write(tmp_path / "w.jsonl", [WEKA, {**RANGES, "id": "s2"}]))
    assert [r.session for r in found] == ["s1", "s2", "s1", "s1/a"]
    assert (found[1].ids & (2**31 - 1)).tolist() == [1, 2, 3, 7, 8]
    assert not set(found[0].ids) & set(found[1].ids)


def test_agent_text_is_sorted_and_knows_where_messages_end(tmp_path):
    found = read_trace(write(tmp_path / "a.jsonl", AGENT))
    assert [(r.arrival_s, r.total_tokens, r.output_tokens) for r in found] == [
        (0.0, 8, 2),
        (1.0, 22, 1),
    ]
    assert found[1].boundaries == (8,)
    requests = trace_requests(found, block_size=4)
    check_trace(requests)
    assert bytes(requests[1].tokens.astype(np.uint8)) == AGENT[0]["input"].encode()
    assert requests[0].block_keys.tolist() == requests[1].block_keys[:2].tolist()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            changed(MOONCAKE, 1, input_length=-4),
            r":2: input_length: expected an integer of at least 1",
        ),
        (changed(MOONCAKE, 1, input_length=True), r":2: input_length: .* got true"),
        (changed(MOONCAKE, 2, output_length=1.5), r":3: output_length: .* got 1\.5"),
        (
            changed(MOONCAKE, 0, output_length=...),
            r":1: lacks 'output_length', expected an integer",
        ),
        (changed(MOONCAKE, 1, timestamp="now"), r":2: timestamp: expected a number .* 'now'"),
        (changed(MOONCAKE, 1, timestamp=float("nan")), r":2: timestamp: expected a number"),
        (
            changed(MOONCAKE, 2, timestamp=9),
            r":3: timestamp: expected at least the one of the line",
        ),
        (
            changed(MOONCAKE, 1, hash_ids=[0, 1]),
            r":2: hash_ids: expected 3 ids for input_length 1500",
        ),
        (changed(MOONCAKE, 1, hash_ids=[0, 3, 1]), r":2: hash_ids\[2\]: ids out of order"),
        (
            changed(MOONCAKE, 1, hash_ids=[0, 2, 3]),
            r":2: ids out of order: block 1 has id 2, which",
        ),
        (
            changed(MOONCAKE, 1, hash_ids=[1, 2, 3]),
            r"after id 0 in an earlier request and comes first",
        ),
        (changed(MOONCAKE, 1, hash_ids=[0, 1, "3"]), r":2: hash_ids\[2\]: expected an integer"),
        (changed(MOONCAKE, 1, hash_ids=[0, 1, -3]), r":2: hash_ids\[2\]: expected an integer"),
        (changed(MOONCAKE, 1, hash_ids=[0, 1, 2**40]), r":2: hash_ids\[2\]: expected an integer"),
        (changed(MOONCAKE, 1, hash_ids="0 1"), r":2: hash_ids: expected a list"),
        (changed(AGENT, 1, input=["user"]), r":2: input: expected a string, got a list of 1"),
        (changed(AGENT, 1, session_id=...), r":2: lacks 'session_id'"),
        (changed(AGENT, 1, timestamp=-1), r":2: timestamp: expected an integer of at least 0"),
        ([*MOONCAKE, 7], r":4: expected a JSON object, got 7"),
        ([{"a": 1}], r":1: no known trace format; expected the fields of one of Mooncake"),
        (
            [WEKA, {**WEKA, "block_size": 16}],
            r":2: block_size: expected 64 as in the sessions before",
        ),
        ([WEKA, {**WEKA, "hash_id_scope": "global"}], r":2: hash_id_scope: expected 'local'"),
        ([WEKA, {**WEKA, "requests": 3}], r":2: requests: expected a list of requests, got 3"),
        ([WEKA, {**WEKA, "requests": [3]}], r":2: requests\[0\]: expected a JSON object, got 3"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, rows, message):
    path = write(tmp_path / "bad.jsonl", rows)
    with pytest.raises(UserError, match=message) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hash_ranges": [[1, 3]]}, "expected 5 block ids for 'in' 330 in blocks of 64, got 3"),
        ({"hash_ranges": [[1, 3], [3, 2]]}, r"hash_ranges\[1\]: ids out of order or wrong"),
        ({"hash_ranges": [[1, 5, 2]]}, r"hash_ranges\[0\]: ids out of order or wrong"),
        ({"hash_ranges": [[1, 0], [1, 5]]}, r"hash_ranges\[0\]: ids out of order or wrong"),
        ({"hash_ranges": [[1, 2**31]]}, r"hash_ranges\[0\]: ids out of order or wrong"),
        ({"in": 0}, "in: expected an integer of at least 1, got 0"),
        ({"t": None}, "t: expected a number of at least 0, got null"),
        ({"type": "subagent", "agent_id": "b"}, "lacks 'requests', expected a list of requests"),
    ],
)
def test_a_malformed_session_is_named(tmp_path, change, message):
    path = write(tmp_path / "bad.jsonl", [RANGES, changed([RANGES], 0)[0]])
    bad = {**RANGES, "requests": [RANGES["requests"][0] | change]}
    write(path, [RANGES, bad])
    with pytest.raises(UserError, match=message) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:2: requests[0]")


def test_files_that_cannot_be_read(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    whole = gzip.compress("".join(json.dumps(row) + "\n" for row in MOONCAKE).encode())
    for data, message in [
        (whole[: len(whole) // 2], "cut off before its end"),
        (whole[:-3], "cut off before its end"),
        (b"plain text", "not a whole gzip file"),
        (whole[:-8] + b"\0" * 8, "not a whole gzip file"),
        (gzip.compress(b""), "holds no request"),
        (gzip.compress(b'{"a": 1}\n\xff\xfe'), r"gz:2: expected UTF-8"),
        (
            gzip.compress(b'{"timestamp": 0, "inp\n' + b'{"a": 1}\n'),
            r"gz:1: expected one JSON object",
        ),
        (gzip.compress(b'{"id": "s",\n "requests": [}\n'), r"gz:2: expected JSON"),
        (gzip.compress(b"[1, 2]\n"), r"gz:1: expected a JSON object, got a list of 2"),
        (
            gzip.compress(
                b'{"id": "s", "block_size": 1, "requests": [], "hash_id_scope": "local"}'
            ),
            "holds no request",
        ),
    ]:
        path.write_bytes(data)
        with pytest.raises(UserError, match=message):
            read_trace(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(tmp_path / "absent.jsonl")
    with pytest.raises(UserError, match="--max-requests 0"):
        read_trace(path, max_requests=0)


@hypothesis.given(data=st.data())
def test_any_cut_or_changed_byte_is_read_or_named_never_a_crash(tmp_path_factory, data):
    rows = data.draw(st.sampled_from([MOONCAKE, [WEKA, RANGES], AGENT]))
    text = bytearray("".join(json.dumps(row) + "\n" for row in rows).encode())
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text)))]
    else:
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_bytes(text)
    try:
        found = read_trace(path)
    except UserError as error:
        message = str(error)
    else:
        check_trace(trace_requests(found, block_size=4))
        return
    assert message.startswith(str(path))


def test_text_that_utf8_cannot_hold_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(AGENT[1]).replace("hi", "\\ud800"))
    assert read_trace(path)[0].total_tokens == len("user: ") + 3


def shared_length(a, b):
    shorter = min(len(a), len(b))
    differs = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(differs[0]) if differs.size else shorter


PREFIX_IDS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@hypothesis.given(
    paths=st.lists(PREFIX_IDS, min_size=2, max_size=5),
    rest=st.integers(0, 63),
    scale=st.sampled_from([0.125, 0.3, 0.5, 1.0]),
)
def test_tokens_made_from_ids_share_exactly_what_the_ids_share(paths, rest, scale):
    """Ids name (block, everything before it), so draw paths in a tree and number its nodes."""
    numbers = {}
    requests = []
    for path in paths:
        ids = [numbers.setdefault(tuple(path[: i + 1]), len(numbers)) for i in range(len(path))]
        total = 64 * len(ids) + rest
        requests.append(Recorded(0.0, "s", total, 0, 64, np.array(ids, dtype=np.int64)))
    kept = scaled_block(64, scale)
    tokens = [prompt_tokens(request, i, scale) for i, request in enumerate(requests)]
    for i, (one, request) in enumerate(zip(tokens, requests, strict=True)):
        assert len(one) == scaled_length(request.total_tokens, 64, kept)
        assert one.dtype == np.int32
        assert one.min() >= 0
        assert one.max() < 256
        for j in range(i):
            same = shared_length(request.ids, requests[j].ids)
            tail = rest * kept // 64
            # The tails have no id, so nothing in them is the same by more than chance.
            assert same * kept <= shared_length(one, tokens[j]) < same * kept + max(8, min(8, tail))
    by_own_block = trace_requests(requests)
    by_content = trace_requests(requests, block_size=kept, scale=scale)
    for a, b in zip(by_own_block, by_content, strict=True):
        for c, d in zip(by_own_block, by_content, strict=True):
            assert shared_length(a.block_keys, c.block_keys) == shared_length(
                b.block_keys, d.block_keys
            )


@hypothesis.given(
    keys=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=8, unique=True),
    length=st.integers(8, 40),
)
def test_blocks_of_different_ids_differ(keys, length):
    keys = np.array(keys, dtype=np.uint64)
    tokens = block_tokens(keys, length)
    assert len({row.tobytes() for row in tokens[:, :8]}) == len(keys)
    assert np.array_equal(tokens[::-1], block_tokens(keys[::-1], length))
    assert np.array_equal(tokens[:, :8], block_tokens(keys, 8))


@hypothesis.given(
    texts=st.lists(st.binary(min_size=1, max_size=90), min_size=2, max_size=2),
    prefix=st.binary(max_size=90),
    scale=st.sampled_from([0.125, 0.4, 1.0]),
)
def test_text_shrinks_with_its_shared_prefix(texts, prefix, scale):
    whole = [np.frombuffer(prefix + text, dtype=np.uint8) for text in texts]
    requests = [Recorded(0.0, "s", len(text), 0, 16, text=text) for text in whole]
    if round(16 * scale) < 8:
        with pytest.raises(UserError, match=r"--scale 0\.\d+: would keep"):
            prompt_tokens(requests[0], 0, scale)
        return
    one, other = (prompt_tokens(request, i, scale) for i, request in enumerate(requests))
    shared = shared_length(*whole)
    assert shared_length(one, other) >= scaled_length(shared, 16, scaled_block(16, scale))
    assert len(one) == max(1, scaled_length(len(whole[0]), 16, scaled_block(16, scale)))


@pytest.mark.parametrize("scale", [0.0, -1.0, 1.5, float("nan"), 1e-4])
def test_a_scale_that_does_not_fit_is_refused(tmp_path, scale):
    found = read_trace(write(tmp_path / "m.jsonl", MOONCAKE))
    with pytest.raises(UserError, match="--scale"):
        trace_requests(found, block_size=16, scale=scale)


def restorable_shares(requests, steps):
    """Infinite cache: share of prompt tokens restored with a snapshot every `step` tokens."""
    known, matched = set(), []
    for request in requests:
        keys = request.block_keys[: request.match_limit_blocks].tolist()
        end = next((i for i, key in enumerate(keys) if key not in known), len(keys))
        matched.append(end * request.block_size)
        known.update(request.block_keys.tolist())
    total = sum(request.total_tokens for request in requests)
    return total, [float((np.array(matched) // step * step).sum() / total) for step in steps]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tokens", "requests", "steps", "shares"),
    [
        (
            "mooncake/conversation_trace.jsonl.gz",
            144_793_823,
            12_031,
            [512 << i for i in range(7)],
            [0.3734, 0.3396, 0.3210, 0.2912, 0.2397, 0.1667, 0.0828],
        ),
        (
            "weka/sessions.ranges.jsonl.gz",
            3_012_680_174,
            24_015,
            [64, *(512 << i for i in range(7))],
            [0.9631, 0.9613, 0.9593, 0.9553, 0.9473, 0.9310, 0.8981, 0.8341],
        ),
    ],
)
def test_real_traces_give_the_counts_made_independently(name, tokens, requests, steps, shares):
    found = trace_requests(read_trace(shared_trace(name)))
    check_trace(found)
    assert len(found) == requests
    total, got = restorable_shares(found, steps)
    assert total == tokens
    assert got == pytest.approx(shares, abs=0.001)


@pytest.mark.parametrize(("name", "count"), [("miniswe", 402), ("magagent", 693)])
def test_real_text_traces_are_read(name, count):
    found = read_trace(shared_trace(f"lmcache-agent/{name}.jsonl.gz"))
    assert len(found) == count
    small = trace_requests(found[:40], block_size=16, scale=0.05)
    check_trace(small)
    assert sum(r.total_tokens for r in small) / sum(
        r.total_tokens for r in found[:40]
    ) == pytest.approx(0.05, rel=0.05)
