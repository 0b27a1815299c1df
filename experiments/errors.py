"""What a user did wrong, told in one line."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class UserError(Exception):
    """A mistake on the command line or in an input file; its message is one clear line."""


@contextmanager
def as_user_error(what: str) -> Iterator[None]:
    """Turn the ValueError of a check on something that the user chose into a `UserError`.

    Args:
        what: what was being checked, e.g. "--preset tiny"; put in front of the check's message.

    Raises:
        UserError: where the body raised ValueError, TypeError, KeyError, OSError or MemoryError.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError, OSError, MemoryError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{what}: {text}") from error


def option_name(field: str) -> str:
    """The command-line option of a field of an options dataclass.

    >>> option_name("cache_mb")
    '--cache-mb'
    """
    return f"--{field.replace('_', '-')}"


def check_at_least(options: Any, **minima: int) -> None:
    """Refuse options that are smaller than they may be.

    Args:
        options: an options dataclass.
        minima: least value by field; of a field with several values each counts, and one is needed.

    Raises:
        UserError: names the option and the value.
    """
    for field, minimum in minima.items():
        given = getattr(options, field)
        values = given if isinstance(given, tuple) else (given,)
        if not values:
            raise UserError(f"{option_name(field)}: expected at least one value")
        if min(values) < minimum:
            raise UserError(f"{option_name(field)} {min(values)}: expected at least {minimum}")


def check_distinct(options: Any, *fields: str) -> None:
    """Refuse options of several values that have none, or one twice.

    Args:
        options: an options dataclass.
        fields: names of its fields, tuples of strings.

    Raises:
        UserError: names the option and its values.
    """
    for field in fields:
        values = getattr(options, field)
        if not values or len(set(values)) < len(values):
            raise UserError(
                f"{option_name(field)} {' '.join(values)}: expected at least one value, each once"
            )


def run_main(
    main: Callable[[], None],
    interrupted: str = "finished cells are kept; run again to go on",
) -> None:
    """Run an experiment's main function with the exit codes of a well-behaved command.

    A user's mistake prints one line and exits with 2, an interrupt prints one and exits with 130;
    anything else is a bug and keeps its traceback.

    Args:
        main: parses the command line and runs.
        interrupted: what an interrupt leaves behind, for its line.

    Raises:
        SystemExit: on a user's mistake or an interrupt.
    """
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except KeyboardInterrupt as interrupt:
        print(f"\ninterrupted: {interrupted}", file=sys.stderr)
        raise SystemExit(130) from interrupt
