"""A recorded trace as a workload."""

from collections.abc import Sequence

from experiments.traces import Recorded, prompt_tokens
from experiments.workloads.workload import Request, Workload


def trace_workload(name: str, recorded: Sequence[Recorded], scale: float = 1.0) -> Workload:
    """Make a workload of a trace's prompts; a trace has its own answers in them.

    Args:
        name: for tables and config.json.
        recorded: requests in order of arrival.
        scale: shrinks the prompts; what they share stays shared.

    Returns:
        One request each, of which only the first token is asked.
    """
    return Workload(
        name,
        tuple(
            Request(request.session, prompt_tokens(request, index, scale))
            for index, request in enumerate(recorded)
        ),
    )
