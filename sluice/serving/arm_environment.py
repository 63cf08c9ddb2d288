"""Environment of a challenger's process: an allow list of variables.

The server's environment contains tokens, and often database passwords and cloud credentials. A
challenger is new code, possibly by another author, and does not need them.
"""

import ctypes
import sys
from collections.abc import Collection, Mapping

from sluice.cluster.process import WORKER_ENVIRONMENT

_ALLOWED_NAMES = frozenset(
    {
        "HOME",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "LOGNAME",
        "PATH",
        "PYTHONUTF8",
        "TMPDIR",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
    }
)
_ALLOWED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "HIP_", "ROCR_")
"""Prefixes of locale and device variables."""

_PR_SET_DUMPABLE = 4
"""Operation code of prctl(2) that sets whether other processes may inspect the calling process."""


def arm_environment(environ: Mapping[str, str], *, extra_names: Collection[str]) -> dict[str, str]:
    """Return the environment of a challenger's process.

    Args:
        environ: Environment of this process.
        extra_names: Names of further variables that the challenger needs.
    """
    environment = {
        name: value
        for name, value in environ.items()
        if name in _ALLOWED_NAMES or name.startswith(_ALLOWED_PREFIXES) or name in extra_names
    }
    return environment | WORKER_ENVIRONMENT


def hide_from_children() -> None:
    """Prevent processes of the same user from reading this process's environment and memory.

    A challenger could otherwise read ``/proc/<parent>/environ``. Root processes still can read
    both. As a side effect this process writes no core dump. Does nothing except on Linux.

    Source:
        prctl(2), PR_SET_DUMPABLE.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
