"""The supervisor's handle of the gate's child process: start, receive, query, end."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import sluice
from sluice.failfast.gate.messages import CodeLocation, GateTask, SupervisorMessage, WorkerMessage
from sluice.failfast.gate.nested import INSIDE_GATE_VARIABLE

_START_CODE = (
    "import sys; sys.path[:] = {path!r}\n"
    "from sluice.base.garbage_collection import collection_paused\n"
    "with collection_paused():\n"
    "    from sluice.failfast.gate.child import serve\n"
    "serve({pipe_fd})"
)
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_STACK_FRAME_PATTERN = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')
_REPLY_TIMEOUT_S = 0.5
"""Maximum wait for the reply to "where" [s]. Native code that blocks the interpreter prevents a
reply."""


class GateProcess:
    """One child process; a context manager that ends the process and every process it started.

    The process is started with ``python -c``, because ``multiprocessing`` would run the caller's
    main module first. The output of user code goes to stderr: stdout is for results.
    """

    def __init__(self, task: GateTask) -> None:
        supervisor_end, child_end = Pipe()
        package_folder = str(Path(sluice.__file__).parent.parent)
        import_folders = [*(os.path.abspath(folder) for folder in sys.path), package_folder]
        self._pipe: Connection[SupervisorMessage, WorkerMessage] = supervisor_end
        with child_end:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    _START_CODE.format(path=import_folders, pipe_fd=child_end.fileno()),
                ],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                env={**os.environ, **_ONE_THREAD, "PYTHONHASHSEED": "0", INSIDE_GATE_VARIABLE: "1"},
                start_new_session=True,  # kill() then ends its worker processes, too
            )
        self.pid = self._process.pid
        with suppress(OSError):  # the process has already ended, so receive() will return None
            self._pipe.send(task)

    def __enter__(self) -> "GateProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._pipe.close()

    def has_message(self, timeout_s: float) -> bool:
        """Return whether a message or the end of the process arrives within this time."""
        return self._pipe.poll(timeout_s)

    def has_ended(self) -> bool:
        """Return whether the process has ended. A process it started may keep the pipe open."""
        return self._process.poll() is not None

    def receive(self) -> WorkerMessage | None:
        """Return the next message; None when the process has ended."""
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            return None

    def locate_running_code(self) -> str:
        """Return "at file:line in function" of the running code, or a note on native code."""
        with suppress(OSError):
            self._pipe.send("where")
            while self._pipe.poll(_REPLY_TIMEOUT_S):
                message = self.receive()
                if message is None:
                    break
                if isinstance(message, CodeLocation):
                    return message.text
        return "inside native code that blocks the Python interpreter"

    def kill(self) -> int:
        """End the process and all processes it started; return its exit status."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def exit_status(self) -> int:
        """Wait for the end of the process, or kill it after 5 s; return its exit status.

        The status is negative if a signal ended the process.
        """
        try:
            return self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:  # the process closed its end of the pipe, but still runs
            return self.kill()


def crash_location(file: Path) -> str:
    """Return the innermost line of user code in a crash report; without user code, of any code.

    Args:
        file: Report written by ``faulthandler``; "" is returned for a missing or empty file.
    """
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return ""
    frames = list(_STACK_FRAME_PATTERN.finditer(text))
    user_frames = [
        f for f in frames if "site-packages" not in f["file"] and "/lib/" not in f["file"]
    ]
    innermost = (user_frames or frames)[:1]
    if not innermost:
        return ""
    frame = innermost[0]
    return f"at {frame['file']}:{frame['line']} in {frame['name']}"
