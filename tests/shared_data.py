"""The real traces, which are no part of the project: where they are looked for, and how to skip."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("WAYPOINT_SHARED", Path(__file__).parents[2] / "shared"))


def shared_trace(name: str) -> Path:
    """The file of a trace, such as mooncake/conversation_trace.jsonl.gz; skips where it is not."""
    path = SHARED / "traces" / name
    if not path.exists():
        pytest.skip(f"{path} is not here; set WAYPOINT_SHARED to the folder that has traces/")
    return path
