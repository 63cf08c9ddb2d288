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
"""Qualified name of the awaited class, and the callback that runs the checks."""


def run_on_check_call(qualified_name: str, callback: Callable[[type], NoReturn]) -> None:
    """Register a callback, which runs when ``check()`` is called with the class of this name."""
    global _registered_callback
    _registered_callback = (qualified_name, callback)


def is_inside_gate(workload_type: type) -> bool:
    """Return whether this is the gate's process, where ``check()`` must not start another gate.

    Does not return if ``run_on_check_call`` registered a callback for the class: the callback runs
    the checks and exits the process.
    """
    if _registered_callback is not None and workload_type.__qualname__ == _registered_callback[0]:
        _registered_callback[1](workload_type)
    return bool(os.environ.get(INSIDE_GATE_VARIABLE))
