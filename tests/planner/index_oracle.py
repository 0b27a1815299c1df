"""The prefix index again, slow and plain: a set of prefixes, a list of snapshots, LRU by search."""

from dataclasses import dataclass, field


@dataclass
class OracleSnapshot:
    path: tuple
    position: int
    exact: bool
    num_bytes: int
    last_use: int
    order: int
    hits: int = 0
    pins: int = 0


@dataclass
class Oracle:
    """Holds each block as the prefix that ends with it."""

    block_size: int
    block_bytes: int
    snapshot_bytes: int
    total_limit: float
    kv_limit: float
    snapshot_limit: float
    blocks: dict = field(default_factory=dict)  # prefix -> [exact, last_use]
    snapshots: dict = field(default_factory=dict)  # (prefix, position) -> OracleSnapshot
    pins: list = field(default_factory=list)  # prefixes
    clock: int = 0
    order: int = 0

    def kv(self):
        return len(self.blocks) * self.block_bytes

    def snap(self):
        return sum(s.num_bytes for s in self.snapshots.values())

    def lookup(self, keys, total, exact):
        cap = max(total - 1, 0) // self.block_size
        held = 0
        while held < cap:
            block = self.blocks.get(keys[: held + 1])
            if block is None or (exact and not block[0]):
                break
            held += 1
        usable = [
            s
            for s in self.snapshots.values()
            if s.path == keys[: len(s.path)] and len(s.path) <= held and (s.exact or not exact)
        ]
        best = max(usable, key=lambda s: s.position, default=None)
        self.clock += 1
        if best is not None:
            best.hits += 1
            self.use(best)
        return held * self.block_size, best

    def use(self, snapshot):
        snapshot.last_use = self.clock
        self.order += 1
        snapshot.order = self.order

    def insert(self, keys, exact):
        self.clock += 1
        held = 0
        while held < len(keys) and keys[: held + 1] in self.blocks:
            held += 1
            block = self.blocks[keys[:held]]
            block[0] = block[0] or exact
            block[1] = self.clock
        new = len(keys) - held
        most = min(self.total_limit, self.kv_limit) // self.block_bytes
        new = int(min(new, most))
        self.make_room("kv", new * self.block_bytes, keys[:held])
        free = min(self.total_limit - self.kv() - self.snap(), self.kv_limit - self.kv())
        new = int(min(new, free // self.block_bytes))
        for end in range(held + 1, held + new + 1):
            self.blocks[keys[:end]] = [exact, self.clock]
        return held, new

    def attach(self, keys, position, exact):
        path = keys[: -(-position // self.block_size)]
        if len(path) * self.block_size < position or path not in self.blocks:
            return "beyond_path"
        if exact and not self.blocks[path][0]:
            return "inexact_path"
        held = self.snapshots.get((path, position))
        if held is not None and (held.exact or not exact):
            self.use(held)
            return "held"
        self.snapshots.pop((path, position), None)
        if not self.make_room("snapshot", self.snapshot_bytes, path):
            return "no_room"
        self.order += 1
        self.snapshots[path, position] = OracleSnapshot(
            path, position, exact, self.snapshot_bytes, self.clock, self.order
        )
        return "attached"

    def make_room(self, kind, num_bytes, guarded):
        limit = self.kv_limit if kind == "kv" else self.snapshot_limit
        if num_bytes > min(limit, self.total_limit):
            return False
        while True:
            own = (self.kv() if kind == "kv" else self.snap()) + num_bytes > limit
            total = self.kv() + self.snap() + num_bytes > self.total_limit
            if not own and not total:
                return True
            candidates = []
            if not own or kind == "kv":
                inner = {prefix[:-1] for prefix in self.blocks}
                for path in [guarded, *self.pins]:
                    inner.update(path[:end] for end in range(1, len(path) + 1))
                leaves = [prefix for prefix in self.blocks if prefix not in inner]
                candidates += [(self.blocks[p][1], 0, 0, p) for p in leaves]
            if not own or kind == "snapshot":
                free = [s for s in self.snapshots.values() if not s.pins]
                candidates += [(s.last_use, 1, s.order, (s.path, s.position)) for s in free]
            if not candidates:
                return False
            _, is_snapshot, _, key = min(candidates, key=lambda c: c[:3])
            if is_snapshot:
                del self.snapshots[key]
            else:
                del self.blocks[key]
                for name in [name for name in self.snapshots if name[0] == key]:
                    del self.snapshots[name]
