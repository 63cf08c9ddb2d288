"""The server's handle of a challenger's process: starts it, requests predictions, detects its end.

A challenger is new code on real traffic. Because it has its own process, a crash, a hang or a
memory leak affects only this process. After a crash, the server reads an end of file.

Shape legend: M = networks, N = elements of a request, such as windows, O = outputs.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe

import numpy as np
from pydantic import ValidationError

from sluice.cluster.process import worker_sys_path
from sluice.serving import wire_protocol
from sluice.serving.arm import EnsembleOutput, NetworkFailed
from sluice.serving.deployed import Pause
from sluice.serving.model_arrays import ModelArrays, count_elements

# A service manager sends SIGTERM to all processes of the service. The server then drains, and this
# process must answer requests meanwhile, so it ignores SIGTERM and SIGINT.
# end_with_parent sets PR_SET_PDEATHSIG. It is called before the imports that take seconds.
_START_CODE = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.path[:] = {path!r}
from sluice.training.orphans import end_with_parent
end_with_parent({parent})
from sluice.serving.arm_child import serve
serve({pipe_fd}, crash_fd={crash_fd})
"""
_STACK_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
"""A stack frame in the output of faulthandler: file, line and function."""
_MAX_FRAMES = 5
"""Maximum number of stack frames that are reported for a crash, counted from the innermost."""


