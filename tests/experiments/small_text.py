"""A folder of text to train on: made-up functions, some of which fall to the held-out side."""

import random

FILES = 48
WORDS = ("read", "write", "path", "line", "count", "total", "value", "name", "open", "close")


def write_folder(folder):
    """Fill a folder with small files.

    Returns:
        Name to content.
    """
    rng = random.Random(0)
    found = {}
    for number in range(FILES):
        lines = []
        for _ in range(12):
            a, b, c = rng.sample(WORDS, 3)
            lines.append(f"def {a}_{b}({c}):\n    return {c}.{a}({rng.randrange(100)})\n\n")
        found[f"part{number:02}.py"] = "".join(lines).encode()
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in found.items():
        (folder / name).write_bytes(content)
    return found
