r"""Which intervals to keep in M slots for the greatest gain: a min-cost flow, exact for every M.

A job, done at a time `end`, may have kept one of several things since different earlier times; each
choice is an interval [start, end) with a gain, and at most M intervals may overlap. With M units of
flow through a line of times, a choice is an arc that leaves the line at its start and joins it
again at its end, through one arc of capacity 1 a job::

    times   0 ---- 1 ---- 2 ---- 3 ---- 4      line arcs: no gain, any number of units (idle slots)
             \             \           ^
              \ gain 7      \ gain 4  /        the job, done at 4, takes one of its choices:
               '-------------'---> job         it has one arc of capacity 1 to the line

The constraint matrix is a network's, so the best flow is integral: it is the best choice, and the
relaxation that its prices define loses nothing. Successive best paths give it for M = 1, 2, ...
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

_UNBOUNDED = 1 << 60


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to serve a job: keep something over [start, end).

    Attributes:
        job: number of the job; all its choices end at the same time.
        item: what is kept, in the caller's numbering.
        start: time from which the slot is taken.
        end: time at which the job takes its gain.
        gain: positive whole number.
    """

    job: int
    item: int
    start: int
    end: int
    gain: int


class IntervalFlow:
    """The best choices at one number of slots after another, rising.

    Args:
        choices: the choices of all jobs.

    Raises:
        ValueError: a choice with no time or no gain, or a job with two ends.
    """

    def __init__(self, choices: Sequence[Choice]) -> None:
        """Lay out the network: the times that matter as a line, and the choices over it."""
        ends: dict[int, int] = {}
        for choice in choices:
            if choice.start >= choice.end or choice.gain <= 0:
                raise ValueError(f"a choice needs start < end and a gain above 0, got {choice}")
            if ends.setdefault(choice.job, choice.end) != choice.end:
                raise ValueError(
                    f"the choices of a job must end together, at {ends[choice.job]}, got {choice}"
                )
        self.choices = tuple(choices)
        self.slots = 0
        self.gain = 0
        times = sorted({c.start for c in choices} | set(ends.values()))
        place = {time: node for node, time in enumerate(times)}
        self._sink = len(times) - 1
        self._arcs: list[list[int]] = [[] for _ in times]
        self._head: list[int] = []
        self._room: list[int] = []
        self._cost: list[int] = []
        for node in range(self._sink):
            self._connect(node, node + 1, _UNBOUNDED, 0)
        per_job: dict[int, int] = dict.fromkeys(ends, 0)
        for choice in choices:
            per_job[choice.job] += 1
        joints: dict[int, int] = {}
        self._arc_of: list[int] = []
        for choice in choices:
            to = place[choice.end]
            if per_job[choice.job] > 1:
                if choice.job not in joints:
                    joints[choice.job] = len(self._arcs)
                    self._arcs.append([])
                    self._connect(joints[choice.job], to, 1, 0)
                to = joints[choice.job]
            self._arc_of.append(self._connect(place[choice.start], to, 1, -choice.gain))
        self._potential = self._first_potential()

    def grow(self, slots: int) -> int:
        """Use more slots.

        Args:
            slots: their number, at least as many as before.

        Returns:
            The greatest total gain with at most so many overlapping intervals.

        Raises:
            ValueError: fewer slots than before.
        """
        if slots < self.slots:
            raise ValueError(f"slots may only rise, had {self.slots}, got {slots}")
        while self.slots < slots and self.choices:
            added = self._augment(slots - self.slots)
            if added:
                self.slots += added
            elif not self._reprice():
                break
        self.slots = slots
        return self.gain

    def chosen(self) -> list[Choice]:
        """The choices that the present flow makes, at most one a job."""
        taken = zip(self.choices, self._arc_of, strict=True)
        return [choice for choice, arc in taken if self._room[arc] == 0]

    def _connect(self, tail: int, head: int, room: int, cost: int) -> int:
        arc = len(self._head)
        self._head += (head, tail)
        self._room += (room, 0)
        self._cost += (cost, -cost)
        self._arcs[tail].append(arc)
        self._arcs[head].append(arc + 1)
        return arc

    def _first_potential(self) -> list[int]:
        """Least costs from the first time: joints lie between a start and an end on the line."""
        best = [0] * len(self._arcs)
        for node in range(self._sink + 1):
            for arc in self._arcs[node]:
                if self._room[arc]:
                    head = self._head[arc]
                    best[head] = min(best[head], best[node] + self._cost[arc])
                    if head > self._sink:
                        after = self._head[self._arcs[head][0]]
                        best[after] = min(best[after], best[head])
        return best

    def _augment(self, limit: int) -> int:
        """Send units along arcs of no reduced cost, one by one, until none gets through."""
        price = self._potential[0] - self._potential[self._sink]
        if price <= 0:
            return 0
        arcs, head, room, cost, potential = (
            self._arcs,
            self._head,
            self._room,
            self._cost,
            self._potential,
        )
        next_arc = [0] * len(arcs)
        visited = bytearray(len(arcs))
        added = 0
        while added < limit:
            path: list[int] = []
            node = 0
            visited[0] = 1
            while node != self._sink:
                leaving = arcs[node]
                place = next_arc[node]
                while place < len(leaving):
                    arc = leaving[place]
                    to = head[arc]
                    if (
                        room[arc]
                        and not visited[to]
                        and cost[arc] + potential[node] == potential[to]
                    ):
                        break
                    place += 1
                next_arc[node] = place
                if place < len(leaving):
                    path.append(arc)
                    visited[to] = 1
                    node = to
                elif path:
                    node = head[path.pop() ^ 1]
                    next_arc[node] += 1
                else:
                    return added
            for arc in path:
                room[arc] -= 1
                room[arc ^ 1] += 1
                visited[head[arc]] = 0
            self.gain += price
            added += 1
        return added

    def _reprice(self) -> bool:
        """Add the distances from the first time to the potentials; False where no gain is left."""
        arcs, head, room, cost, potential = (
            self._arcs,
            self._head,
            self._room,
            self._cost,
            self._potential,
        )
        if potential[0] - potential[self._sink] <= 0:
            return False
        far = _UNBOUNDED
        distance = [far] * len(arcs)
        done = bytearray(len(arcs))
        distance[0] = 0
        heap = [(0, 0)]
        while heap:
            reached, first = heappop(heap)
            if done[first]:
                continue
            if first == self._sink:
                break
            done[first] = 1
            level = [first]
            while level:
                node = level.pop()
                base = reached + potential[node]
                for arc in arcs[node]:
                    to = head[arc]
                    if room[arc] and not done[to]:
                        there = base + cost[arc] - potential[to]
                        if there < distance[to]:
                            distance[to] = there
                            if there == reached and to != self._sink:
                                done[to] = 1
                                level.append(to)
                            else:
                                heappush(heap, (there, to))
        nearest = distance[self._sink]
        self._potential = [p + min(d, nearest) for p, d in zip(potential, distance, strict=True)]
        return True
