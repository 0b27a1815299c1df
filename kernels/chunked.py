"""The driver of every chunked XLA form: chunks left to right, captures, and a recomputing gradient.

An operation brings one function, `chunk_fn(state, rows) -> (new_state, y)`, over a chunk of rows.
It must treat an all-zero row as the identity, exactly: the state passes unchanged, bit for bit.
Then

- a capture between two chunks is the carried state itself;
- a capture inside a chunk is `chunk_fn` once more, with the rows from the offset on zeroed;
- slots that nobody uses cost nothing: captures run in a loop whose trip count is the number of
  used ones.

The gradient keeps the inputs alone. It finds the states again in two levels, the starts of about
sqrt(chunks) segments and then the chunks of one segment at a time, so it never holds chunks x
state.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32

from kernels.scan import Bounds, Tree, keep_rows, valid_rows

ChunkFn = Callable[[Tree, Tree], tuple[Tree, Tree]]
PublishFn = Callable[[Tree], Tree]

UNROLLED_CHUNKS = 4
"""Up to so many chunks are laid out one after another: a loop's slices cost more than they save."""


def unchanged(state: Tree) -> Tree:
    """The carried layout is the public one."""
    return state


class _Jobs(NamedTuple):
    """Captures as a work list: all slots, flattened, ordered by the chunk that makes them."""

    order_J: Int32[Array, " J_plus_1"]
    offset_J: Int32[Array, " J"]
    lengths_B: Int32[Array, " B"]
    first_of_chunk: Int32[Array, " num_chunks_plus_2"]


def chunked_scan(
    chunk_fn: ChunkFn,
    rows: Tree,
    initial_state: Tree,
    bounds: Bounds,
    chunk: int,
    publish: PublishFn = unchanged,
    unrolled_chunks: int = UNROLLED_CHUNKS,
) -> tuple[Tree, Tree, Tree]:
    """Run `chunk_fn` over all chunks from left to right.

    Args:
        chunk_fn: maps (state [batch, ...], rows [batch, chunk, ...]) to (new state, y). A
            module-level function or one that hashes by value, so that traces are shared; it closes
            over no tracer.
        rows: tree of [batch, length, ...] with length a multiple of `chunk`; rows beyond the
            lengths may hold anything.
        initial_state: tree of [batch, ...].
        bounds: lengths and normalised capture offsets.
        chunk: rows a chunk.
        publish: turns the carried layout of a state into the public one, for the final state and
            each capture that is made.
        unrolled_chunks: up to so many chunks are laid out one after another; 0 where a chunk is
            large work of many small operations, which only take longer to compile that way.

    Returns:
        y as a tree of [batch, length, ...], the final state, and the captures as a tree of
        [batch, slots, ...] with zeros in unused slots.
    """
    batch, slots = bounds.offsets_BK.shape
    length = jax.tree.leaves(rows)[0].shape[1]
    jobs = _plan_jobs(bounds, chunk, length // chunk)
    y, final, flat = _run(chunk_fn, chunk, publish, unrolled_chunks, rows, initial_state, jobs)
    captured = jax.tree.map(lambda leaf: leaf.reshape((batch, slots, *leaf.shape[1:])), flat)
    return y, final, captured


def _plan_jobs(bounds: Bounds, chunk: int, num_chunks: int) -> _Jobs:
    offset_J = bounds.offsets_BK.reshape(-1)
    chunk_J = jnp.where(offset_J > 0, offset_J // chunk, num_chunks + 1)
    # One entry too many: with a single slot XLA would see that the loop's body does not depend on
    # its index, and move a capture out of a loop that never runs.
    order_J = jnp.pad(jnp.argsort(chunk_J).astype(jnp.int32), (0, 1))
    below = chunk_J[None, :] < jnp.arange(num_chunks + 2, dtype=jnp.int32)[:, None]
    return _Jobs(order_J, offset_J, bounds.lengths_B, jnp.sum(below, axis=1, dtype=jnp.int32))


def _take_chunk(rows: Tree, index: int | Array, chunk: int) -> Tree:
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, index * chunk, chunk, 1), rows)


def _take_row(tree: Tree, row: Array) -> Tree:
    return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, row, 1, 0), tree)


def _put(tree: Tree, part: Tree, start: int | Array, axis: int) -> Tree:
    return jax.tree.map(
        lambda leaf, new: lax.dynamic_update_slice_in_dim(
            leaf, new.astype(leaf.dtype), start, axis
        ),
        tree,
        part,
    )


def _add_to_row(tree: Tree, row: Array, part: Tree) -> Tree:
    total = jax.tree.map(jnp.add, _take_row(tree, row), part)
    return _put(tree, total, row, 0)


def _zeros(tree: Tree, length: int | None = None) -> Tree:
    """Zeros like a tree of shapes, the second axis stretched to `length` where it is given."""
    return jax.tree.map(
        lambda leaf: jnp.zeros(
            leaf.shape if length is None else (leaf.shape[0], length, *leaf.shape[2:]), leaf.dtype
        ),
        tree,
    )


