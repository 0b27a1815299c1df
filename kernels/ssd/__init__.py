"""State-space duality (Mamba-2)."""

from kernels.ssd.api import ssd_scan, ssd_step

__all__ = ["ssd_scan", "ssd_step"]
