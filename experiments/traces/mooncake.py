"""Mooncake traces: one request a line, ids of 512-token blocks, numbered over the whole file."""

from collections.abc import Iterable

from experiments.errors import UserError
from experiments.traces.fields import Fields, check_chains
from experiments.traces.recorded import Recorded

BLOCK_SIZE = 512


def read_mooncake(lines: Iterable[Fields]) -> list[Recorded]:
    """Read a Mooncake trace.

    Args:
        lines: {"timestamp": ms, "input_length", "output_length", "hash_ids"} each; the last id of a
          prompt may stand for a partial block.

    Returns:
        Requests in the order of the file; each is its own session, as the format names none.

    Raises:
        UserError: a field that is missing or wrong, times that fall, or ids out of order.
    """
    found: list[Recorded] = []
    chains = []
    first_s = 0.0
    for number, line in enumerate(lines):
        arrival_s = line.seconds("timestamp") / 1e3
        first_s = first_s if found else arrival_s
        total = line.integer("input_length", 1)
        output = line.integer("output_length", 0)
        ids = line.ids("hash_ids")
        if len(ids) != -(-total // BLOCK_SIZE):
            raise UserError(
                f"{line.where}: hash_ids: expected {-(-total // BLOCK_SIZE)} ids for input_length "
                f"{total} in blocks of {BLOCK_SIZE}, got {len(ids)}"
            )
        if found and arrival_s - first_s < found[-1].arrival_s:
            raise line.wrong("timestamp", "at least the one of the line before")
        chains.append((line.where, ids))
        found.append(Recorded(arrival_s - first_s, str(number), total, output, BLOCK_SIZE, ids))
    check_chains(chains)
    return found
