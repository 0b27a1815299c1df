"""The engine: one request at a time from prompt to tokens and report, through the prefix cache.

generate --> look up --> restore --> prefill passes --> first token --> decode --> keep
             index       lend or     runner             time is taken             index, payloads,
                         copy rows                                                saves on disk
"""

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Self

import jax
import numpy as np

from hybrid.arguments import check_draws, checked_prompt, checked_stop_tokens
from hybrid.decode import Continuation, sample
from hybrid.disk_tier import DiskTier
from hybrid.memory import MemoryEstimate, check_memory
from hybrid.prefill import Workspace
from hybrid.prefix_cache import PrefixCache, WorkingBuffer
from hybrid.runner import ModelRunner, PrefillResult
from hybrid.snapshots import OrbaxSnapshotStore
from hybrid.state import Rows, Snapshot, tree_bytes
from planner.eviction import Budget, EvictionPolicy
from planner.placement import PlacementPolicy
from planner.report import RequestReport
from planner.session import Admission, Outcome, Scheduling, report

_log = logging.getLogger(__name__)
_draw = jax.jit(sample)


@dataclasses.dataclass(frozen=True)
class Completion:
    """What a request gave.

    Args:
        tokens: int32 [n], the continuation: max_new_tokens, or up to the first stop token.
        report: what the request reused, computed and kept, and why not better.
    """

    tokens: np.ndarray
    report: RequestReport


@dataclasses.dataclass(frozen=True)
class _Source:
    """What a request restores from.

    Args:
        agreed: rows from the first that the working buffer holds already, exact.
        base: position of the first row of `rows`.
        states: the snapshot; None starts from the empty state.
        rows: keys and values from `base` up to the snapshot; None where all are held already.
        promote: whether the memory tier lacks the snapshot.
    """

    agreed: int
    base: int
    states: Snapshot | None
    rows: Rows | None
    promote: bool = False


