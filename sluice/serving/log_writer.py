"""Log stream that writes the lines of one event loop iteration together.

Each write to a file releases the interpreter lock. A thread that computes predictions then takes
the lock, and the event loop must wait for it. As a batch of predictions answers several requests
in the same iteration, writing their log lines together avoids most of these waits.
"""

import asyncio
import threading
from typing import TextIO


class LogWriter:
    """Writes whole lines in the order of the calls; may be used from any thread.

    Outside an event loop, a line is written immediately.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Buffer a text until the end of the event loop iteration."""
        with self._lock:
            self._lines.append(text)
            is_first = len(self._lines) == 1
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._write_lines()
        else:
            if is_first:  # otherwise the write is already scheduled
                loop.call_soon(self._write_lines)
        return len(text)

    def flush(self) -> None:
        """Do nothing, because the lines are written at the end of the iteration."""

    def _write_lines(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            if lines:
                self._stream.write("".join(lines))
                self._stream.flush()
