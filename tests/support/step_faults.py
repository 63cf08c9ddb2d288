"""A server process that forks a child for each training, and can plant a fault in the child.

The server has imported all modules, so a fork takes milliseconds; a new interpreter would take
seconds for imports.
"""

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PR_SET_CHILD_SUBREAPER = 36


class TrainingForks:
    """Client of the server process, for tests; a context manager."""

    def __enter__(self) -> "TrainingForks":
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.support.step_faults import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *_error) -> None:
        self._process.communicate(timeout=20)

    def train(self, spec, fault=None, *, handler: str = "exit", every_step: bool = True) -> int:
        """Train ``spec`` in a new process; return its exit code, negative for a signal.

        Args:
            spec: A fold run.
            fault: Function that a workload of ``tests.support.trained_sources`` calls at every
                loss; None for no fault.
            handler: Handler of SIGTERM: 'exit', as in a process pool, or 'default'.
            every_step: Write a checkpoint at nearly every step, regardless of its cost.
        """
        pickle.dump((spec, fault, handler, every_step), self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)


def serve() -> None:
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of children goes to stderr
    # Signals that an earlier test blocked or ignored would stay blocked or ignored here.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    import pyarrow.dataset  # noqa: F401
    import torch

    from tests.support import trained_sources  # noqa: F401

    torch.set_num_threads(1)
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        child = os.fork() or _train(*request)  # _train ends the child
        status = os.waitpid(child, 0)[1]
        while _reap():
            pass
        pickle.dump(os.waitstatus_to_exitcode(status), responses)
        responses.flush()


def _reap() -> bool:
    """Wait for the end of one orphaned loader process; return False if no process is left."""
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return False
    return True


def _train(spec, fault, handler, every_step):
    from sluice.training import checkpoint_writer
    from sluice.training.fold_run import train_fold_run
    from tests.support import trained_sources

    os.setsid()
    if handler == "exit":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if every_step:
        checkpoint_writer._MIN_INTERVAL_RATIO = checkpoint_writer._FIRST_DURATION_S = 0.0
    if fault is not None:
        trained_sources.FAULT = fault
    exit_code = 0
    try:
        train_fold_run(spec, lambda _event: None)
    except SystemExit as stop:
        exit_code = stop.code
    except BaseException:
        traceback.print_exc()
        exit_code = 3
    os._exit(exit_code)
