"""Delays SIGTERM until a training has finished its step and written a checkpoint."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Termination:
    """Records a received SIGTERM, and ends the process when its state is stored."""

    def __init__(self) -> None:
        self.is_requested = False
        """Whether SIGTERM was received and not yet handled."""
        self._previous_handler: Any = None

    def end_if_requested(self) -> None:
        """Handle a received SIGTERM with the handler that was in effect before the delay.

        That handler ends the process or raises an exception, for example ``SystemExit`` in the
        process of a pool and ``KeyboardInterrupt`` in the command line. Does nothing without a
        SIGTERM.
        """
        if not self.is_requested:
            return
        self.is_requested = False
        signal.signal(signal.SIGTERM, self._previous_handler)
        signal.raise_signal(signal.SIGTERM)


@contextlib.contextmanager
def delayed_termination() -> Iterator[Termination]:
    """Delay SIGTERM inside the context.

    The code inside ends the process with ``end_if_requested`` once its state is stored. At the end
    of the context a delayed signal is handled in any case. Nothing is delayed if the current
    handler is not written in Python, or in another thread than the main thread, because Python
    allows handlers only in the main thread.
    """
    termination = Termination()
    previous_handler = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or previous_handler is None:
        yield termination
        return

    def remember(*_signal: Any) -> None:
        termination.is_requested = True

    termination._previous_handler = previous_handler
    signal.signal(signal.SIGTERM, remember)
    try:
        yield termination
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
        termination.end_if_requested()
