"""What a placement policy is told about a request, and the policy interface itself."""

from collections.abc import Iterable
from dataclasses import dataclass

from planner.checks import check_int


@dataclass(frozen=True, slots=True)
class PlacementContext:
    """One prompt, as seen when its prefill is planned.

    ::

        position  0 ...... restored ........ matched ................. total
                  | reused |    replayed     |          suffix          |
                           ^ a snapshot      ^ the prompt leaves every cached path here
        captures are possible in (restored, total], on the grid

    Attributes:
        total: prompt length, tokens.
        block_size: tokens a block.
        grid: snapshots lie on multiples of this: the tile, or the block size off the exact grid.
        matched: block-floored longest cached prefix, at most total - 1.
        restored: position of the snapshot that prefill resumes from, 0 if none.
        chunk_ends: positions where the scheduler's chunks end, ascending.
        branches: whether a cached path goes on past `matched`, so that this prompt makes a fork
            there rather than extending a path that ended.
        visits: earlier prompts that contain the matched prefix.
        boundaries: ascending positions where a message starts.
        previous_totals: lengths of the earlier prompts of the same session, oldest first.

    Raises:
        ValueError: a position out of order or off its grid; names it.
    """

    total: int
    block_size: int
    grid: int
    matched: int = 0
    restored: int = 0
    chunk_ends: tuple[int, ...] = ()
    branches: bool = False
    visits: int = 0
    boundaries: tuple[int, ...] = ()
    previous_totals: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check every number against the ones that bound it."""
        check_int("total", self.total, 1)
        check_int("block_size", self.block_size, 1)
        check_int("grid", self.grid, 1)
        if self.grid % self.block_size:
            raise ValueError(
                f"grid must be a multiple of block_size = {self.block_size}, got {self.grid}"
            )
        check_int("matched", self.matched, 0, self.total - 1)
        check_int("restored", self.restored, 0, self.matched)
        check_int("visits", self.visits, 0)

    def floor(self, position: int) -> int:
        """The last grid position at or below a position."""
        return position // self.grid * self.grid

    def capturable(self, positions: Iterable[int]) -> tuple[int, ...]:
        """Those of the positions that this prefill passes, ascending, each once."""
        return tuple(sorted({p for p in positions if self.restored < p <= self.total}))


class PlacementPolicy:
    """Says where in a prompt to capture snapshots. Policies combine: `a | b` captures for both.

    `spec` is the string that `parse_placement` turns back into the policy.
    """

    @property
    def spec(self) -> str:
        """The policy as text, e.g. "every:32"."""
        raise NotImplementedError

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """Positions to capture, ascending, on the context's grid, within (restored, total].

        Args:
            context: the prompt.

        Returns:
            Absolute positions in tokens. Asking changes nothing in the policy.

        Raises:
            ValueError: the policy cannot keep to the context's grid.
        """
        raise NotImplementedError

    def observe(self, context: PlacementContext) -> None:
        """Learn from a prompt: called once for each, after `positions`. Most policies do not.

        Args:
            context: the prompt.
        """

    def __or__(self, other: "PlacementPolicy") -> "PlacementPolicy":
        """The policy that captures wherever either does."""
        return Union((*_members(self), *_members(other)))

    def __repr__(self) -> str:
        """The spec, for messages."""
        return f"<placement {self.spec}>"


class Union(PlacementPolicy):
    """Captures wherever one of its members does."""

    def __init__(self, members: Iterable[PlacementPolicy]) -> None:
        """Combine members; their order does not matter to the positions.

        Args:
            members: the policies.
        """
        self.members = tuple(members)

    @property
    def spec(self) -> str:
        """The members' specs, joined by "|"."""
        return "|".join(member.spec for member in self.members)

    def positions(self, context: PlacementContext) -> tuple[int, ...]:
        """All members' positions, each once."""
        return context.capturable(p for member in self.members for p in member.positions(context))

    def observe(self, context: PlacementContext) -> None:
        """Let every member learn."""
        for member in self.members:
            member.observe(context)


def _members(policy: PlacementPolicy) -> tuple[PlacementPolicy, ...]:
    return policy.members if isinstance(policy, Union) else (policy,)


def place(policy: PlacementPolicy, context: PlacementContext) -> tuple[int, ...]:
    """Ask a policy for its positions, check them, and let it learn from the prompt.

    Args and errors are those of `checked_positions`.
    """
    positions = checked_positions(policy, context)
    policy.observe(context)
    return positions


def checked_positions(policy: PlacementPolicy, context: PlacementContext) -> tuple[int, ...]:
    """Ask a policy for its positions and check them; it learns nothing.

    Args:
        policy: the policy.
        context: the prompt.

    Returns:
        Ascending positions on the grid, within (restored, total].

    Raises:
        ValueError: a position off the grid, out of range or out of order; names it and the policy.
    """
    positions = policy.positions(context)
    for before, position in zip((context.restored, *positions), positions, strict=False):
        if position % context.grid:
            raise ValueError(
                f"placement {policy.spec!r} asks for position {position}, "
                f"off the grid of {context.grid} tokens"
            )
        if not before < position <= context.total:
            raise ValueError(
                f"placement {policy.spec!r} must ascend within "
                f"({context.restored}, {context.total}], got {positions}"
            )
    return positions
