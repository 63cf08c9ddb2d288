"""Starts Ray nodes for tests, without the parts that no test needs."""

import contextlib
from typing import Any

import psutil
import pytest

_NUM_ATTEMPTS = 4
NODE_OPTIONS = {
    "num_cpus": 1,
    "include_dashboard": False,
    "include_log_monitor": False,
    # A free port. All nodes of a test have the same address, and with Ray's default port, each node
    # after the first would retry this port for six seconds.
    "dashboard_agent_listen_port": 0,
}
"""Options of a node."""


def start_with_retries(start) -> Any:
    """Start a node. Retry, because on busy cores its processes may start later than Ray waits."""
    import ray

    processes_before = set(psutil.Process().children())
    with pytest.MonkeyPatch.context() as patch:
        # Let Ray believe that its dashboard is not installed: each node would load a part of it.
        patch.setattr(
            ray._private.utils,
            "get_dashboard_dependency_error",
            lambda: ImportError("not installed"),
        )
        for _ in range(_NUM_ATTEMPTS - 1):
            with contextlib.suppress(Exception):  # Ray raises a plain Exception
                return start()
            for process in set(psutil.Process().children()) - processes_before:
                process.kill()
        return start()
