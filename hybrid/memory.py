"""An estimate of what a run allocates, checked before anything is."""

import dataclasses

import jax
import psutil

from hybrid.state import tree_bytes


class InsufficientMemoryError(MemoryError):
    """The estimate is above what the device has free; nothing was allocated."""


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by purpose.

    Args:
        params_bytes: of all weights.
        workspace_bytes: keys and values for the capacity, states, capture slots, kept rows.
        scratch_bytes: activations of one tile, roughly: what the widest layer needs at once.
        cache_bytes: the prefix cache's budget.
    """

    params_bytes: int
    workspace_bytes: int
    scratch_bytes: int
    cache_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Sum of all purposes."""
        return self.params_bytes + self.workspace_bytes + self.scratch_bytes + self.cache_bytes


def available_bytes(device: jax.Device | None) -> int:
    """Bytes free on `device`: its own report, or the host's available memory where it has none
    (a CPU, or None for the host itself)."""
    stats = device.memory_stats() if device is not None and device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
    return int(psutil.virtual_memory().available)


def check_memory(estimate: MemoryEstimate, device: jax.Device | None) -> None:
    """Refuse a run that does not fit.

    Args:
        estimate: bytes by purpose.
        device: where they go; None is the host, whatever platforms jax has started.

    Raises:
        InsufficientMemoryError: lists every purpose with its bytes and what is free.
    """
    free = available_bytes(device)
    if estimate.total_bytes > free:
        parts = ", ".join(
            f"{field.name.removesuffix('_bytes')} {getattr(estimate, field.name) / 2**20:,.0f} MiB"
            for field in dataclasses.fields(estimate)
        )
        where = "the host" if device is None else f"{device.platform} device {device.id}"
        raise InsufficientMemoryError(
            f"the run needs about {estimate.total_bytes / 2**20:,.0f} MiB ({parts}) but "
            f"{where} has {free / 2**20:,.0f} MiB free; lower the "
            "capacity, the capture slots or the cache budget"
        )


def workspace_estimate(params: object, workspace: object, scratch_bytes: int) -> MemoryEstimate:
    """Estimate from trees of shapes (`jax.ShapeDtypeStruct`) or arrays."""
    return MemoryEstimate(tree_bytes(params), tree_bytes(workspace), scratch_bytes)
