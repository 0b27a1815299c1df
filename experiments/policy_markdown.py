"""What the Markdown files of replay experiments have in common: how they were made, and of what."""

from pathlib import Path
from typing import Any

from experiments.errors import as_user_error
from experiments.files import replace_file
from experiments.tables import markdown_table

Row = dict[str, Any]


def save_tables(folder: Path, table: Path | None, markdown: str) -> None:
    """Write a run's tables into its folder, and where --table says.

    Args:
        folder: the run folder.
        table: another file, in a folder that exists; None for none.
        markdown: the tables.

    Raises:
        UserError: the other file cannot be written.
    """
    replace_file(folder / "tables.md", markdown)
    if table is not None:
        with as_user_error(f"--table {table}"):
            replace_file(table, markdown)


def quoted(spec: str) -> str:
    """A policy as one types it on a command line.

    >>> quoted("last"), quoted("last|match")
    ('last', "'last|match'")
    """
    return f"'{spec}'" if "|" in spec else spec


def written_by(line: str) -> list[str]:
    """Lines of a Markdown file that say which command wrote it."""
    return ["Written by", "", f"    {line} --table FILE", ""]


def made_with(config: Row) -> str:
    """Commits, versions and what the model weighs, in sentences that follow the command.

    Args:
        config: of the run folder.

    Returns:
        The text.
    """
    asked, environment = config["config"], config["environment"]
    commits = ", ".join(
        (commit["commit"] or "unknown")[:10] + (" with changes" if commit["dirty"] else "")
        for commit in config["commits"]
    )
    return (
        f"at commit {commits}, Python {environment['python']}, numpy {environment['numpy']}. "
        f"Model {asked['model']} ({asked['dtype']}): {asked['snapshot_bytes']:,} bytes a snapshot, "
        f"{asked['kv_bytes_per_token']:,} bytes of keys and values a token; these have "
        + ("unlimited room." if asked["kv_gb"] is None else f"{asked['kv_gb']:g} GB.")
    )


def traces_table(config: Row) -> list[str]:
    """Lines of a Markdown table of the traces of a run.

    Args:
        config: of the run folder.

    Returns:
        The lines.
    """
    return markdown_table(
        ("trace", "requests", "prompt tokens", "block", "digest"),
        [
            (
                trace["name"],
                f"{trace['requests']:,}",
                f"{trace['prompt_tokens']:,}",
                trace["block_size"],
                trace["digest"],
            )
            for trace in config["config"]["traces"]
        ],
    )
