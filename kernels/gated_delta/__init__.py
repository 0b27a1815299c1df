"""Gated delta rule (Gated DeltaNet)."""

from kernels.gated_delta.api import gated_delta_scan, gated_delta_step

__all__ = ["gated_delta_scan", "gated_delta_step"]
