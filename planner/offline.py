"""How little a whole trace could replay with M snapshots, were its future known.

The bound. Take the KV cache as unlimited, so that request i can use a snapshot at any node of the
prefix tree at or above its match, and let it earn the depth of the one it restores from. Relax one
rule: a request may capture, for free, anywhere on its own path, not only in what it computes. Then
a snapshot of node u that serves request i need only be held since the last earlier request whose
path runs through u, for that request could capture it anew: "i restores from u" is one interval
with one gain. Of two nodes of which the deeper was passed no earlier, the shallower is never the
better choice; the others are the request's choices, of which it takes at most one; between any two
requests at most M intervals overlap. `planner.interval_flow` solves this exactly. Every true run,
under any placement, eviction and KV budget, is feasible in the relaxed problem and earns there what
it restores: the snapshot that i restores from was captured on some earlier path through u and held
since, thus also since the last such path. So no run restores more than the relaxation's optimum:

    recomputed >= total - optimum        for any KV budget,
    replayed   >= matched - optimum      with unlimited KV (the match itself shrinks otherwise).

The other side. `follow` runs the plan under the true rules: captures only in (restored, total],
where a wanted snapshot below the restored one is held from before if slots are free for it. Where
both sides agree, the bound is exact.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.checks import check_int
from planner.interval_flow import Choice, IntervalFlow
from planner.prefix_paths import ROOT, PrefixPaths
from planner.trace import TraceRequest

_REPAIRS = 4


@dataclass(frozen=True, slots=True)
class Bound:
    """The least replay of a trace at one snapshot budget, and what a clairvoyant run achieves.

    Attributes:
        slots: snapshots that fit the budget.
        total_tokens: sum of prompt lengths.
        matched_tokens: sum of matches with unlimited KV.
        replayed_tokens: no run replays fewer.
        achieved_tokens: replayed by a run that knows the future.
        kind: "exact" where the two agree, else "lower_bound".
    """

    slots: int
    total_tokens: int
    matched_tokens: int
    replayed_tokens: int
    achieved_tokens: int

    @property
    def kind(self) -> Literal["exact", "lower_bound"]:
        """Whether `replayed_tokens` is the optimum or only below it."""
        return "exact" if self.achieved_tokens == self.replayed_tokens else "lower_bound"

    @property
    def recomputed_tokens(self) -> int:
        """No run computes fewer prompt tokens, whatever KV it keeps."""
        return self.total_tokens - self.matched_tokens + self.replayed_tokens


def offline_bound(
    requests: Sequence[TraceRequest],
    budget_bytes: int,
    snapshot_bytes: int,
    grid: int | None = None,
) -> Bound:
    """The bound for one budget of snapshots.

    Args:
        requests: the trace.
        budget_bytes: bytes for snapshots.
        snapshot_bytes: bytes of one.
        grid: tokens; snapshots lie on its multiples. None is the block size.

    Returns:
        The bound.

    Raises:
        ValueError: a budget below one snapshot, or a trace that `PrefixPaths` refuses.
    """
    check_int("snapshot_bytes", snapshot_bytes, 1)
    check_int("budget_bytes", budget_bytes)
    if budget_bytes < snapshot_bytes:
        raise ValueError(
            f"budget_bytes must hold a snapshot of {snapshot_bytes} bytes, got {budget_bytes}"
        )
    return offline_bounds(PrefixPaths(requests, grid), [budget_bytes // snapshot_bytes])[0]


def offline_bounds(paths: PrefixPaths, slots: Iterable[int]) -> list[Bound]:
    """The bounds for several budgets, in one run of the flow.

    Args:
        paths: the trace.
        slots: numbers of snapshots, each at least 1.

    Returns:
        One bound for each, in the order given.

    Raises:
        ValueError: a number of slots under 1.
    """
    wanted = [check_int("slots", count, 1) for count in slots]
    flow = IntervalFlow(restore_choices(paths))
    matched = int(paths.matched.sum())
    bounds = {}
    for count in sorted(set(wanted)):
        restored = flow.grow(count)
        bounds[count] = Bound(
            slots=count,
            total_tokens=int(paths.total.sum()),
            matched_tokens=matched,
            replayed_tokens=matched - restored,
            achieved_tokens=matched - follow(paths, flow.chosen(), count),
        )
    return [bounds[count] for count in wanted]


def restore_choices(paths: PrefixPaths) -> list[Choice]:
    """What each request may restore from, and since when it must have been held.

    Args:
        paths: the trace.

    Returns:
        Choices with the request as the job, the node as the item and tokens as the gain.
    """
    last_pass = [-1] * len(paths.parent)
    choices = []
    for request, (match, end) in enumerate(zip(paths.match_node, paths.end_node, strict=True)):
        latest = -1
        for node in paths.upward(match):
            if paths.depth[node] % paths.grid == 0 and last_pass[node] > latest:
                latest = last_pass[node]
                choices.append(Choice(request, node, latest, request, paths.depth[node]))
        for node in paths.upward(end):
            last_pass[node] = request
    return choices


def follow(paths: PrefixPaths, plan: Iterable[Choice], slots: int) -> int:
    """Run a plan under the true rules, holding from earlier what it could not capture in time.

    Args:
        paths: the trace.
        plan: at most `slots` overlapping choices.
        slots: snapshots that may be held.

    Returns:
        Tokens restored over the trace; the best of a few rounds of repair.
    """
    passes: dict[int, list[int]] = {}
    holds: list[list[Choice]] = [[] for _ in range(len(paths))]
    used = np.zeros(len(paths), dtype=np.int64)
    for choice in plan:
        holds[choice.start].append(choice)
        used[choice.start : choice.end] += 1
        passes[choice.item] = []
    for request, end in enumerate(paths.end_node):
        for node in paths.upward(end):
            if node in passes:
                passes[node].append(request)
    best = 0
    for _ in range(_REPAIRS):
        sources, missed = _run(paths, holds, slots)
        best = max(best, sum(sources))
        repaired = False
        for hold in sorted(missed, key=lambda choice: -choice.gain):
            start = next(
                (
                    request
                    for request in reversed(passes[hold.item])
                    if request < hold.start and sources[request] < paths.depth[hold.item]
                ),
                hold.start,
            )
            if start < hold.start and used[start : hold.start].max() < slots:
                used[start : hold.start] += 1
                holds[start].append(Choice(hold.job, hold.item, start, hold.start, hold.gain))
                repaired = True
        if not repaired:
            break
    return best


def _run(
    paths: PrefixPaths, holds: list[list[Choice]], slots: int
) -> tuple[list[int], list[Choice]]:
    """Where each request restores, and the holds that could not start: not computed, not held."""
    held_until: dict[int, int] = {}
    sources = []
    missed = []
    for request, match in enumerate(paths.match_node):
        source = paths.depth[next((n for n in paths.upward(match) if n in held_until), ROOT)]
        sources.append(source)
        for hold in holds[request]:
            if hold.item in held_until or paths.depth[hold.item] > source:
                held_until[hold.item] = max(held_until.get(hold.item, 0), hold.end)
            else:
                missed.append(hold)
        spare = [(end, node) for node, end in held_until.items() if end <= request]
        for _, node in sorted(spare)[: max(len(held_until) - slots, 0)]:
            del held_until[node]
    return sources, missed
