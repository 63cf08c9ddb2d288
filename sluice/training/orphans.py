"""Ends a child process when its parent process ends, so that no orphan continues to run."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""Option of prctl(2): signal that the kernel sends to this process when its parent ends."""


def end_with_parent(parent_pid: int) -> None:
    """Make the operating system kill this process when the thread that started it ends.

    On other systems than Linux this function does nothing. If the parent has already ended, this
    process is killed immediately.

    Args:
        parent_pid: Id of the parent process.

    Source:
        prctl(2), PR_SET_PDEATHSIG.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before prctl was called
        os.kill(os.getpid(), signal.SIGKILL)