def _unpublish(publish: PublishFn, state: Tree, bar: Tree) -> Tree:
    """Pull a cotangent back through a change of layout, which is linear whatever the state."""
    return jax.vjp(publish, state)[1](bar)[0]


def _step(chunk_fn: ChunkFn, counts_B: Array, state: Tree, rows: Tree) -> tuple[Tree, Tree]:
    """`chunk_fn` over the first `counts_B` rows of a chunk: those behind become identity rows."""
    keep_BC = valid_rows(counts_B, jax.tree.leaves(rows)[0].shape[1])
    return chunk_fn(state, jax.tree.map(lambda leaf: keep_rows(leaf, keep_BC), rows))


def _first_rows(chunk_fn: ChunkFn, count: Array, state: Tree, rows: Tree) -> Tree:
    """The state of one batch row after the first `count` rows of a chunk."""
    return _step(chunk_fn, count[None], state, rows)[0]


def _job(
    jobs: _Jobs, position: Array, batch: int, index: int | Array, chunk: int
) -> tuple[Array, ...]:
    job = jobs.order_J[position]
    slots = jobs.offset_J.shape[0] // batch
    return job, job // slots, jobs.offset_J[job] - index * chunk


def _capture(
    chunk_fn: ChunkFn,
    chunk: int,
    publish: PublishFn,
    index: int | Array,
    jobs: _Jobs,
    positions: tuple[Array, Array],
    state: Tree,
    rows: Tree,
    captured: Tree,
) -> Tree:
    """Write captures at the start of chunk `index` or inside it, from the state before it."""
    batch = jax.tree.leaves(rows)[0].shape[0]

    def part_of(row: Array) -> Tree:
        def take(leaf: Array) -> Array:
            start = (row, index * chunk, *(0,) * (leaf.ndim - 2))
            return lax.dynamic_slice(leaf, start, (1, chunk, *leaf.shape[2:]))

        return jax.tree.map(take, rows)

    def write(position: Array, captured: Tree) -> Tree:
        job, row, count = _job(jobs, position, batch, index, chunk)
        found = lax.cond(
            count == 0,
            lambda: publish(_take_row(state, row)),
            lambda: publish(_first_rows(chunk_fn, count, _take_row(state, row), part_of(row))),
        )
        return _put(captured, found, job, 0)

    return lax.fori_loop(*positions, write, captured)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2, 3))
