"""Causal depthwise convolution."""

from kernels.causal_conv.api import causal_conv, causal_conv_step

__all__ = ["causal_conv", "causal_conv_step"]
