"""A timer whose end is put off at nearly every request, which costs an event loop nothing.

The call that the event loop was asked for stays; when it comes too early, it asks for another one.
"""

import asyncio
from collections.abc import Callable

_TICK_S = 0.001
"""Resolution of uvloop's timers."""


class LazyTimer:
    """Calls a function once a moment is reached, unless it is put off or cancelled before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        self._loop = loop
        self._on_end = on_end
        self._ends_at: float | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    def set(self, ends_at: float | None) -> None:
        """Set the moment [s, time of the event loop]; None for none."""
        self._ends_at = ends_at
        if ends_at is None:
            return
        if self._handle is not None:
            if self._rings_at <= ends_at:
                return
            self._handle.cancel()
        self._rings_at = ends_at
        self._handle = self._loop.call_at(ends_at, self._ring)

    def cancel(self) -> None:
        """End it for good."""
        self._ends_at = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        ends_at = self._ends_at
        if ends_at is None:
            return
        if self._loop.time() < ends_at - _TICK_S:
            self.set(ends_at)
            return
        self._ends_at = None
        self._on_end()
