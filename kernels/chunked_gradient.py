"""The gradient of a chunked scan, which keeps the inputs alone.

It finds the states again in two levels, the starts of about sqrt(chunks) segments and then the
chunks of one segment at a time, so it never holds chunks x state. A capture's cotangent joins the
state's where the capture was taken.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from kernels.chunk_steps import (
    ChunkFn,
    Jobs,
    PublishFn,
    first_rows,
    job_at,
    masked_step,
    put,
    take_chunk,
    take_row,
    zeros,
)
from kernels.scan import Tree


def chunked_gradient(
    chunk_fn: ChunkFn,
    chunk: int,
    publish: PublishFn,
    residuals: tuple[Tree, Tree, Jobs],
    cotangents: tuple[Tree, Tree, Tree],
) -> tuple[Tree, Tree, None]:
    """Pull the cotangents of a chunked scan back onto its rows and its initial state.

    Args:
        chunk_fn, chunk, publish: as :func:`kernels.chunked.chunked_scan` has them.
        residuals: rows, initial state and work list of the forward pass.
        cotangents: of y, the final state, and the captures, flattened.

    Returns:
        Cotangents of rows, initial state and (none) work list.
    """
    rows, initial_state, jobs = residuals
    y_bar, final_bar, captured_bar = cotangents
    num_chunks = jax.tree.leaves(rows)[0].shape[1] // chunk
    segment = max(1, round(num_chunks**0.5))
    num_segments = -(-num_chunks // segment)

    def advance(index: Array, state: Tree) -> Tree:
        counts_B = jobs.lengths_B - index * chunk
        return masked_step(chunk_fn, counts_B, state, take_chunk(rows, index, chunk))[0]

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
            states = put(states, jax.tree.map(lambda leaf: leaf[None], state), index - first, 0)
            return advance(index, state), states

        start = jax.tree.map(lambda leaf: leaf[number], starts)
        states = jax.tree.map(lambda leaf: jnp.zeros((segment, *leaf.shape), leaf.dtype), start)
        _, states = lax.fori_loop(first, end, remember, (start, states))

        def retreat(back: Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            state_bar, rows_bar = carry
            index = end - 1 - back
            state = jax.tree.map(lambda leaf: leaf[index - first], states)
            part = take_chunk(rows, index, chunk)
            counts_B = jobs.lengths_B - index * chunk
            _, pullback = jax.vjp(partial(masked_step, chunk_fn, counts_B), state, part)
            bars = pullback((state_bar, take_chunk(y_bar, index, chunk)))
            if jobs.offset_J.shape[0]:
                extra = _capture_bwd(
                    chunk_fn, chunk, publish, index, jobs, state, part, captured_bar
                )
                bars = jax.tree.map(jnp.add, bars, extra)
            state_bar, part_bar = bars
            return state_bar, put(rows_bar, part_bar, index * chunk, 1)

        return lax.fori_loop(0, end - first, retreat, carry), None

    state_bar = _unpublish(publish, initial_state, final_bar)
    if jobs.offset_J.shape[0]:
        last = take_chunk(rows, num_chunks - 1, chunk)
        extra, _ = _capture_bwd(
            chunk_fn, chunk, publish, num_chunks, jobs, initial_state, last, captured_bar
        )
        state_bar = jax.tree.map(jnp.add, state_bar, extra)
    carry = (state_bar, zeros(rows))
    (state_bar, rows_bar), _ = lax.scan(backward, carry, numbers, reverse=True)
    return rows_bar, state_bar, None


def _capture_bwd(
    chunk_fn: ChunkFn,
    chunk: int,
    publish: PublishFn,
    index: int | Array,
    jobs: Jobs,
    state: Tree,
    rows: Tree,
    captured_bar: Tree,
) -> tuple[Tree, Tree]:
    """Pull the captures of one chunk back, onto the state before it and its rows."""
    batch = jax.tree.leaves(rows)[0].shape[0]

    def pull(position: Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        job, row, count = job_at(jobs, position, batch, index, chunk)
        bar = _unpublish(publish, take_row(state, row), take_row(captured_bar, job))
        state_bar, rows_bar = carry

        def at_start() -> tuple[Tree, Tree]:
            return _add_to_row(state_bar, row, bar), rows_bar

        def inside() -> tuple[Tree, Tree]:
            _, pullback = jax.vjp(
                partial(first_rows, chunk_fn, count), take_row(state, row), take_row(rows, row)
            )
            own_bar, own_rows_bar = pullback(bar)
            return (
                _add_to_row(state_bar, row, own_bar),
                _add_to_row(rows_bar, row, own_rows_bar),
            )

        return lax.cond(count == 0, at_start, inside)

    first = jobs.first_of_chunk
    carry = (zeros(state), zeros(rows))
    return lax.fori_loop(first[index], first[index + 1], pull, carry)


def _add_to_row(tree: Tree, row: Array, part: Tree) -> Tree:
    total = jax.tree.map(jnp.add, take_row(tree, row), part)
    return put(tree, total, row, 0)


def _unpublish(publish: PublishFn, state: Tree, bar: Tree) -> Tree:
    """Pull a cotangent back through a change of layout, which is linear whatever the state."""
    return jax.vjp(publish, state)[1](bar)[0]
