"""Replay a trace against the prefix index, without a model: the same objects as the engine's.

Every request goes through `planner.session.CacheSession`, as in the engine, so what it matched,
restored and replayed, what was evicted and how many bytes moved are the engine's figures, not an
estimate. FLOPs follow from the schedule; times are predicted from two constants.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.checks import check_int
from planner.costs import CostModel, prefill_flops, schedule_flops
from planner.eviction import Budget, EvictionPolicy
from planner.prefix_index import PrefixIndex
from planner.report import RequestReport
from planner.session import Admission, CacheSession, Scheduling, report
from planner.trace import TraceRequest, check_trace


@dataclass(frozen=True, slots=True)
class Timing:
    """Two measured constants that turn FLOPs into seconds.

    Attributes:
        overhead_s: of a request, whatever it computes.
        seconds_per_flop: of prefill.
    """

    overhead_s: float
    seconds_per_flop: float

    def time_to_first_token_s(self, flops: int) -> float:
        """Predicted seconds of a prefill."""
        return self.overhead_s + flops * self.seconds_per_flop


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request of the replay.

    Attributes:
        report: the account that an engine would give, with a predicted time where there are
            constants for it.
        flops: of what ran, whole tiles.
        replayed_flops: of the positions between what was restored and what was matched.
        saved_flops: of the positions that were restored.
    """

    report: RequestReport
    flops: int
    replayed_flops: int
    saved_flops: int


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """All requests of a replay, in the order of the trace.

    Attributes:
        requests: one entry a request.
        peak_bytes: the most that blocks and snapshots took together.
        snapshot_bytes: bytes of one snapshot.
    """

    requests: tuple[SimulatedRequest, ...]
    peak_bytes: int
    snapshot_bytes: int

    def total(self, name: str) -> int:
        """Sum over all requests of a count of `RequestReport` or of `SimulatedRequest`."""
        own = name in SimulatedRequest.__slots__
        return sum(getattr(r if own else r.report, name) for r in self.requests)

    @property
    def restored_share(self) -> float:
        """Restored tokens as a share of all prompt tokens."""
        return self.total("restored") / max(self.total("total"), 1)

    @property
    def replayed_share(self) -> float:
        """Replayed tokens as a share of all matched tokens."""
        return self.total("replayed") / max(self.total("matched"), 1)


def simulate(
    requests: Sequence[TraceRequest],
    scheduling: Scheduling,
    costs: CostModel,
    *,
    budget: Budget | None = None,
    eviction: EvictionPolicy | None = None,
    concurrency: int = 1,
    timing: Timing | None = None,
) -> SimulationResult:
    """Replay a trace.

    Args:
        requests: in order of arrival, all of one block size, which becomes the index's.
        scheduling: how prompts are cut and captured; its tile is a multiple of the block size.
        costs: of the model: bytes of a block and of a snapshot, FLOPs.
        budget: limits in bytes; None for none.
        eviction: a policy object of its own; None for LRU.
        concurrency: requests in flight: the n-th is looked up once the one `concurrency` places
            before it has left its blocks and snapshots, while those between them still run.
        timing: constants for predicted times; None leaves them out.

    Returns:
        One account a request, and the peak of memory.

    Raises:
        ValueError: a trace out of order, a budget below one snapshot, a tile that does not fit the
            block size, a policy that plans positions off its grid.
    """
    check_trace(requests)
    check_int("concurrency", concurrency, 1)
    budget = budget or Budget()
    _check_budget(budget, costs.snapshot_bytes, scheduling)
    block_size = requests[0].block_size if requests else scheduling.tile
    index = PrefixIndex(
        block_size,
        block_bytes=costs.kv_bytes_per_token * block_size,
        snapshot_bytes=costs.snapshot_bytes,
        budget=budget,
        policy=eviction,
        restore_grid_tokens=scheduling.tile if scheduling.grid == "tile" else block_size,
    )
    session = CacheSession(index, scheduling)
    done: list[SimulatedRequest] = []
    peak_bytes = 0
    for admission in _in_flight(session, requests, concurrency):
        done.append(_finish(session, admission, costs, timing))
        peak_bytes = max(peak_bytes, index.used_bytes)
    return SimulationResult(tuple(done), peak_bytes, costs.snapshot_bytes)


def _in_flight(
    session: CacheSession, requests: Sequence[TraceRequest], concurrency: int
) -> Iterator[Admission]:
    """Admissions in order, each begun while the `concurrency - 1` before it still run."""
    running: deque[Admission] = deque()
    previous: dict[str, tuple[int, ...]] = {}
    for request in requests:
        if len(running) == concurrency:
            yield running.popleft()
        earlier = previous.get(request.session, ())
        running.append(
            session.begin(
                request.block_keys,
                request.total_tokens,
                boundaries=request.boundaries,
                previous_totals=earlier,
            )
        )
        previous[request.session] = (*earlier[-7:], request.total_tokens)
    yield from running


def _finish(
    session: CacheSession, admission: Admission, costs: CostModel, timing: Timing | None
) -> SimulatedRequest:
    schedule, total = admission.schedule, admission.context.total
    flops = schedule_flops(costs, schedule, session.scheduling.tile)
    return SimulatedRequest(
        report=report(
            admission,
            session.finish(admission),
            recomputed=total - admission.restored,
            passes=len(schedule.passes),
            captured=len(schedule.captures),
            time_to_first_token_s=None if timing is None else timing.time_to_first_token_s(flops),
        ),
        flops=flops,
        replayed_flops=prefill_flops(costs, admission.restored, admission.matched),
        saved_flops=prefill_flops(costs, 0, admission.restored),
    )


def _check_budget(budget: Budget, snapshot_bytes: int, scheduling: Scheduling) -> None:
    """A limit that no snapshot fits under is a mistake where snapshots are wanted."""
    if scheduling.placement is None and scheduling.mode == "off":
        return
    for name in ("total_bytes", "snapshot_bytes"):
        limit = getattr(budget, name)
        if limit is not None and limit < snapshot_bytes:
            raise ValueError(
                f"budget {name} is {limit}; expected at least one snapshot, {snapshot_bytes} bytes"
            )
