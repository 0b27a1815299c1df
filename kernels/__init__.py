"""Recurrent scan kernels with state capture at planned offsets, in JAX and Pallas.

Each operation is a folder, and its functions come from there: `from kernels.ssd import ssd_scan,
ssd_step`. The same files are in each: `api.py` (checks and dispatch), `reference.py` (token loop,
the oracle), `xla.py` (chunked form) and, but for the convolution, `pallas.py` (thin launchers),
`pallas_kernel.py` (the kernel body) and `vjp.py`. What they return is `kernels.scan.ScanResult`.

Dimension key of the whole repository: suffixes of names (`x_BTHP`) and axes in signatures. A file
that needs another letter, or one of these for something else, says so.

    B batch       T length, tokens      C rows of a chunk     S capture slots
    H heads       G groups of heads that share B and C, or queries and keys, or keys and values
    P head_dim    N state_dim           K key_dim             V value_dim; vocabulary of logits
    M channels    W convolution width   U = W - 1, inputs that a convolution remembers
    D hidden      Q query heads         R rows                L length of a padded or KV buffer
    I, O, E, F    widths of projections: in, out, queries beside keys and values, feed-forward
    1 an axis of size one
"""
