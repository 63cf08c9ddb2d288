"""Handling of ``check()`` calls inside the gate's own process, which runs the user's file again.

The file that defines the workload often ends with ``check(...)`` and the training. When the gate's
process reaches that line, the class is defined: the checks run there, and the process exits before
the training starts.
"""

import os
from collections.abc import Callable
from typing import NoReturn

INSIDE_GATE_VARIABLE = "SLUICE_INSIDE_GATE"
"""Environment variable that is set in the gate's process and its child processes."""

_registered_callback: tuple[str, Callable[[type], NoReturn]] | None = None
"""Qualified name of the workload's class, and the callback that runs the checks."""


def run_on_check_call(qualified_name: str, callback: Callable[[type], NoReturn]) -> None:
    """Register a callback, which runs when ``check()`` is called with the class of this name."""
    global _registered_callback
    _registered_callback = (qualified_name, callback)


def run_registered_callback(workload_type: type) -> None:
    """Call the callback if it is registered for the class; it runs the checks and exits."""
    if _registered_callback is not None and workload_type.__qualname__ == _registered_callback[0]:
        _registered_callback[1](workload_type)


def is_inside_gate() -> bool:
    """Return whether this is a process of the gate, where ``check()`` must not start a gate."""
    return bool(os.environ.get(INSIDE_GATE_VARIABLE))
