"""Ends child processes when their parent process ends."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Make the operating system kill this process when the thread that started it ends.

    Only on Linux; a no-op elsewhere. If the parent has already ended, this process ends at once.

    Args:
        parent: Id of the parent process.

    Source:
        prctl(2), PR_SET_PDEATHSIG.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before prctl was called
        os.kill(os.getpid(), signal.SIGKILL)
