"""The hybrid language model and its engine: layers, prefill, decode, prefix cache, snapshots."""
