"""The hybrid language model and its engine: layers, prefill, decode, prefix cache, snapshots."""

from hybrid.checkpoint import load_pretrained

__all__ = ["load_pretrained"]
