r"""Path-compressed radix tree over block keys; the storage under `planner.prefix_index`.

An edge and the node at its foot are one object. Its blocks are counted from the root, so a node
holds blocks [start, end) of every prompt that runs through it, and a snapshot at position p belongs
to the node that holds block (p - 1) // block_size, the last block that it needs::

    block      0    1    2    3    4    5
    root --- [ a    b    c ]--[ d    e ]         start = 0, end = 3;  start = 3, end = 5
                           \--[ x    y    z ]   start = 3, end = 6
                           ^
                           a snapshot at 3 * block_size belongs to the upper node

Keys are compared as whole arrays, so a walk costs a few numpy calls an edge, however long.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import numpy as np

LOST_PER_NODE = 16
"""How many evicted snapshots a node remembers."""


class Snapshot:
    """A stored state at one position of one path; a candidate for eviction of kind "snapshot".

    Attributes:
        id: never used again for another snapshot.
        position: tokens consumed.
        node: the node that holds the last block it needs.
        exact: whether it may serve an exact request.
        num_bytes: its size.
        created: clock at which it was attached.
        last_use: clock at which it was attached or last restored.
        hits: how often it was restored.
        pins: how many running requests hold it.
        tag: whatever the caller attached it with, for policies that know more.
    """

    __slots__ = (
        "created",
        "exact",
        "hits",
        "id",
        "last_use",
        "node",
        "num_bytes",
        "pins",
        "position",
        "tag",
    )
    kind = "snapshot"

    def __init__(
        self,
        id: int,
        position: int,
        node: "Node",
        exact: bool,
        num_bytes: int,
        now: float,
        tag: Any,
    ) -> None:
        """Hold what is given; the tree enters it into its node."""
        self.id = id
        self.position = position
        self.node = node
        self.exact = exact
        self.num_bytes = num_bytes
        self.created = self.last_use = now
        self.hits = 0
        self.pins = 0
        self.tag = tag

    def above(self) -> "Snapshot | None":
        """The nearest snapshot above it on its path."""
        return nearest_above(self.node, self.position)

    @property
    def gap_tokens(self) -> int:
        """Tokens that a restore here would have to replay if it were gone."""
        above = self.above()
        return self.position - (above.position if above else 0)

    def below(self) -> Iterator["Snapshot"]:
        """The nearest snapshots below it, one a branch."""
        index = bisect_left(self.node.positions, self.position) + 1
        if index < len(self.node.snapshots):
            yield self.node.snapshots[index]
            return
        stack = list(self.node.holding.values())
        while stack:
            node = stack.pop()
            if node.snapshots:
                yield node.snapshots[0]
            else:
                stack.extend(node.holding.values())

    @property
    def superseded(self) -> bool:
        """Whether one deeper snapshot does for all that is held below what this one did.

        Every path held below leads through that one, and nobody has restored here since it came:
        a request takes the deepest that it can use, so one that restores here cannot use it.
        """
        index = bisect_left(self.node.positions, self.position) + 1
        deeper = self.node.snapshots[index] if index < len(self.node.snapshots) else None
        node = self.node
        while deeper is None and len(node.children) == 1:
            (node,) = node.children.values()
            deeper = node.snapshots[0] if node.snapshots else None
        return deeper is not None and deeper.created >= self.last_use


class Node:
    """An edge of the tree with its foot; a leaf is a candidate for eviction of kind "kv".

    Attributes:
        parent: the node above; None for the root.
        start: index of its first block, counted from the root.
        keys: int64 [blocks], what each block is.
        ids: int64 [blocks], a stable id of each block held, never used again.
        children: by the first key of each.
        holding: those children that hold a snapshot or have one below them.
        num_exact: how many of its blocks, from the top, are exact.
        snapshots: ascending by position.
        positions: theirs.
        lost: positions of snapshots that were evicted, or found no room, while their blocks stayed,
            ascending.
        last_use: clock of the last insert that ran through it.
        hits: how many inserts ran through it after its own.
        pins: how many pins end at each block boundary inside it.
    """

    __slots__ = (
        "children",
        "hits",
        "holding",
        "ids",
        "keys",
        "last_use",
        "lost",
        "num_exact",
        "parent",
        "pins",
        "positions",
        "snapshots",
        "start",
    )
    kind = "kv"

    def __init__(
        self, parent: "Node | None", start: int, keys: np.ndarray, ids: np.ndarray, num_exact: int
    ) -> None:
        """Hold what is given; the tree links it to its parent."""
        self.parent = parent
        self.start = start
        self.keys = keys
        self.ids = ids
        self.children: dict[int, Node] = {}
        self.holding: dict[int, Node] = {}
        self.num_exact = num_exact
        self.snapshots: list[Snapshot] = []
        self.positions: list[int] = []
        self.lost: list[int] = []
        self.last_use: float = 0
        self.hits = 0
        self.pins: dict[int, int] = {}

    @property
    def end(self) -> int:
        """Index after its last block."""
        return self.start + len(self.keys)

    @property
    def evictable_blocks(self) -> int:
        """How many of its last blocks may go: all below the deepest pin; none of an inner node."""
        if self.children or self.parent is None:
            return 0
        size = len(self.keys)
        return size - max(0, max(self.pins) - self.start) if self.pins else size

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Enter a snapshot of one of its blocks."""
        index = bisect_left(self.positions, snapshot.position)
        self.positions.insert(index, snapshot.position)
        self.snapshots.insert(index, snapshot)
        if snapshot.position in self.lost:
            self.lost.remove(snapshot.position)
        node, above = self, self.parent
        while above is not None and (key := int(node.keys[0])) not in above.holding:
            above.holding[key] = node
            node, above = above, above.parent

    def remove_snapshot(self, snapshot: Snapshot, remember: bool) -> None:
        """Take a snapshot out; `remember` that it was there."""
        index = bisect_left(self.positions, snapshot.position)
        del self.positions[index], self.snapshots[index]
        if remember:
            self.lose(snapshot.position)
        node, above = self, self.parent
        while above is not None and not node.snapshots and not node.holding:
            del above.holding[int(node.keys[0])]
            node, above = above, above.parent

    def lose(self, position: int) -> None:
        """Remember that a snapshot at a position was evicted or found no room."""
        if position not in self.lost:
            self.lost.insert(bisect_left(self.lost, position), position)
            del self.lost[:-LOST_PER_NODE]

    def find(self, position: int) -> Snapshot | None:
        """Its snapshot at exactly this position."""
        index = bisect_left(self.positions, position)
        found = index < len(self.positions) and self.positions[index] == position
        return self.snapshots[index] if found else None


