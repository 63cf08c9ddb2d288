"""Starts machines of Ray for tests, without the parts that no test needs."""

import contextlib
from typing import Any

import psutil
import pytest

_ATTEMPTS = 4
MACHINE = {
    "num_cpus": 1,
    "include_dashboard": False,
    "include_log_monitor": False,
    # All machines of a test have one address. Ray's own port is taken by the first, and each
    # further one tries it for six seconds before it gives up.
    "dashboard_agent_listen_port": 0,
}


def started(start) -> Any:
    """Start a machine, again on cores so busy that its processes take longer than Ray waits."""
    import ray

    before = set(psutil.Process().children())
    with pytest.MonkeyPatch.context() as patch:
        # As where Ray is installed without its dashboard, of which each machine would load a part.
        patch.setattr(
            ray._private.utils, "get_dashboard_dependency_error", lambda: ImportError("left out")
        )
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(Exception):  # Ray's own error has no other class
                return start()
            for process in set(psutil.Process().children()) - before:
                process.kill()
        return start()