class Engine:
    """Generates continuations, reusing what earlier prompts left in its cache.

    One request runs at a time; an engine is not to be shared between threads. Its grid is the
    runner's: on "tile" it restores exactly and only that, on "block" it takes inexact snapshots
    too.

    Args:
        runner: model and programs, for one sequence (`batch` 1); may serve other engines too.
        mode: how prefill is scheduled, see `planner.schedule.plan_prefill`.
        interval: in blocks, for the modes that have one.
        first_budget: tokens of a prompt's first chunk; None for `budget`.
        budget: tokens of each later chunk.
        cache_budget_bytes: limit for blocks and snapshots in memory; a
            `planner.eviction.Budget` for separate limits, None for no limit.
        directory: where snapshots are saved and looked for; None keeps them in memory only. One
            that cannot be used is reported in the log and then ignored.
        min_tail_tokens: least number of tokens after the split point.
        placement: a policy that chooses the captured positions, in place of `mode`.
        eviction: what goes first when memory is short, a policy object of its own; None for LRU.

    Raises:
        ValueError: an option out of its bounds, or a runner for several sequences.
        InsufficientMemoryError: workspace and cache budget are more than there is.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        mode: str = "planned",
        interval: int = 16,
        first_budget: int | None = None,
        budget: int = 8192,
        cache_budget_bytes: int | Budget | None = None,
        directory: str | os.PathLike[str] | None = None,
        min_tail_tokens: int = 0,
        placement: PlacementPolicy | None = None,
        eviction: EvictionPolicy | None = None,
    ) -> None:
        if runner.shapes.batch != 1:
            raise ValueError(f"runner has batch {runner.shapes.batch}; expected 1")
        scheduling = Scheduling(
            tile=runner.shapes.tile,
            mode=mode,
            interval=interval,
            first_budget=first_budget,
            budget=budget,
            grid=runner.shapes.grid,
            min_tail_tokens=min_tail_tokens,
            placement=placement,
        )
        limits = cache_budget_bytes
        if not isinstance(limits, Budget):
            limits = Budget(total_bytes=limits)
        _check_room(runner, limits)
        self.runner = runner
        self.cache = PrefixCache(runner, scheduling, limits, eviction)
        self.disk = None if directory is None else _open_disk(runner, directory)
        self._buffer = WorkingBuffer(runner)
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def flush(self) -> None:
        """Wait until all saves are on disk or given up."""
        if self.disk is not None:
            self.disk.flush()

    def close(self) -> None:
        """Flush, let go of the directory and the workspace; the engine is not to be used after."""
        self._closed = True
        if self.disk is not None:
            self.disk.close()
        self._buffer = WorkingBuffer(self.runner)

    def generate(
        self,
        prompt_tokens: Sequence[int] | np.ndarray,
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        reuse: bool = True,
        boundaries: Sequence[int] = (),
        previous_totals: Sequence[int] = (),
        stop_tokens: Collection[int] = (),
        on_tokens: Callable[[np.ndarray], None] | None = None,
    ) -> Completion:
        """Continue a prompt.

        Args:
            prompt_tokens: integers [total], ids within the vocabulary, at least one.
            max_new_tokens: tokens to draw, at least 1; with the prompt within the capacity.
            temperature: 0 takes the most likely token each time.
            seed: of the draws, 0..2**32 - 1.
            reuse: whether the request may restore; what it computes is kept either way.
            boundaries: positions where messages start, for placements that look at them.
            previous_totals: lengths of the conversation's earlier prompts, likewise.
            stop_tokens: ids that end the continuation before max_new_tokens; the one that did is
                its last token.
            on_tokens: called with new tokens of the continuation, int32 [n], between the programs'
                calls: first the first token alone, then those of every decode call. It changes no
                bit; if it raises, the request is given up and its prompt is not kept.

        Returns:
            The continuation and the report.

        Raises:
            ValueError: an argument out of its bounds, or the engine is closed; nothing has run
                then.
        """
        started = time.perf_counter()
        if self._closed:
            raise ValueError("the engine is closed; expected an open one")
        vocab_size, capacity = self.runner.config.vocab_size, self.runner.shapes.capacity
        prompt = checked_prompt(prompt_tokens, max_new_tokens, vocab_size, capacity)
        check_draws(temperature, seed)
        if on_tokens is not None and not callable(on_tokens):
            raise ValueError(f"on_tokens is {on_tokens!r}; expected a function")
        continuation = Continuation(checked_stop_tokens(stop_tokens, vocab_size), on_tokens)
        keys = self.cache.interner.keys(prompt)
        session = self.cache.session
        admission = session.begin(
            keys,
            len(prompt),
            reuse=reuse,
            boundaries=boundaries,
            previous_totals=previous_totals,
        )
        try:
            admission, source = self._locate(prompt, admission, reuse)
            result = self._prefill(prompt, admission, source)
            first = self._first_token(result, len(prompt), temperature, seed)
            time_to_first_token_s = time.perf_counter() - started
            workspace = result.workspace
            if not continuation.take(0, first) and max_new_tokens > 1:
                # Decoding draws the first token once more: it has to be fed to the model.
                _, workspace = self.runner.decode(
                    result,
                    len(prompt),
                    max_new_tokens,
                    temperature=temperature,
                    seed=seed,
                    after_call=lambda start, drawn: continuation.take(start, drawn[0]),
                )
        except BaseException:
            session.abandon(admission)
            raise
        self._buffer.put(workspace, prompt if admission.exact else prompt[: source.agreed])
        outcome = self._keep(prompt, admission, source, result, workspace)
        return Completion(
            continuation.tokens,
            report(
                admission,
                outcome,
                recomputed=result.computed_tokens,
                passes=result.passes,
                captured=len(result.snapshots),
                time_to_first_token_s=time_to_first_token_s,
            ),
        )

    def _locate(
        self, prompt: np.ndarray, admission: Admission, reuse: bool
    ) -> tuple[Admission, _Source]:
        """Where the states and rows to restore are: in memory, or deeper on disk."""
        agreed, shapes = self._buffer.agreement(prompt), self.runner.shapes
        grid = shapes.tile if shapes.grid == "tile" else shapes.block_size
        best = (len(prompt) - 1) // shapes.block_size * shapes.block_size // grid * grid
        if self.disk is not None and reuse and admission.restored < best:
            found = self.disk.restore(prompt, admission.restored, agreed, self._row_unit)
            if found.states is not None:
                admission = self.cache.session.resume_at(
                    admission,
                    matched=max(found.matched, admission.matched),
                    restored=found.restored,
                    exact=found.exact,
                    reason=found.reason or admission.reason,
                )
                agreed = min(agreed, found.restored)
                source = _Source(agreed, found.base, found.states, found.rows, promote=True)
                return admission, source
            admission = dataclasses.replace(
                admission,
                matched=max(found.matched, admission.matched),
                reason=found.reason or admission.reason,
            )
        if admission.snapshot is None:
            return admission, _Source(0, 0, None, None)
        agreed = min(agreed, admission.restored)
        base = agreed // self._row_unit * self._row_unit
        states, rows = self.cache.snapshot(admission.snapshot.id), None
        if agreed < admission.restored:
            rows = self.cache.rows(admission.keys, base, admission.restored)
        return admission, _Source(agreed, base, states, rows)

    @property
    def _row_unit(self) -> int:
        """Rows can be read from the tiers and loaded from multiples of this on."""
        return math.lcm(self.runner.copy_rows, self.runner.shapes.block_size)

    def _prefill(self, prompt: np.ndarray, admission: Admission, source: _Source) -> PrefillResult:
        """Restore and run the schedule."""
        workspace = self._buffer.take()
        snapshot: Snapshot | None = None
        if source.states is not None:
            snapshot = jax.device_put(source.states, self.runner.device)
            if source.rows is not None:
                workspace = self.runner.load_rows(workspace, source.rows, source.base)
        return self.runner.prefill(
            self.runner.device_tokens(prompt[None]),
            admission.schedule,
            workspace,
            restored=admission.restored,
            snapshot=snapshot,
        )

    def _keep(
        self,
        prompt: np.ndarray,
        admission: Admission,
        source: _Source,
        result: PrefillResult,
        workspace: Workspace,
    ) -> Outcome:
        """Enter what was computed into the index, its payloads into memory and onto the disk."""

        def read_rows(start: int, end: int) -> Rows:
            return self.runner.read_rows(workspace, start, end)

        held = dict(result.snapshots)
        if source.promote and source.states is not None:
            held[admission.restored] = source.states
        try:
            outcome = self.cache.session.finish(admission, tuple(held))
            self.cache.keep(outcome, held, read_rows)
        except BaseException:  # the index may name payloads that never came
            self.cache.clear()
            raise
        if self.disk is not None:
            self.disk.save(
                prompt, result.snapshots, admission.exact, self.runner.shapes.tile, read_rows
            )
        return outcome

    def _first_token(
        self, result: PrefillResult, position: int, temperature: float, seed: int
    ) -> np.ndarray:
        """Draw the first token, on the host when this returns; int32 [1]."""
        scalars = (np.float32(temperature), jax.random.key(seed), np.int32(position))
        return np.asarray(_draw(result.logits, *jax.device_put(scalars, self.runner.device)))


def _open_disk(runner: ModelRunner, directory: str | os.PathLike[str]) -> DiskTier | None:
    try:
        return DiskTier(runner, OrbaxSnapshotStore(directory))
    except OSError as error:
        _log.warning("snapshots are kept in memory only: %s", error)
        return None


def _check_room(runner: ModelRunner, limits: Budget) -> None:
    """The workspace on the device and the cache's budget on the host, before either is filled."""
    workspace_bytes = tree_bytes(runner.workspace_shapes)
    cache_bytes = limits.bounded_bytes
    on_host = runner.device.platform == "cpu"
    check_memory(
        MemoryEstimate(0, workspace_bytes, 0, cache_bytes if on_host else 0), runner.device
    )
    if not on_host:
        check_memory(MemoryEstimate(0, 0, 0, cache_bytes), None)
