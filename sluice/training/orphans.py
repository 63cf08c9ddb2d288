"""No process outlives the one that started it, however that one ended."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Let the system kill this process when the thread that started it is gone.

    On Linux alone; elsewhere nothing happens. A parent that is gone already ends it at once.

    Args:
        parent: Id of the process that started this one.

    Source:
        prctl(2), PR_SET_PDEATHSIG.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the system was asked
        os.kill(os.getpid(), signal.SIGKILL)
