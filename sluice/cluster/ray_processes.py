"""Limits which processes Ray starts on this machine, and ends them if the start fails."""

import contextlib
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MAX_WAIT_S = 1.0
"""Maximum wait for the command line of a new process [s]."""
_POLL_INTERVAL_S = 0.005


@contextlib.contextmanager
def without_unused_processes() -> Iterator[None]:
    """Prevent ``ray.init`` in the block from starting processes that one machine does not need.

    Ray's autoscaler adds machines, and Ray's log monitor sends the output of workers to the driver.
    Both are Python processes. Each needs about 2 s of CPU time while the first worker starts.
    ``ray.init`` has no arguments to disable them.
    """
    from ray._private import parameter

    original_class = parameter.RayParams
    parameter.RayParams = functools.partial(  # type: ignore[misc, assignment]
        original_class,
        no_monitor=True,
        include_log_monitor=False,  # type: ignore[arg-type]
    )
    try:
        yield
    finally:
        parameter.RayParams = original_class  # type: ignore[misc]


@contextlib.contextmanager
def ending_processes_on_error(folder: Path) -> Iterator[None]:
    """End the processes that ``ray.init`` started in the block if it raises.

    Ray itself ends these processes only when this process exits. Until then, they would slow down
    the next attempt to start Ray.

    Args:
        folder: Folder of Ray's sessions, which is in the command lines of its processes.
    """
    import psutil

    this_process = psutil.Process()
    earlier_pids = {child.pid for child in this_process.children(recursive=True)}
    try:
        yield
    except BaseException:
        children = this_process.children(recursive=True)
        killed_processes = []
        for process in [child for child in children if child.pid not in earlier_pids]:
            with contextlib.suppress(psutil.Error):
                if any(str(folder) in argument for argument in _command_line(process)):
                    process.kill()
                    killed_processes.append(process)
        psutil.wait_procs(killed_processes, timeout=5)
        raise


def _command_line(process: Any) -> list[str]:
    """Return the arguments of a ``psutil.Process``, even if it has only just started.

    Linux shows an empty command line for a moment after a process executes its program.
    """
    deadline = time.monotonic() + _MAX_WAIT_S
    while not (arguments := process.cmdline()) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)
    return list(arguments)
