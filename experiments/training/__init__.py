"""Training a byte-level model: text and its split, the step, baselines, publishing weights."""
