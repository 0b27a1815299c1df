"""What test modules of this folder share: prompts, saves on disk, and equality of bits."""

import jax
import numpy as np

from hybrid.manifest import Manifest


def tokens_of(seed, length):
    return np.random.default_rng(seed).integers(0, 256, length).astype(np.int32)


def manifests(directory):
    return [
        Manifest.from_json(path.stem, path.read_text())
        for path in sorted(directory.glob("*-*.json"))
    ]


def bits(x):
    x = np.asarray(x)
    return x.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[x.dtype.itemsize])


def assert_same_bits(found, expected, what):
    """Equal bits in every leaf of two trees, none of them NaN."""
    for (path, a), (_, b) in zip(
        jax.tree_util.tree_leaves_with_path(found),
        jax.tree_util.tree_leaves_with_path(expected),
        strict=True,
    ):
        where = f"{what}{jax.tree_util.keystr(path)}"
        assert np.isfinite(np.asarray(b, np.float32)).all(), f"{where}: not finite"
        np.testing.assert_array_equal(bits(a), bits(b), err_msg=where)
