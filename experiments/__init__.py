"""Experiments: one module each, run as `python -m experiments.NAME`; nothing imports them."""
