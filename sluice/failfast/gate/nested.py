"""A script that calls ``check()`` is read once more by the gate's process; it stops there."""

from collections.abc import Iterator
from contextlib import contextmanager

_inside = False


class ReachedInside(BaseException):
    """The script came to its own ``check()``; not an error, so no ``except Exception`` eats it."""

    def __init__(self, workload_type: type) -> None:
        super().__init__(workload_type)
        self.workload_type = workload_type


@contextmanager
def inside_gate() -> Iterator[None]:
    """Mark that a script is being read by the gate's process."""
    global _inside
    _inside = True
    try:
        yield
    finally:
        _inside = False


def stop_if_inside(workload_type: type) -> None:
    """End the reading of the script here, when it is the gate's process that reads it.

    Raises:
        ReachedInside: It is.
    """
    if _inside:
        raise ReachedInside(workload_type)
