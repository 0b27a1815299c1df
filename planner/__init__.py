"""What to compute and what to keep: prefill plans, placement, prefix index, eviction; plain Python, no jax."""
