"""Checkpoint folders of published families, read into our parts."""

from hybrid.checkpoint.errors import CheckpointError
from hybrid.checkpoint.load import load_pretrained, read_config, read_end_tokens

__all__ = ["CheckpointError", "load_pretrained", "read_config", "read_end_tokens"]
