"""Recurrent scan kernels with state capture at planned offsets, in JAX and Pallas.

Each operation is a folder with the same files: `api.py` (checks and dispatch), `reference.py`
(token loop, the oracle), `xla.py` (chunked form), `pallas.py` (the kernel and its thin launchers).

Dimension key of the whole repository, used as suffixes of names (`x_BTHP`) and in signatures:

    B batch        T length         H heads        P head_dim      N state_dim
    G groups       C rows a chunk   K capture slots
    D hidden       V vocabulary     Q query heads  S key/value length
    M channels     W convolution width
"""