def _run(
    chunk_fn: ChunkFn,
    chunk: int,
    publish: PublishFn,
    unrolled_chunks: int,
    rows: Tree,
    initial_state: Tree,
    jobs: _Jobs,
) -> tuple[Tree, Tree, Tree]:
    length = jax.tree.leaves(rows)[0].shape[1]
    num_chunks = length // chunk
    num_jobs = jobs.offset_J.shape[0]
    captured = jax.tree.map(
        lambda leaf: jnp.zeros((num_jobs, *leaf.shape[1:]), leaf.dtype),
        jax.eval_shape(publish, initial_state),
    )

    def step(index: int | Array, state: Tree) -> tuple[Tree, Tree]:
        # Without a barrier XLA fuses one chunk's state into the next ones' and computes it again.
        state = lax.optimization_barrier(state)
        counts_B = jobs.lengths_B - index * chunk
        part = _take_chunk(rows, index, chunk)
        return lax.optimization_barrier(_step(chunk_fn, counts_B, state, part))

    def capture(
        index: int | Array, positions: tuple[Array, Array], state: Tree, captured: Tree
    ) -> Tree:
        if not num_jobs:
            return captured
        return _capture(chunk_fn, chunk, publish, index, jobs, positions, state, rows, captured)

    first = jobs.first_of_chunk
    if num_chunks <= unrolled_chunks:
        parts = []
        state = initial_state
        for index in range(num_chunks):
            captured = capture(index, (first[index], first[index + 1]), state, captured)
            state, y = step(index, state)
            parts.append(y)
        captured = capture(num_chunks, (first[-2], first[-1]), state, captured)
        y = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, 1), *parts)
        return y, publish(state), captured

    def body(index: Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        state, y = carry
        state, part = step(index, state)
        return state, _put(y, part, index * chunk, 1)

    y_shape = jax.eval_shape(chunk_fn, initial_state, _take_chunk(rows, 0, chunk))[1]
    carry = (initial_state, _zeros(y_shape, length))
    if not num_jobs:
        state, y = lax.fori_loop(0, num_chunks, body, carry)
        return y, publish(state), captured

    # From capture to capture: the chunks between two run in a loop that knows of neither.
    used = first[-1]

    def stretch(
        position: Array, carry: tuple[Array, Tree, Tree, Tree]
    ) -> tuple[Array, Tree, Tree, Tree]:
        start, captured, state, y = carry
        end = jobs.offset_J[jobs.order_J[position]] // chunk
        end = jnp.where(position < used, end, num_chunks)
        state, y = lax.fori_loop(start, end, body, (state, y))
        positions = (position, jnp.minimum(position + 1, used))
        return end, capture(end, positions, state, captured), state, y

    start = jnp.zeros((), jnp.int32)
    _, captured, state, y = lax.fori_loop(0, used + 1, stretch, (start, captured, *carry))
    return y, publish(state), captured


def _run_fwd(
    chunk_fn: ChunkFn,
    chunk: int,
    publish: PublishFn,
    unrolled_chunks: int,
    rows: Tree,
    initial_state: Tree,
    jobs: _Jobs,
) -> tuple[tuple[Tree, Tree, Tree], tuple[Tree, Tree, _Jobs]]:
    result = _run(chunk_fn, chunk, publish, unrolled_chunks, rows, initial_state, jobs)
    return result, (rows, initial_state, jobs)


def _run_bwd(
    chunk_fn: ChunkFn,
    chunk: int,
    publish: PublishFn,
    unrolled_chunks: int,
    residuals: tuple[Tree, Tree, _Jobs],
    cotangents: tuple[Tree, Tree, Tree],
) -> tuple[Tree, Tree, None]:
    rows, initial_state, jobs = residuals
    y_bar, final_bar, captured_bar = cotangents
    num_chunks = jax.tree.leaves(rows)[0].shape[1] // chunk
    segment = max(1, round(num_chunks**0.5))
    num_segments = -(-num_chunks // segment)

    def advance(index: Array, state: Tree) -> Tree:
        counts_B = jobs.lengths_B - index * chunk
        return _step(chunk_fn, counts_B, state, _take_chunk(rows, index, chunk))[0]

    def segment_end(number: Array) -> Array:
        return jnp.minimum((number + 1) * segment, num_chunks)

    def forward(state: Tree, number: Array) -> tuple[Tree, Tree]:
        return lax.fori_loop(number * segment, segment_end(number), advance, state), state

    numbers = jnp.arange(num_segments, dtype=jnp.int32)
    _, starts = lax.scan(forward, initial_state, numbers)

    def backward(carry: tuple[Tree, Tree], number: Array) -> tuple[tuple[Tree, Tree], None]:
        first, end = number * segment, segment_end(number)

        def remember(index: Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            state, states = carry
            states = _put(states, jax.tree.map(lambda leaf: leaf[None], state), index - first, 0)
            return advance(index, state), states

        start = jax.tree.map(lambda leaf: leaf[number], starts)
        states = jax.tree.map(lambda leaf: jnp.zeros((segment, *leaf.shape), leaf.dtype), start)
        _, states = lax.fori_loop(first, end, remember, (start, states))

        def retreat(back: Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            state_bar, rows_bar = carry
            index = end - 1 - back
            state = jax.tree.map(lambda leaf: leaf[index - first], states)
            part = _take_chunk(rows, index, chunk)
            counts_B = jobs.lengths_B - index * chunk
            _, pullback = jax.vjp(partial(_step, chunk_fn, counts_B), state, part)
            bars = pullback((state_bar, _take_chunk(y_bar, index, chunk)))
            if jobs.offset_J.shape[0]:
                extra = _capture_bwd(
                    chunk_fn, chunk, publish, index, jobs, state, part, captured_bar
                )
                bars = jax.tree.map(jnp.add, bars, extra)
            state_bar, part_bar = bars
            return state_bar, _put(rows_bar, part_bar, index * chunk, 1)

        return lax.fori_loop(0, end - first, retreat, carry), None

    state_bar = _unpublish(publish, initial_state, final_bar)
    if jobs.offset_J.shape[0]:
        last = _take_chunk(rows, num_chunks - 1, chunk)
        extra, _ = _capture_bwd(
            chunk_fn, chunk, publish, num_chunks, jobs, initial_state, last, captured_bar
        )
        state_bar = jax.tree.map(jnp.add, state_bar, extra)
    carry = (state_bar, _zeros(rows))
    (state_bar, rows_bar), _ = lax.scan(backward, carry, numbers, reverse=True)
    return rows_bar, state_bar, None


def _capture_bwd(
    chunk_fn: ChunkFn,
    chunk: int,
    publish: PublishFn,
    index: int | Array,
    jobs: _Jobs,
    state: Tree,
    rows: Tree,
    captured_bar: Tree,
) -> tuple[Tree, Tree]:
    """Pull the captures of one chunk back, onto the state before it and its rows."""
    batch = jax.tree.leaves(rows)[0].shape[0]

    def pull(position: Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        job, row, count = _job(jobs, position, batch, index, chunk)
        bar = _unpublish(publish, _take_row(state, row), _take_row(captured_bar, job))
        state_bar, rows_bar = carry

        def at_start() -> tuple[Tree, Tree]:
            return _add_to_row(state_bar, row, bar), rows_bar

        def inside() -> tuple[Tree, Tree]:
            _, pullback = jax.vjp(
                partial(_first_rows, chunk_fn, count), _take_row(state, row), _take_row(rows, row)
            )
            own_bar, own_rows_bar = pullback(bar)
            return (
                _add_to_row(state_bar, row, own_bar),
                _add_to_row(rows_bar, row, own_rows_bar),
            )

        return lax.cond(count == 0, at_start, inside)

    first = jobs.first_of_chunk
    carry = (_zeros(state), _zeros(rows))
    return lax.fori_loop(first[index], first[index + 1], pull, carry)


_run.defvjp(_run_fwd, _run_bwd)
