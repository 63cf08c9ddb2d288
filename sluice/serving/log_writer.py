"""A stream for the log that writes the lines of one turn of the event loop at once.

A batch of predictions answers several requests in the same turn, and each write to a file lets go
of the interpreter's lock, which the thread that computes has then for a while.
"""

import asyncio
import threading
from typing import TextIO


class LogWriter:
    """Writes whole lines, in the order of the calls; of any thread.

    Outside an event loop a line is written at once.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Keep a text until the end of the turn of the event loop."""
        with self._lock:
            self._lines.append(text)
            is_first = len(self._lines) == 1
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._write_lines()
        else:
            if is_first:  # else somebody is about to write
                loop.call_soon(self._write_lines)
        return len(text)

    def flush(self) -> None:
        """Do nothing: the end of the turn is near."""

    def _write_lines(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            if lines:
                self._stream.write("".join(lines))
                self._stream.flush()
