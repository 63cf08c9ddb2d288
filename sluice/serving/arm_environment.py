"""What a challenger's process sees of the server's environment: an allow list.

The server's environment holds tokens, and often passwords of databases and keys of clouds. A
challenger is new code, or that of somebody else, and needs none of them.
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
"""Languages, and which devices there are."""

_PR_SET_DUMPABLE = 4


def arm_environment(environ: Mapping[str, str], *, more: Collection[str]) -> dict[str, str]:
    """Return the environment of a challenger's process.

    Args:
        environ: Of this process.
        more: Names of further variables that it needs.
    """
    found = {
        name: value
        for name, value in environ.items()
        if name in _NAMES or name.startswith(_PREFIXES) or name in more
    }
    return found | WORKER_ENVIRONMENT


def hide_from_children() -> None:
    """Keep processes of the same user from reading this one's environment and memory.

    A challenger could otherwise read ``/proc/<parent>/environ``. On Linux alone; elsewhere nothing
    happens. Processes of root still can, and this one leaves no core dump.

    Source:
        prctl(2), PR_SET_DUMPABLE.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
