"""WEKA traces of coding agents: one session an object, block ids local to the session.

A file holds one session (JSON), or one a line. Ids come as a list (`hash_ids`) or as runs
(`hash_ranges`: [[first, count], ...]). Sub-agents nest as requests with requests of their own,
whose times count from the sub-agent's start.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from experiments.errors import UserError
from experiments.traces.fields import MAX_ID, Fields, as_object, check_chains
from experiments.traces.recorded import Recorded
from planner.trace import scoped_keys


def read_weka(sessions: Iterable[Fields]) -> list[Recorded]:
    """Read WEKA sessions; all of them start at time 0 and share nothing.

    Args:
        sessions: one object a session.

    Returns:
        Requests in order of arrival.

    Raises:
        UserError: a field that is missing or wrong, or ids out of order.
    """
    found: list[Recorded] = []
    for scope, session in enumerate(sessions):
        scoped = session.values.get("hash_id_scope")
        if scoped != "local":
            raise UserError(f"{session.where}: hash_id_scope: expected 'local', got {scoped!r}")
        name = session.text("id")
        block_size = session.integer("block_size", 1)
        if found and block_size != found[0].block_size:
            raise session.wrong("block_size", f"{found[0].block_size} as in the sessions before")
        flat = sorted(_requests(session, name, 0.0), key=lambda item: item[0])
        chains = []
        for arrival_s, owner, request in flat:
            total = request.integer("in", 1)
            ids = _ids(request)
            if len(ids) != total // block_size:
                raise UserError(
                    f"{request.where}: expected {total // block_size} block ids for 'in' {total} "
                    f"in blocks of {block_size}, got {len(ids)}"
                )
            chains.append((request.where, ids))
            output = request.integer("out", 0)
            keys = scoped_keys(ids, scope)
            found.append(Recorded(arrival_s, owner, total, output, block_size, keys))
        check_chains(chains)
    return sorted(found, key=lambda request: request.arrival_s)


def _requests(holder: Fields, owner: str, start_s: float) -> Iterator[tuple[float, str, Fields]]:
    """(Arrival, owning conversation, request), sub-agents' requests included."""
    for place, value in enumerate(holder.items("requests", "a list of requests")):
        request = as_object(value, f"{holder.where}: requests[{place}]")
        arrival_s = start_s + request.seconds("t")
        if request.values.get("type") == "subagent":
            yield from _requests(request, f"{owner}/{request.text('agent_id')}", arrival_s)
        else:
            yield arrival_s, owner, request


def _ids(request: Fields) -> Int64[ndarray, " blocks"]:
    if "hash_ranges" not in request.values:
        return request.ids("hash_ids")
    expected = "[first, count] with first >= 0, count >= 1 and first above the run before"
    runs = []
    end = 0
    for place, run in enumerate(request.items("hash_ranges", f"a list of {expected}")):
        whole = isinstance(run, list) and len(run) == 2 and all(type(x) is int for x in run)
        if not whole or run[0] < end or run[1] < 1 or run[0] + run[1] - 1 > MAX_ID:
            raise UserError(
                f"{request.where}: hash_ranges[{place}]: ids out of order or wrong, "
                f"expected {expected}, got {str(run)[:40]}"
            )
        end = run[0] + run[1]
        runs.append(np.arange(run[0], end, dtype=np.int64))
    return np.concatenate(runs) if runs else np.zeros(0, np.int64)
