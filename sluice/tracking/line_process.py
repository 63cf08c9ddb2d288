"""Sends lines to a separate process without blocking; only ``close`` waits for that process.

The sender may be a training, which must not be delayed by a process that is slow, hangs or has
ended.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from sluice.base.redaction import redact
from sluice.tracking.client_process import ClientFailed, package_environment

_MAX_PENDING_BYTES = 16 * 1024 * 1024
"""Maximum size of the lines that wait in memory. An epoch of a fold run needs about 300 bytes."""


class LineProcess:
    """A process that reads lines until stdin ends, and a pipe to it that never blocks.

    Lines that do not fit into the pipe wait in memory until the next call of ``send``.

    Args:
        module: Module to run with ``python -m``.
        folder: Working folder of the process.
        environ: Environment variables of the process; this package is added to PYTHONPATH.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, module: str, *, folder: Path, environ: Mapping[str, str]) -> None:
        self._stderr_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close and kill
        self._pending_bytes = bytearray()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            env=package_environment(environ),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr_file,
            # With a new session, Ctrl-C does not reach the process, and one kill also ends the
            # child processes.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._stdin_fd = self._process.stdin.fileno()
        os.set_blocking(self._stdin_fd, False)

    def send(self, line: bytes) -> None:
        """Send one line, which ends with a newline; returns at once.

        Raises:
            ClientFailed: The process has ended, or was killed because it is too slow.
        """
        self._pending_bytes += line
        if len(self._pending_bytes) > _MAX_PENDING_BYTES:
            self.kill()
            raise ClientFailed("the sending process is too slow")
        self._write()

    def close(self, timeout_s: float) -> None:
        """End the process after it has read all lines, and wait for it.

        Raises:
            ClientFailed: The process failed, or was killed because it exceeded the time limit.
        """
        deadline = time.monotonic() + timeout_s
        try:
            while self._pending_bytes and time.monotonic() < deadline:
                select.select([], [self._stdin_fd], [], max(0.0, deadline - time.monotonic()))
                self._write()
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise ClientFailed(f"not finished {timeout_s:g} s after the last event") from None
        finally:
            reason = self.kill()
        if reason:
            raise ClientFailed(reason)

    def kill(self) -> str:
        """Kill the process and its children; return why it failed, or '' if it did not fail."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        exit_code = self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if self._stderr_file.closed:
            return ""
        with self._stderr_file:
            self._stderr_file.seek(0)
            error_lines = self._stderr_file.read().decode(errors="replace").strip().splitlines()
        if exit_code == 0:
            return ""
        return redact(error_lines[-1]).rstrip(".") if error_lines else f"exit code {exit_code}"

    def _write(self) -> None:
        try:
            while self._pending_bytes:
                del self._pending_bytes[: os.write(self._stdin_fd, self._pending_bytes)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            raise ClientFailed(self.kill() or "the sending process ended early") from None
