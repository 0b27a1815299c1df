"""What a run ran on: versions, devices, cores, commit."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "flax", "orbax-checkpoint", "numpy")


def git_state(folder: Path) -> dict[str, Any]:
    """Commit that the code in a folder stands at.

    Args:
        folder: any folder of the checkout.

    Returns:
        {"commit": 40 hex digits or None outside a checkout, "dirty": whether tracked files differ}.
    """
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        dirty = bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": False}
    return {"commit": commit, "dirty": dirty}


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    return done.stdout.strip()


def describe_environment(devices: bool = True) -> dict[str, Any]:
    """Describe the machine and the software: figures compare only where these agree.

    Args:
        devices: also start jax and list its devices; False for experiments that run no model.

    Returns:
        A flat dictionary of JSON values: Python and package versions, platform, cores, devices.
    """
    found: dict[str, Any] = {"python": platform.python_version()}
    found |= {name: version(name) for name in PACKAGES}
    found["machine"] = f"{platform.system()} {platform.machine()}"
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    found["cpu_count"] = len(usable) or os.cpu_count()
    if devices:
        import jax

        found["devices"] = [f"{d.platform}:{d.device_kind}" for d in jax.devices()]
        found["xla_flags"] = os.environ.get("XLA_FLAGS", "")
    return found
