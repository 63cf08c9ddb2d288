"""The server's side of a challenger's process: start it, ask it, know how it ended.

A challenger is new code on real traffic. In a process of its own a crash, a hang or a leak ends
that process and nothing else: the server reads an end of file where an answer should be.

Shape legend: M = networks, N = windows, L = rows of a window, D = features, O = outputs.
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
from numpy.typing import NDArray
from pydantic import ValidationError

from sluice.cluster.process import worker_path
from sluice.serving import frames
from sluice.serving.arm import NetworkFailed, Output
from sluice.serving.deployed import Pause

# Signals that a terminal or a service manager sends to a whole group are the server's to decide
# about: it drains, and the process must answer meanwhile. PR_SET_PDEATHSIG before the imports.
_START = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.path[:] = {path!r}
from sluice.training.orphans import end_with_parent
end_with_parent({parent})
from sluice.serving.arm_child import serve
serve({handle}, crash={crash})
"""
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_FRAMES = 5
"""Innermost calls of a crash that are told."""


class ArmProcess:
    """One process that holds one model.

    To be started by a thread that lives as long as the process should: on Linux the system ends the
    process when that thread is gone, the server's own end by SIGKILL included.
    """

    def __init__(
        self, recipe: frames.Recipe, candidate: str, *, environment: Mapping[str, str]
    ) -> None:
        """Start it; it loads meanwhile.

        Args:
            recipe: How it gets at its model.
            candidate: Digest of what it must load.
            environment: All environment variables that it sees.

        Raises:
            OSError: The system has no room for a process or its handles.
        """
        self.how: str | None = None
        """How it ended, to follow 'its process'; None while it lives."""
        self._at: list[str] = []
        self._turn = threading.Lock()
        self._ending = threading.Lock()
        self.live_waits = False
        """Whether a caller without a pause waits for its turn."""
        self._asked_at: float | None = None
        self._crash = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end
        here, there = Pipe()
        self._pipe: Connection[bytes, bytes] = here
        start = _START.format(
            path=worker_path(),
            parent=os.getpid(),
            handle=there.fileno(),
            crash=self._crash.fileno(),
        )
        try:
            with there:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", start],
                    pass_fds=[there.fileno(), self._crash.fileno()],
                    stdin=subprocess.DEVNULL,
                    # Anybody's code may print what a client sent; a log never holds that.
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=dict(environment),
                    start_new_session=True,  # so that what it starts ends with it
                )
        except OSError:
            here.close()
            self._crash.close()
            raise
        self.pid = self._process.pid
        order = frames.Order(recipe=recipe, candidate=candidate)
        with suppress(OSError):  # dead already: whoever waits for its card hears of it
            here.send_bytes(order.model_dump_json().encode())

    def card(self, timeout_s: float) -> frames.Card | str | None:
        """Return what it loaded, or what became of it; None when it said nothing in time.

        Args:
            timeout_s: Longest wait.
        """
        try:
            if not self._pipe.poll(timeout_s):
                return None
            frame = self._pipe.recv_bytes(frames.MAX_BYTES)
            if frame[:1] == frames.NOT_LOADED:
                return f"did not load: {frame[1:].decode(errors='replace')}"
            return frames.Card.model_validate_json(frame[1:])
        except (EOFError, OSError, ValidationError):
            self._finish("")
            return self.how

    def ask(self, x_NLD: NDArray[np.float32], pause: Pause | None) -> Output:
        """Return what each network says (M, N, O); one caller at a time.

        Args:
            x_NLD: Windows (N, L, D).
            pause: Called between two networks, unless a caller without a pause waits.

        Raises:
            NetworkFailed: The network raised, or the process has ended.
        """
        is_live = pause is None
        if is_live:
            self.live_waits = True
        with self._turn:
            if is_live:
                self.live_waits = False
            if self.how is not None:
                raise NetworkFailed(self._place())
            self._asked_at = time.monotonic()
            try:
                return self._converse(x_NLD, pause)
            except (EOFError, OSError):
                self._finish("")
            except (frames.BadFrame, ValidationError):
                self._finish("was ended: it answered what is no answer")
            finally:
                self._asked_at = None
        raise NetworkFailed(self._place())

    def _converse(self, x_NLD: NDArray[np.float32], pause: Pause | None) -> Output:
        pipe = self._pipe
        pipe.send_bytes(frames.pack(frames.ASK if pause is None else frames.ASK_IN_STEPS, x_NLD))
        while (frame := pipe.recv_bytes(frames.MAX_BYTES))[:1] == frames.STOPPED:
            if pause is not None and not self.live_waits:
                pause()
            self._asked_at = time.monotonic()
            pipe.send_bytes(frames.GO_ON)
        if frame[:1] == frames.RAISED:
            place = frames.Place.model_validate_json(frame[1:])
            raise NetworkFailed({"error": place.error, "at": list(place.at)})
        if frame[:1] != frames.OUTPUT:
            raise frames.BadFrame("neither an output nor an error")
        output: Output = frames.unpack(frame, np.float64)
        if output.ndim != 3 or output.shape[1] != len(x_NLD):
            raise frames.BadFrame(f"{output.shape} for {len(x_NLD)} windows")
        return output

    def asked_s(self, now: float) -> float:
        """Return how long it has owed an answer by ``now`` [s, monotonic]; 0 when it owes none."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else now - asked_at

    def resident_bytes(self) -> int:
        """Return its resident memory [bytes]; 0 when it is gone."""
        import psutil

        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def has_ended(self) -> bool:
        """Tell whether it is gone, though what it started may hold the pipe open."""
        with self._ending:
            return self.how is not None or self._process.poll() is not None

    def end(self, reason: str) -> None:
        """End it and all it started, and let go of every handle; a second time does nothing.

        Args:
            reason: Why, to follow 'its process'; "" when it ended by itself.
        """
        self._finish(reason)
        with self._turn:  # whoever asks reads an end of file by now
            self._pipe.close()
            self._crash.close()

    def _finish(self, reason: str) -> None:
        with self._ending:
            if self.how is not None:
                return
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            status = self._process.wait()  # no zombie stays
            self._at = self._crash_frames()
            self.how = reason or _named(status)

    def _crash_frames(self) -> list[str]:
        """Return the innermost calls, of what the process said when it crashed."""
        self._crash.seek(0)
        text = self._crash.read(100_000).decode(errors="replace")
        crashed = text.partition("Current thread")[2].partition("\n\n")[0]
        found = [f"{file}:{line} {name}" for file, line, name in _FRAME.findall(crashed)]
        return found[:_FRAMES][::-1]

    def _place(self) -> dict[str, object]:
        return {"error": f"process {self.how}", "at": self._at}


def _named(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = str(-status)
    return f"ended by signal {name}"
