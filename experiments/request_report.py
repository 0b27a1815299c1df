"""The account of one request in plain lines, for a terminal."""

import textwrap

from experiments.tables import megabytes, seconds
from planner.report import Reason, RequestReport

WIDTH = 80
WORDS = {
    Reason.HIT: "restored as near to the match as the grid allows",
    Reason.PARTIAL: "restored, though the grid has a position nearer to the match",
    Reason.COLD: "nothing was kept of a prompt that starts like this one",
    Reason.TOO_SHORT: "the prompt, or what matches, is shorter than one unit of the grid",
    Reason.NO_SNAPSHOT_BELOW_MATCH: "blocks match, but no snapshot was taken at or below the match",
    Reason.EVICTED: "a block or a snapshot that was here had to make room",
    Reason.INEXACT_ONLY: "only inexact snapshots reach further, and this request is exact",
    Reason.CACHE_OFF: "the request was not to reuse anything",
    Reason.FINGERPRINT_MISMATCH: "what is on disk comes from another model, setting or machine",
    Reason.CORRUPT: "what is on disk did not verify",
    Reason.INCOMPLETE: "what is on disk lacks a part: its save did not finish",
}
"""What each reason means, for a reader who knows no code."""


def report_lines(
    report: RequestReport, *, new_tokens: int, decode_s: float, from_disk: bool, ended: bool
) -> list[str]:
    """A request's report.

    Args:
        report: of the request.
        new_tokens: tokens drawn.
        decode_s: seconds from the first token to the last.
        from_disk: whether the snapshot was read from disk.
        ended: whether a token that ends the text was drawn.

    Returns:
        Lines of at most 80 columns: name, value, what it means.
    """
    restored = "no snapshot that could be used"
    if report.restored:
        restored = f"position of the snapshot used, from {'disk' if from_disk else 'memory'}"
    rate = None if new_tokens < 2 else (new_tokens - 1) / decode_s
    rows = [
        ("total", f"{report.total:,}", "prompt tokens"),
        ("matched", f"{report.matched:,}", "in the cache, in whole blocks"),
        ("restored", f"{report.restored:,}", restored),
        ("replayed", f"{report.replayed:,}", "matched - restored: for want of a nearer snapshot"),
        ("recomputed", f"{report.recomputed:,}", "total - restored: what prefill ran"),
        ("suffix", f"{report.suffix:,}", "total - matched: new to the cache"),
        ("reason", "", f"{report.reason.value}: {WORDS[report.reason]}"),
        ("snapshots", f"{report.snapshots:,}", "kept for later requests"),
        ("written", f"{megabytes(report.bytes_written)} MB", "snapshots, keys and values kept"),
        ("first token", seconds(report.time_to_first_token_s), "after the request"),
        (
            "new tokens",
            f"{new_tokens:,}",
            "up to the end of the text" if ended else "as many as asked",
        ),
        ("rate", None if rate is None else f"{rate:,.1f} /s", "tokens after the first"),
    ]
    if report.evicted_snapshots or report.evicted_blocks:
        gone = f"{report.evicted_snapshots:,} snapshots and {report.evicted_blocks:,} blocks"
        rows.append(("evicted", f"{megabytes(report.evicted_bytes)} MB", f"{gone} made room"))
    if report.skipped_snapshots or report.skipped_blocks:
        lost = f"{report.skipped_snapshots:,} snapshots and {report.skipped_blocks:,} blocks"
        rows.append(("skipped", None, f"{lost} found no room"))
    lines = []
    for name, value, words in rows:
        shown = "" if value == "" else f"{'-' if value is None else value:>10}  "
        head = f"  {name:<11}  {shown}"
        lines += textwrap.wrap(head + words, WIDTH, subsequent_indent=" " * len(head))
    return lines
