"""Environment of a challenger's process: an allow list of variables.

The server's environment contains tokens, and often database passwords and cloud credentials. A
challenger is new code, possibly of somebody else, and needs none of them.
"""

import ctypes
import sys
from collections.abc import Collection, Mapping

from sluice.cluster.process import WORKER_ENVIRONMENT

_NAMES = frozenset(
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
_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "HIP_", "ROCR_")
"""Locale and device variables."""

_PR_SET_DUMPABLE = 4


def arm_environment(environ: Mapping[str, str], *, more: Collection[str]) -> dict[str, str]:
    """Return the environment of a challenger's process.

    Args:
        environ: Environment of this process.
        more: Names of further variables that it needs.
    """
    found = {
        name: value
        for name, value in environ.items()
        if name in _NAMES or name.startswith(_PREFIXES) or name in more
    }
    return found | WORKER_ENVIRONMENT


def hide_from_children() -> None:
    """Prevent processes of the same user from reading this one's environment and memory.

    A challenger could otherwise read ``/proc/<parent>/environ``. On Linux only; elsewhere
    nothing happens. Processes of root still can, and this process writes no core dump.

    Source:
        prctl(2), PR_SET_DUMPABLE.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
