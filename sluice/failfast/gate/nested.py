"""What ``check()`` does inside the gate's own process, which reads the user's file once more.

The file that defines the workload often ends in ``check(...)`` and the training. When the gate's
process reads it and comes to that line, the class is there: the gate is run right there, and the
process ends without going on to the training.
"""

import os
from collections.abc import Callable
from typing import NoReturn

ENVIRONMENT = "SLUICE_INSIDE_GATE"
"""Set for the gate's process and all it starts."""

_awaited: tuple[str, Callable[[type], NoReturn]] | None = None


def await_class(qualified_name: str, then: Callable[[type], NoReturn]) -> None:
    """Call ``then`` with the class of this name when ``check()`` is called with it."""
    global _awaited
    _awaited = (qualified_name, then)


def reached(workload_type: type) -> bool:
    """Tell whether this is the gate's process, where ``check()`` starts no second gate.

    It does not return when the class is the one that is awaited.
    """
    if _awaited is not None and workload_type.__qualname__ == _awaited[0]:
        _awaited[1](workload_type)
    return bool(os.environ.get(ENVIRONMENT))