def nearest_above(node: Node, position: int) -> Snapshot | None:
    """The deepest snapshot held strictly above a position.

    Args:
        node: the node that holds the last block of the position.
        position: in tokens.

    Returns:
        The snapshot, None where there is none.
    """
    index = bisect_left(node.positions, position)
    if index:
        return node.snapshots[index - 1]
    above = node.parent
    while above is not None and not above.snapshots:
        above = above.parent
    return above.snapshots[-1] if above is not None else None


def walk(root: Node, keys: np.ndarray) -> tuple[list[Node], int]:
    """Follow `keys` from the root.

    Args:
        root: the tree's root.
        keys: int64 [blocks].

    Returns:
        The nodes entered (the root not among them) and the number of blocks that agree; it ends
        inside the last node where not all of that node's blocks agree.
    """
    node, at, total = root, 0, len(keys)
    path: list[Node] = []
    while at < total:
        child = node.children.get(int(keys[at]))
        if child is None:
            return path, at
        path.append(child)
        size = len(child.keys)
        agree = child.keys[: total - at] == keys[at : at + size]
        if agree.all():
            at += len(agree)
            if len(agree) < size:
                return path, at
        else:
            return path, at + int(agree.argmin())
        node = child
    return path, at


def deepest(path: list[Node], limit: int, exact: bool) -> Snapshot | None:
    """The deepest snapshot on a path at or below a position.

    Args:
        path: nodes from the top down.
        limit: the position, tokens.
        exact: whether only an exact one will do.
    """
    for node in reversed(path):
        for snapshot in reversed(node.snapshots):
            if snapshot.position <= limit and (snapshot.exact or not exact):
                return snapshot
    return None


