"""A whole trace as one tree of prefixes: what an infinite cache would match, and at which nodes.

The tree is compressed: it has a node where a prompt ends, where two prompts part, where a match
ends and at each prompt's last boundary, with the blocks between as one edge::

    request 0   A B C D E          root --A B--+--C D E     node 1, the end of 0
    request 1   A B X                  node 2  +--X         node 3, the end of 1

Request 1 matches node 2; a node that is split keeps its number and its end. It is the whole trace's
tree, so a node may be younger than a request whose path runs through it; times say which requests
could use it.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from planner.checks import check_int
from planner.trace import TraceRequest, check_trace

ROOT = 0


class PrefixPaths:
    """The tree of a trace and, for each request, where its match, its tail and its end lie.

    Attributes:
        block_size: tokens a block.
        grid: tokens; restores happen on its multiples.
        parent: of each node; the root's is itself.
        depth: of each node, in tokens.
        match_node: of each request, the deepest position on the grid that an infinite cache could
            restore.
        end_node: of each request, its last full block.
        tail_node: of each request, its last block boundary strictly under its end.
        matched: int64 [requests], tokens, block-floored, at most total - 1.
        total: int64 [requests], prompt lengths in tokens.
    """

    def __init__(self, requests: Sequence[TraceRequest], grid: int | None = None) -> None:
        """Insert every request, in order.

        Args:
            requests: the trace.
            grid: tokens, a multiple of the block size; None is the block size.

        Raises:
            ValueError: an empty trace or one out of order, or a grid off the blocks.
        """
        check_trace(requests)
        if not requests:
            raise ValueError("the trace has no requests")
        self.block_size = requests[0].block_size
        self.grid = check_int("grid", self.block_size if grid is None else grid, 1)
        if self.grid % self.block_size:
            raise ValueError(
                f"grid must be a multiple of block_size = {self.block_size}, got {self.grid}"
            )
        self.parent = [ROOT]
        self.depth = [0]
        self._edge: list[Int64[ndarray, " blocks"]] = [np.zeros(0, dtype=np.int64)]
        self._children: list[dict[int, int]] = [{}]
        self.match_node: list[int] = []
        self.end_node: list[int] = []
        self.tail_node: list[int] = []
        matched = []
        latest: dict[str, tuple[int, Int64[ndarray, " blocks"]]] = {}
        for request in requests:
            keys = request.block_keys
            start = self._common(*latest[request.session], keys) if request.session in latest else 0
            end, matched_blocks = self._insert(keys, start)
            latest[request.session] = end, keys
            limit = request.match_limit_blocks
            matched.append(min(matched_blocks, limit) * self.block_size)
            self.end_node.append(end)
            self.tail_node.append(self._node_at(end, limit * self.block_size))
            self.match_node.append(self._node_at(end, matched[-1] // self.grid * self.grid))
            self._node_at(end, self.depth[end] // self.grid * self.grid)
        self.matched = np.array(matched, dtype=np.int64)
        self.total = np.array([r.total_tokens for r in requests], dtype=np.int64)

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.end_node)

    def upward(self, node: int) -> Iterator[int]:
        """A node and the nodes above it, without the root.

        Args:
            node: where to start.

        Returns:
            Node numbers, deepest first.
        """
        while node != ROOT:
            yield node
            node = self.parent[node]

    def find(self, keys: Int64[ndarray, " blocks"]) -> int:
        """The node at or above which some blocks end, on the edge to it.

        Args:
            keys: the first blocks of a prompt of the trace.

        Returns:
            The node's number.

        Raises:
            ValueError: no prompt of the trace starts with these blocks.
        """
        node, done = ROOT, 0
        while done < len(keys):
            child = self._children[node].get(int(keys[done]))
            edge = self._edge[child] if child is not None else keys[:0]
            count = min(len(edge), len(keys) - done)
            if child is None or _shared(edge, keys[done:]) < count:
                raise ValueError(f"no prompt of the trace starts with these {len(keys)} blocks")
            node, done = child, done + count
        return node

    def _add(self, parent: int, edge: Int64[ndarray, " blocks"], depth: int) -> int:
        node = len(self.parent)
        self.parent.append(parent)
        self.depth.append(depth)
        self._edge.append(edge)
        self._children.append({})
        self._children[parent][int(edge[0])] = node
        return node

    def _split(self, node: int, blocks: int) -> int:
        """A new node `blocks` into a node's edge; the node keeps its number and its end."""
        edge, parent = self._edge[node], self.parent[node]
        middle = self._add(parent, edge[:blocks], self.depth[parent] + blocks * self.block_size)
        self.parent[node] = middle
        self._edge[node] = edge[blocks:]
        self._children[middle][int(edge[blocks])] = node
        return middle

    def _common(
        self, end: int, known: Int64[ndarray, " blocks"], keys: Int64[ndarray, " more"]
    ) -> int:
        """The deepest node on a known path, by its end and keys, that other keys run through."""
        shared = _shared(known, keys) * self.block_size
        return next((n for n in self.upward(end) if self.depth[n] <= shared), ROOT)

    def _insert(self, keys: Int64[ndarray, " blocks"], node: int) -> tuple[int, int]:
        """The node of a path's end, below a node on it, and how many blocks were there before."""
        done = self.depth[node] // self.block_size
        while done < len(keys):
            child = self._children[node].get(int(keys[done]))
            if child is None:
                return self._add(node, keys[done:], len(keys) * self.block_size), done
            edge = self._edge[child]
            shared = _shared(edge, keys[done : done + len(edge)])
            done += shared
            node = child if shared == len(edge) else self._split(child, shared)
        return node, done

    def _node_at(self, node: int, depth: int) -> int:
        """The node at a depth on the path to a node, made by a split where there is none."""
        while self.depth[self.parent[node]] >= depth and node != ROOT:
            node = self.parent[node]
        if self.depth[node] == depth:
            return node
        return self._split(node, (depth - self.depth[self.parent[node]]) // self.block_size)


def _shared(one: Int64[ndarray, " blocks"], other: Int64[ndarray, " more"]) -> int:
    """Length of the common start."""
    count = min(len(one), len(other))
    differ = one[:count] != other[:count]
    return int(differ.argmax()) if differ.any() else count


def restored_by_interval(paths: PrefixPaths, interval_tokens: int) -> int:
    """Tokens restored over the trace if every multiple of an interval had a snapshot, for ever.

    Args:
        paths: the trace.
        interval_tokens: distance of snapshots.

    Returns:
        Sum over requests of the match floored to the interval, tokens.

    Raises:
        ValueError: an interval under one token.
    """
    check_int("interval_tokens", interval_tokens, 1)
    return int((paths.matched // interval_tokens * interval_tokens).sum())


def restored_by_tails(paths: PrefixPaths) -> int:
    """Tokens restored over the trace with one snapshot a prompt, for ever: at its last boundary.

    Args:
        paths: the trace, on a grid of one block.

    Returns:
        Sum over requests of the deepest earlier tail at or above the match, tokens.
    """
    has_tail = bytearray(len(paths.parent))
    restored = 0
    for match, tail in zip(paths.match_node, paths.tail_node, strict=True):
        restored += next((paths.depth[n] for n in paths.upward(match) if has_tail[n]), 0)
        has_tail[tail] = 1
    return restored
