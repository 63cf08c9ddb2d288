"""A timer for deadlines that move with nearly every request, at almost no cost for the event loop.

Moving the deadline to a later time keeps the scheduled callback. If the callback then runs before
the deadline, it schedules another callback.
"""

import asyncio
from collections.abc import Callable

_TICK_S = 0.001
"""Resolution of the timers of uvloop [s]. A callback may run too early by at most this time."""


class LazyTimer:
    """Calls a function at a deadline, unless the deadline is moved or cancelled before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_deadline: Callable[[], None]) -> None:
        self._loop = loop
        self._on_deadline = on_deadline
        self._deadline: float | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._callback_at = 0.0

    def set(self, deadline: float | None) -> None:
        """Set the deadline [s, time of the event loop]; None for no deadline."""
        self._deadline = deadline
        if deadline is None:
            return
        if self._handle is not None:
            if self._callback_at <= deadline:
                return
            self._handle.cancel()
        self._callback_at = deadline
        self._handle = self._loop.call_at(deadline, self._on_timer)

    def cancel(self) -> None:
        """Cancel the deadline and the scheduled callback."""
        self._deadline = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _on_timer(self) -> None:
        self._handle = None
        deadline = self._deadline
        if deadline is None:
            return
        if self._loop.time() < deadline - _TICK_S:
            self.set(deadline)
            return
        self._deadline = None
        self._on_deadline()
