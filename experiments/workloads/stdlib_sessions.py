r"""The workload that ships: coding-assistant sessions over the standard library's own sources.

Every session starts from the same system prompt and then takes turns: a question, a file that a
tool read, the model's answer. Sessions are asked in turn, as a server sees them. The last request
continues the first session from its first answer, with another question: a branch in the middle of
a conversation.

    system ------ Q1 file1 A1 -- Q2 file2 A2        session 0
           \                 \- Q2' file3 A2'       the branch
            \--- Q1 file4 A1 -- Q2 file5 A2        session 1
"""

import random
import sysconfig
from pathlib import Path

import numpy as np
from jaxtyping import Int32
from numpy import ndarray

from experiments.errors import UserError
from experiments.workloads.workload import Request, Workload

# Modules with a plain source file in every Python from 3.11 on.
MODULE_NAMES = """
abc bisect calendar cmd codeop colorsys configparser contextlib copy csv dataclasses difflib dis
enum fileinput fnmatch fractions functools getopt glob graphlib gzip heapq hmac inspect keyword
linecache mailbox mimetypes netrc numbers operator pprint queue quopri random sched secrets
selectors shelve shlex shutil socketserver statistics string stringprep symtable tempfile textwrap
timeit token trace traceback types typing uuid warnings weakref
"""

SYSTEM = """\
You are a careful programming assistant. You work in a checkout of a Python project and help its
maintainers to read, explain and change code.

Tools
- read(path, first, last): lines of a file, with their numbers.
- search(pattern): places where a regular expression matches.
- run(command): a shell command in a sandbox; its output and its exit code.

How you answer
- Say what the code does before you say what you would change.
- Name functions, classes and files exactly as they are written.
- Prefer the smallest change that solves the problem, and say how to test it.
- When you are not sure, read more of the file first.
- Never invent a function that you have not seen.

"""

QUESTIONS = (
    "What does this part of {name} guarantee to its callers?",
    "Which inputs would make the first function in {name} fail, and how?",
    "Explain {name} to someone who has only used it, never read it.",
    "Where in {name} would a new option be handled with the least change?",
    "Is there state in {name} that two threads could both change?",
    "Which line of {name} surprised you, and why is it there?",
    "Write a test that pins down what {name} does at its edges.",
    "How would you make {name} faster without changing what it returns?",
)


def stdlib_sessions(
    seed: int,
    sessions: int = 3,
    turns: int = 2,
    turn_tokens: int = 160,
    output_tokens: int = 16,
    library: Path | None = None,
) -> Workload:
    """Make the workload.

    Args:
        seed: chooses files, excerpts and questions.
        sessions: conversations that start from the system prompt.
        turns: questions of each.
        turn_tokens: tokens that a turn adds, about.
        output_tokens: tokens of an answer.
        library: folder of the standard library's sources; by default this interpreter's.

    Returns:
        Requests of all sessions, asked in turn, and the branch at the end. Equal arguments on the
        same Python give equal tokens.

    Raises:
        UserError: a count below 1, or no sources to read.
    """
    sizes = {
        "--sessions": sessions,
        "--turns": turns,
        "--turn-tokens": turn_tokens,
        "--output-tokens": output_tokens,
    }
    for name, value in sizes.items():
        if value < 1:
            raise UserError(f"{name} {value}: expected at least 1")
    library = library or Path(sysconfig.get_paths()["stdlib"])
    draw = random.Random(seed)
    requests: list[Request] = []
    last: dict[int, int] = {}
    order = [(session, turn) for turn in range(turns) for session in range(sessions)]
    for session, turn in order:
        text = _turn(draw, library, turn_tokens)
        new = encode(text if turn else SYSTEM + text)
        requests.append(Request(f"session {session}", new, output_tokens, last.get(session)))
        last[session] = len(requests) - 1
    if turns > 1:
        text = _turn(draw, library, turn_tokens)
        requests.append(Request("session 0, again", encode(text), output_tokens, after=0))
    return Workload("standard library sessions", tuple(requests))


def encode(text: str) -> Int32[ndarray, " tokens"]:
    """Byte tokens of a text.

    Args:
        text: any text.

    Returns:
        int32 [bytes] in 0..255.
    """
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


def _turn(draw: random.Random, library: Path, tokens: int) -> str:
    """A question and the file that a tool read for it: half to one and a half times `tokens`."""
    tokens = draw.randint((tokens + 1) // 2, tokens + tokens // 2)
    name = draw.choice(MODULE_NAMES.split())
    question = draw.choice(QUESTIONS).format(name=f"{name}.py")
    lines = _source(library / f"{name}.py")
    first = draw.randrange(max(1, len(lines) // 2))
    shown = "".join(f"{first + i + 1:5} {line}\n" for i, line in enumerate(lines[first:]))
    head = f"\n\nuser: {question}\n\ntool: read({name}.py)\n"
    body = shown.encode()[: max(0, tokens - len(head) - len(ASSISTANT))]
    return head + body.decode(errors="ignore") + ASSISTANT


ASSISTANT = "\n\nassistant: "


def _source(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); the default workload needs the standard "
            "library's source files: use a Python that has them, or give --trace PATH"
        ) from error
