"""What a stored state depends on, by content. Where two fingerprints are equal the bits are, so a
snapshot of one environment serves the other.

Left out on purpose: the capacity, the number of kept rows and the length of decode calls, which
change programs but no bit of a state (the tile law, held by tests).
"""

import dataclasses
import functools
import hashlib
import os
import pathlib
import platform
import weakref
from collections.abc import Mapping
from typing import Any

import jax
import jaxlib
import numpy as np

import kernels
from hybrid.runner import ModelRunner

FORMAT_VERSION = 1

_CODE = ("config.py", "layers", "model.py", "prefill.py", "specs.py", "state.py")


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """A digest with what went into it.

    Args:
        parts: name and value of each ingredient, readable; long ones as their own digest.
    """

    parts: Mapping[str, str]

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over all parts, hexadecimal."""
        sha = hashlib.sha256()
        for name, value in sorted(self.parts.items()):
            for text in (name, value):
                sha.update(len(text.encode()).to_bytes(8, "little") + text.encode())
        return sha.hexdigest()

    def differences(self, other: Mapping[str, str]) -> list[str]:
        """One line for each part that differs from `other`: its name, the value here and there."""
        names = sorted({*self.parts, *other})
        return [
            f"{name}: {self.parts.get(name, 'absent')} here, {other.get(name, 'absent')} there"
            for name in names
            if self.parts.get(name) != other.get(name)
        ]


def content_digest(tree: Any) -> str:
    """SHA-256 over the leaves of a tree: path, shape, dtype and bytes of each.

    Args:
        tree: arrays of jax or numpy.

    Returns:
        Hexadecimal digest; the same in every process, whatever PYTHONHASHSEED is.
    """
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        array = np.ascontiguousarray(np.asarray(leaf))
        header = f"{jax.tree_util.keystr(path)} {array.dtype.name} {array.shape}\n"
        sha.update(header.encode())
        sha.update(array.reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


def fingerprint(runner: ModelRunner) -> Fingerprint:
    """Everything that the bits of a runner's states depend on, computed once a runner.

    Args:
        runner: the model with its programs.

    Returns:
        The fingerprint; reading all weights makes the first call slow on a large model.
    """
    if runner not in _known:
        _known[runner] = Fingerprint(_parts(runner))
    return _known[runner]


_known: "weakref.WeakKeyDictionary[ModelRunner, Fingerprint]" = weakref.WeakKeyDictionary()


def _parts(runner: ModelRunner) -> dict[str, str]:
    compute, shapes = runner.compute, runner.shapes
    return {
        "format": str(FORMAT_VERSION),
        "parameters": content_digest(runner.params),
        "config": runner.config.to_json(),
        "compute": compute.to_json(),
        "state_dtypes": ",".join(
            sorted({np.dtype(leaf.dtype).name for leaf in jax.tree.leaves(runner.state_shapes)})
        ),
        "tile": str(shapes.tile),
        "block_size": str(shapes.block_size),
        "batch": str(shapes.batch),
        "capture_slots": f"{shapes.capture_slots} a pass, {shapes.tile_slots} a tile",
        "code": _code_digest(),
        "matmul_precision": f"{compute.precision}, else {_option('default_matmul_precision')}",
        "x64": _option("enable_x64"),
        "optimizations": f"most off: {_option('disable_most_optimizations')}",
        "devices": "1, no mesh",
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "platform": f"{runner.device.platform}, {runner.device.client.platform_version}",
        "device_kind": _device_kind(runner.device),
        "xla_flags": " ".join(os.environ.get("XLA_FLAGS", "").split()),
        "libtpu_flags": " ".join(os.environ.get("LIBTPU_INIT_ARGS", "").split()),
    }


def _option(name: str) -> str:
    return str(jax.config.values[f"jax_{name}"])


@functools.cache
def _code_digest() -> str:
    """Digest of the sources that decide bits: the kernels, and what the prefill program is made
    of."""
    roots = [pathlib.Path(str(kernels.__file__)).parent]
    roots += [pathlib.Path(__file__).parent / name for name in _CODE]
    sha = hashlib.sha256()
    for root in roots:
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            sha.update(f"{path.relative_to(root.parent).as_posix()}\n".encode())
            sha.update(hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()


def _device_kind(device: jax.Device) -> str:
    """Kind of the device; on a CPU its model and how many cores XLA may use, which decide vector
    widths and how matrix products are divided."""
    if device.platform != "cpu":
        return str(device.device_kind)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.machine()}, {_cpu_model()}, {cores} cores"


def _cpu_model() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {name.strip(): value.strip() for name, value in fields.items()}
    flags = hashlib.sha256(" ".join(sorted(named.get("flags", "").split())).encode()).hexdigest()
    return f"{named.get('model name', platform.processor())} (features {flags[:16]})"
