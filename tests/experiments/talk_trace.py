"""A small trace in the form of Mooncake's: twelve conversations of five turns, in turn."""

import json
from pathlib import Path

BLOCK = 512


def write_talk(path: Path) -> Path:
    """Write the trace; three conversations in four share a beginning, every turn adds blocks."""
    prompts: dict[int, list[int]] = {}
    next_id, lines = 1000, []
    for turn in range(5):
        for talk in range(12):
            ids = prompts.setdefault(talk, [0, 1, 10 + talk % 3])
            ids.extend(range(next_id, next_id + 2 + talk % 2))
            next_id += 10
            lines.append(
                {
                    "timestamp": 1000 * (12 * turn + talk),
                    "input_length": len(ids) * BLOCK,
                    "output_length": 10,
                    "hash_ids": list(ids),
                }
            )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
