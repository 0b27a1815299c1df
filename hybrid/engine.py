"""The engine: one request at a time from prompt to tokens and report, through the prefix cache.

generate --> look up --> restore --> prefill passes --> first token --> decode --> keep
             index       lend or     runner             time is taken             index, payloads,
                         copy rows                                                saves on disk
"""

import dataclasses
import logging
import math
import time
from collections.abc import Sequence

import jax
import numpy as np

from hybrid.decode import sample
from hybrid.memory import MemoryEstimate, check_memory
from hybrid.prefix_cache import PrefixCache, Rows, WorkingBuffer
from hybrid.runner import ModelRunner, PrefillResult, Snapshot
from hybrid.state import tree_bytes
from planner.checks import check_int
from planner.eviction import Budget, EvictionPolicy
from planner.placement import PlacementPolicy
from planner.report import RequestReport
from planner.session import Admission, Scheduling, report

_log = logging.getLogger(__name__)
_draw = jax.jit(sample)


@dataclasses.dataclass(frozen=True)
class Completion:
    """What a request gave.

    Args:
        tokens: int32 [max_new_tokens], the continuation.
        report: what the request reused, computed and kept, and why not better.
    """

    tokens: np.ndarray
    report: RequestReport


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
        self._buffer = WorkingBuffer(runner)

    def generate(
        self,
        prompt_tokens: Sequence[int] | np.ndarray,
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        reuse: bool = True,
        boundaries: Sequence[int] = (),
    ) -> Completion:
        """Continue a prompt.

        Args:
            prompt_tokens: integers [total], ids within the vocabulary, at least one.
            max_new_tokens: tokens to draw, at least 1; with the prompt within the capacity.
            temperature: 0 takes the most likely token each time.
            seed: of the draws, 0..2**32 - 1.
            reuse: whether the request may restore; what it computes is kept either way.
            boundaries: positions where messages start, for placements that look at them.

        Returns:
            The continuation and the report.

        Raises:
            ValueError: an argument out of its bounds; nothing has run then.
        """
        started = time.perf_counter()
        prompt = self._check_prompt(prompt_tokens, max_new_tokens)
        _check_draws(temperature, seed)
        keys = self.cache.interner.keys(prompt)
        session = self.cache.session
        admission = session.begin(keys, len(prompt), reuse=reuse, boundaries=boundaries)
        try:
            result, agreed = self._prefill(prompt, admission)
            tokens = self._first_token(result, len(prompt), temperature, seed)
            time_to_first_token_s = time.perf_counter() - started
            workspace = result.workspace
            if max_new_tokens > 1:
                drawn, workspace = self.runner.decode(
                    result, len(prompt), max_new_tokens, temperature=temperature, seed=seed
                )
                tokens = drawn[0]
        except BaseException:
            session.abandon(admission)
            raise
        self._buffer.put(workspace, prompt if admission.exact else prompt[:agreed])
        outcome = session.finish(admission, tuple(result.snapshots))
        self.cache.keep(
            outcome,
            result.snapshots,
            lambda start, end: self.runner.read_rows(workspace, start, end),
        )
        return Completion(
            tokens,
            report(
                admission,
                outcome,
                recomputed=result.computed_tokens,
                passes=result.passes,
                captured=len(result.snapshots),
                time_to_first_token_s=time_to_first_token_s,
            ),
        )

    def _prefill(self, prompt: np.ndarray, admission: Admission) -> tuple[PrefillResult, int]:
        """Restore, run the schedule; also how many restored rows are known to be exact."""
        restored = admission.restored
        agreed = min(self._buffer.agreement(prompt), restored)
        snapshot: Snapshot | None = None
        workspace = self._buffer.take()
        if admission.snapshot is not None:
            states = self.cache.snapshot(admission.snapshot.id)
            snapshot = jax.device_put(states, self.runner.device)
            base = agreed // self.runner.copy_rows * self.runner.copy_rows
            if agreed < restored:
                rows: Rows = self.cache.rows(admission.keys, base, restored)
                workspace = self.runner.load_rows(workspace, rows, base)
        tokens = self.runner.device_tokens(prompt[None])
        result = self.runner.prefill(
            tokens, admission.schedule, workspace, restored=restored, snapshot=snapshot
        )
        return result, agreed

    def _first_token(
        self, result: PrefillResult, position: int, temperature: float, seed: int
    ) -> np.ndarray:
        """Draw the first token, on the host when this returns; int32 [1]."""
        scalars = (np.float32(temperature), jax.random.key(seed), np.int32(position))
        return np.asarray(_draw(result.logits, *jax.device_put(scalars, self.runner.device)))

    def _check_prompt(
        self, prompt_tokens: Sequence[int] | np.ndarray, max_new_tokens: int
    ) -> np.ndarray:
        prompt = np.asarray(prompt_tokens)
        vocab_size, capacity = self.runner.config.vocab_size, self.runner.shapes.capacity
        if prompt.ndim != 1 or prompt.size == 0:
            raise ValueError(
                f"prompt_tokens has shape {prompt.shape}; expected one axis and at least one token"
            )
        if prompt.dtype.kind not in "iu":
            raise ValueError(f"prompt_tokens has dtype {prompt.dtype}; expected integers")
        if prompt.min() < 0 or prompt.max() >= vocab_size:
            raise ValueError(
                f"prompt_tokens holds ids {prompt.min()}..{prompt.max()}; "
                f"expected 0..{vocab_size - 1}"
            )
        new = check_int("max_new_tokens", max_new_tokens, 1)
        if len(prompt) + new > capacity:
            raise ValueError(
                f"{len(prompt)} prompt tokens and {new} new ones make {len(prompt) + new}; "
                f"the runner's capacity is {capacity}"
            )
        return prompt.astype(np.int32)


def _check_draws(temperature: float, seed: int) -> None:
    if isinstance(temperature, bool) or not isinstance(temperature, int | float | np.floating):
        raise ValueError(f"temperature is {temperature!r}; expected a number")
    if not math.isfinite(temperature) or temperature < 0:
        raise ValueError(f"temperature is {temperature}; expected a finite number of at least 0")
    check_int("seed", seed, 0, 2**32 - 1)


def _check_room(runner: ModelRunner, limits: Budget) -> None:
    """The workspace on the device and the cache's budget on the host, before either is filled."""
    workspace_bytes = tree_bytes(runner.workspace_shapes)
    cache_bytes = limits.total_bytes or (limits.kv_bytes or 0) + (limits.snapshot_bytes or 0)
    on_host = runner.device.platform == "cpu"
    check_memory(
        MemoryEstimate(0, workspace_bytes, 0, cache_bytes if on_host else 0), runner.device
    )
    if not on_host:
        check_memory(MemoryEstimate(0, 0, 0, cache_bytes), jax.devices("cpu")[0])
