"""What to compute and what to keep: plans, placement, index, eviction; plain Python, no jax."""
