"""Starts Ray nodes for tests, without the parts that no test needs."""

import contextlib
from typing import Any

import psutil
import pytest

_ATTEMPTS = 4
MACHINE = {
    "num_cpus": 1,
    "include_dashboard": False,
    "include_log_monitor": False,
    # All nodes of a test have the same address. The first one uses Ray's default port, and each
    # further node would retry that port for six seconds.
    "dashboard_agent_listen_port": 0,
}


def start_with_retries(start) -> Any:
    """Start a node with retries: on busy cores, its processes may take longer than Ray waits."""
    import ray

    before = set(psutil.Process().children())
    with pytest.MonkeyPatch.context() as patch:
        # As in an installation of Ray without the dashboard, of which each node would load a part.
        patch.setattr(
            ray._private.utils, "get_dashboard_dependency_error", lambda: ImportError("left out")
        )
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(Exception):  # Ray raises a plain Exception
                return start()
            for process in set(psutil.Process().children()) - before:
                process.kill()
        return start()