class ArmProcess:
    """One process that holds one model.

    Create the object in a thread that lives as long as the process should: on Linux the system
    kills the process when the thread ends. The thread also ends if SIGKILL kills the server.
    """

    def __init__(
        self, loader: wire_protocol.LoaderSpec, candidate: str, *, environment: Mapping[str, str]
    ) -> None:
        """Start the process and return at once, while the process loads the model.

        Args:
            loader: How the process loads its model.
            candidate: Candidate digest to load.
            environment: All environment variables of the process.

        Raises:
            OSError: The system cannot create the process or its pipe.
        """
        self.exit_reason: str | None = None
        """How the process ended, such as "ended by signal SIGSEGV"; None while it runs."""
        self._crash_frames: list[str] = []
        """Stack frames of the crash; empty without a crash."""
        self._exchange_lock = threading.Lock()
        """Held by the one caller that exchanges messages with the process."""
        self._end_lock = threading.Lock()
        """Held while the process is killed, or while its end is checked."""
        self.is_user_waiting = False
        """Whether a user's request (a call of ``predict`` without ``pause``) waits for its turn."""
        self._pending_since: float | None = None
        """Time since which the process has owed a reply [s, monotonic]; None without a request. It
        is set when a request is sent, and again after each pause."""
        self._crash_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        server_end, child_end = Pipe()
        self._pipe: Connection[bytes, bytes] = server_end
        start_code = _START_CODE.format(
            path=worker_sys_path(),
            parent=os.getpid(),
            pipe_fd=child_end.fileno(),
            crash_fd=self._crash_file.fileno(),
        )
        try:
            with child_end:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", start_code],
                    pass_fds=[child_end.fileno(), self._crash_file.fileno()],
                    stdin=subprocess.DEVNULL,
                    # User code may print request data, which must never be logged.
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=dict(environment),
                    start_new_session=True,  # so that end() kills the process with its children
                )
        except OSError:
            server_end.close()
            self._crash_file.close()
            raise
        self.pid = self._process.pid
        request = wire_protocol.LoadRequest(loader=loader, candidate=candidate)
        with suppress(OSError):  # the process has already ended: wait_for_model reports it
            server_end.send_bytes(request.model_dump_json().encode())

    def wait_for_model(self, timeout_s: float) -> wire_protocol.ModelInfo | str | None:
        """Wait until the process has loaded its model.

        Args:
            timeout_s: Longest wait [s].

        Returns:
            Description of the loaded model; a text that says why the model did not load; None if
            the timeout passed.
        """
        try:
            if not self._pipe.poll(timeout_s):
                return None
            frame = self._pipe.recv_bytes(wire_protocol.MAX_BYTES)
            if frame[:1] == wire_protocol.LOAD_FAILED:
                return f"did not load: {frame[1:].decode(errors='replace')}"
            return wire_protocol.ModelInfo.model_validate_json(frame[1:])
        except (EOFError, OSError, ValidationError):
            self._kill_and_record("")
            return self.exit_reason

    def predict(self, x: ModelArrays, pause: Pause | None) -> EnsembleOutput:
        """Return the output of each network (M, N, O). Only one caller at a time uses the process.

        Args:
            x: Inputs of N elements.
            pause: Called before each network, unless a user's request waits. None for a user's
                request, which is never interrupted.

        Raises:
            NetworkFailed: The network raised an error, or the process has ended.
        """
        is_user_request = pause is None
        if is_user_request:
            self.is_user_waiting = True
        with self._exchange_lock:
            if is_user_request:
                self.is_user_waiting = False
            if self.exit_reason is not None:
                raise NetworkFailed(self._error_site())
            self._pending_since = time.monotonic()
            try:
                return self._exchange(x, pause)
            except (EOFError, OSError):
                self._kill_and_record("")
            except (wire_protocol.InvalidFrame, ValidationError):
                self._kill_and_record("was ended: it sent an invalid frame")
            finally:
                self._pending_since = None
        raise NetworkFailed(self._error_site())

    def _exchange(self, x: ModelArrays, pause: Pause | None) -> EnsembleOutput:
        pipe = self._pipe
        pipe.send_bytes(
            wire_protocol.pack_inputs(
                wire_protocol.PREDICT if pause is None else wire_protocol.PREDICT_INTERRUPTIBLE, x
            )
        )
        while (frame := pipe.recv_bytes(wire_protocol.MAX_BYTES))[:1] == wire_protocol.PAUSED:
            if pause is not None and not self.is_user_waiting:
                pause()
            self._pending_since = time.monotonic()
            pipe.send_bytes(wire_protocol.CONTINUE)
        if frame[:1] == wire_protocol.RAISED:
            site = wire_protocol.ErrorSite.model_validate_json(frame[1:])
            raise NetworkFailed({"error": site.error, "at": list(site.at)})
        if frame[:1] != wire_protocol.OUTPUT:
            raise wire_protocol.InvalidFrame("the frame is neither an output nor an error")
        output: EnsembleOutput = wire_protocol.unpack(frame, np.float64)
        if output.ndim != 3 or output.shape[1] != count_elements(x):
            raise wire_protocol.InvalidFrame(
                f"the output for {count_elements(x)} elements has the shape {output.shape}"
            )
        return output

    def pending_s(self, now: float) -> float:
        """Return how long the process has owed a reply at ``now`` [s]; 0 without a request.

        Args:
            now: Current time [s, monotonic].
        """
        pending_since = self._pending_since
        return 0.0 if pending_since is None else now - pending_since

    def resident_bytes(self) -> int:
        """Return the resident memory of the process [bytes]; 0 if it has ended."""
        import psutil

        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def has_ended(self) -> bool:
        """Return whether the process has ended, even if one of its children keeps the pipe open."""
        with self._end_lock:
            return self.exit_reason is not None or self._process.poll() is not None

    def end(self, reason: str) -> None:
        """End the process and its children and close every handle; a second call does nothing.

        Args:
            reason: New ``exit_reason``. "" if the process has ended by itself: its exit status is
                then the reason.
        """
        self._kill_and_record(reason)
        with self._exchange_lock:  # a caller that waited for output has read the end of file by now
            self._pipe.close()
            self._crash_file.close()

    def _kill_and_record(self, reason: str) -> None:
        """Kill the process group, and record how the process ended; see ``end``."""
        with self._end_lock:
            if self.exit_reason is not None:
                return
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            status = self._process.wait()  # prevents a zombie process
            self._crash_frames = self._read_crash_frames()
            self.exit_reason = reason or _describe_exit(status)

    def _read_crash_frames(self) -> list[str]:
        """Return the innermost stack frames in the output of faulthandler, the innermost last."""
        self._crash_file.seek(0)
        text = self._crash_file.read(100_000).decode(errors="replace")
        crashed_thread = text.partition("Current thread")[2].partition("\n\n")[0]
        frames = [
            f"{file}:{line} {name}" for file, line, name in _STACK_FRAME.findall(crashed_thread)
        ]
        return frames[:_MAX_FRAMES][::-1]

    def _error_site(self) -> dict[str, object]:
        return {"error": f"process {self.exit_reason}", "at": self._crash_frames}


def _describe_exit(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = str(-status)
    return f"ended by signal {name}"
