"""Handling of ``check()`` calls inside the gate's own process, which runs the user's file again.

The file that defines the workload often ends with ``check(...)`` and the training. When the gate's
process reaches that line, the class is defined: the checks run there, and the process exits before
the training starts.
"""

import os
from collections.abc import Callable
from typing import NoReturn

ENVIRONMENT = "SLUICE_INSIDE_GATE"
"""Environment variable that is set in the gate's process and its child processes."""

_awaited: tuple[str, Callable[[type], NoReturn]] | None = None


def run_on_check_call(qualified_name: str, then: Callable[[type], NoReturn]) -> None:
    """Register ``then``, which runs when ``check()`` is called with the class of this name."""
    global _awaited
    _awaited = (qualified_name, then)


def is_inside_gate(workload_type: type) -> bool:
    """Return whether this is the gate's process, where ``check()`` must not start another gate.

    Does not return if ``run_on_check_call`` registered a callback for the class: the callback runs
    the checks and exits the process.
    """
    if _awaited is not None and workload_type.__qualname__ == _awaited[0]:
        _awaited[1](workload_type)
    return bool(os.environ.get(ENVIRONMENT))
