"""Diagonal linear recurrence (RG-LRU, Mamba-1)."""

from kernels.linear_scan.api import linear_scan, linear_step

__all__ = ["linear_scan", "linear_step"]
