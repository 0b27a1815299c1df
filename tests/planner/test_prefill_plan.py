import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.prefill_plan import (
    is_checkpoint_chunk_end,
    is_prompt_tail_end,
    last_boundary,
    plan_chunk_len,
    tail_split_point,
)

totals = st.integers(0, 5000)
block_sizes = st.integers(1, 100)


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (32772, 32752),
        (32768, 32736),
        (33, 16),
        (48, 16),
        (49, 32),
        (32, None),
        (16, None),
        (0, None),
    ],
)
def test_split_point_examples(total, expected):
    assert tail_split_point(total, 16) == expected
    assert tail_split_point(np.int64(total), np.int32(16)) == expected


@pytest.mark.parametrize(("total", "expected"), [(32772, 32512), (271, None), (272, 16)])
def test_split_point_with_a_minimum_tail(total, expected):
    assert tail_split_point(total, 16, 256) == expected


@given(totals, block_sizes, st.integers(0, 600))
def test_split_point_is_the_largest_position_that_qualifies(total, block_size, min_tail):
    fits = [
        position
        for position in range(block_size, total, block_size)
        if position + block_size < total and total - position >= min_tail
    ]
    assert tail_split_point(total, block_size, min_tail) == (fits[-1] if fits else None)


@given(totals, block_sizes)
def test_tail_ends_are_the_last_boundary_and_the_one_below(total, block_size):
    ends = [end for end in range(total + 2) if is_prompt_tail_end(end, total, block_size)]
    boundaries = list(range(0, total, block_size))
    assert ends == boundaries[-2:]
    assert last_boundary(total, block_size) == (boundaries[-1] if boundaries else 0)


@given(totals, block_sizes, st.integers(0, 40))
def test_checkpoint_ends_are_tail_ends_and_marked_boundaries(total, block_size, interval):
    ends = {
        end
        for end in range(total + 2 * block_size)
        if is_checkpoint_chunk_end(end, total, block_size, interval)
    }
    boundaries = range(block_size, total, block_size)
    marked = {end for end in boundaries if interval and end // block_size % interval == 0}
    assert ends == marked | set(boundaries[-2:])


@given(totals, st.data(), block_sizes)
def test_chunk_length(total, data, block_size):
    offset = data.draw(st.integers(0, total))
    proposed = data.draw(st.integers(0, 600))
    split = data.draw(st.none() | st.integers(0, total))
    length = plan_chunk_len(offset, total, proposed, block_size, split)
    if offset + proposed >= total:
        assert length == proposed
        return
    assert (1 <= length <= proposed) or (length == proposed == 0)
    spanned = split is not None and offset < split < offset + proposed
    inside = [p for p in range(offset + 1, offset + proposed + 1) if p % block_size == 0]
    if spanned:
        assert offset + length == split
    elif inside:
        assert offset + length == inside[-1]
    else:
        assert length == proposed


BAD = [True, 1.0, -1, "1", None, np.float32(1), np.bool_(True)]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (tail_split_point, {"total": 9, "block_size": 4, "min_tail_tokens": 0}),
        (is_prompt_tail_end, {"end_token": 8, "total": 9, "block_size": 4}),
        (is_checkpoint_chunk_end, {"end_token": 8, "total": 9, "block_size": 4, "interval": 1}),
        (plan_chunk_len, {"offset": 0, "total": 9, "proposed": 4, "block_size": 4, "split": 4}),
    ],
)
def test_bad_arguments_are_named(function, arguments, bad):
    for name in arguments:
        if name == "split" and bad is None:
            continue
        with pytest.raises(ValueError, match=name) as raised:
            function(**(arguments | {name: bad}))
        assert str(bad) in str(raised.value)


def test_zero_block_size_and_an_offset_past_the_end_are_refused():
    for function in (tail_split_point, last_boundary):
        with pytest.raises(ValueError, match=r"block_size .* 0"):
            function(9, 0)
    with pytest.raises(ValueError, match=r"offset .* 10"):
        plan_chunk_len(10, 9, 0, 4, None)
