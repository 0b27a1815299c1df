"""Writing files that are there as a whole or not at all."""

import os
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write a file so that a reader or a crash sees the old content or the new, never a part.

    Args:
        path: the file; its folder exists.
        text: its whole content.
    """
    part = path.with_name(path.name + ".part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