def upgrade(path: list[Node]) -> tuple[tuple[int, np.ndarray], ...]:
    """Mark all blocks of a path exact.

    Args:
        path: nodes from the top down.

    Returns:
        (index of the first, ids) of each run of blocks that were not.
    """
    upgraded = []
    for node in path:
        if node.num_exact < len(node.keys):
            upgraded.append((node.start + node.num_exact, node.ids[node.num_exact :]))
            node.num_exact = len(node.keys)
    return tuple(upgraded)


def split(node: Node, at: int, block_size: int) -> Node:
    """Cut a node in two at block `at`; the lower part stays the object that it was.

    Args:
        node: the node, with start < at < end.
        at: index of the block where the lower part starts.
        block_size: tokens a block.

    Returns:
        The new upper part.
    """
    assert node.parent is not None
    cut, tokens, key = at - node.start, at * block_size, int(node.keys[0])
    upper = Node(node.parent, node.start, node.keys[:cut], node.ids[:cut], min(cut, node.num_exact))
    upper.last_use, upper.hits = node.last_use, node.hits
    node.parent.children[key] = upper
    if key in node.parent.holding:
        node.parent.holding[key] = upper
    node.keys, node.ids, node.start = node.keys[cut:], node.ids[cut:], at
    node.num_exact -= upper.num_exact
    node.parent = upper
    upper.children[int(node.keys[0])] = node

    index = bisect_left(node.positions, tokens + 1)
    upper.snapshots, node.snapshots = node.snapshots[:index], node.snapshots[index:]
    upper.positions, node.positions = node.positions[:index], node.positions[index:]
    if node.snapshots or node.holding:
        upper.holding[int(node.keys[0])] = node
    for snapshot in upper.snapshots:
        snapshot.node = upper
    upper.lost = [position for position in node.lost if position <= tokens]
    node.lost = [position for position in node.lost if position > tokens]
    upper.pins = {depth: count for depth, count in node.pins.items() if depth <= at}
    node.pins = {depth: count for depth, count in node.pins.items() if depth > at}
    return upper


def extend(node: Node, keys: np.ndarray, ids: np.ndarray, exact: bool) -> Node:
    """Put blocks below the end of a node: onto a leaf itself, else in a new child.

    Args:
        node: the node (or the root), of which the whole path is held.
        keys: int64 [blocks], at least one.
        ids: int64 [blocks].
        exact: whether the blocks are exact.

    Returns:
        The node that holds them.
    """
    if node.children or node.parent is None:
        child = Node(node, node.end, keys.copy(), ids, len(keys) if exact else 0)
        node.children[int(keys[0])] = child
        return child
    if exact and node.num_exact == len(node.keys):
        node.num_exact += len(keys)
    node.keys = np.concatenate([node.keys, keys])
    node.ids = np.concatenate([node.ids, ids])
    return node


def cut_tail(node: Node, num_blocks: int) -> np.ndarray:
    """Take the last blocks off a leaf, which leaves the tree when it is empty.

    Args:
        node: a leaf without snapshots or pins in those blocks.
        num_blocks: how many, at least one.

    Returns:
        Their ids, int64 [num_blocks].
    """
    keep = len(node.keys) - num_blocks
    ids = node.ids[keep:]
    if keep == 0 and node.parent is not None:
        del node.parent.children[int(node.keys[0])]
    node.keys, node.ids = node.keys[:keep].copy(), node.ids[:keep].copy()
    node.num_exact = min(node.num_exact, keep)
    return ids


def nodes(root: Node) -> Iterator[Node]:
    """All nodes but the root, in no order."""
    stack = list(root.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())
