"""A server process that forks children, which do some work and are killed with SIGKILL.

The server has imported all modules, so a fork takes milliseconds; a new interpreter would take
seconds for imports. The server has only one thread, so it can be forked safely.

There are two kinds of kills. *From outside*: the server kills the child a random time after the
child's start. *At a call*: the child kills itself just before a random system call that writes a
file, or after half of a log line.
"""

import ctypes
import mmap
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).parents[2]
_PR_SET_CHILD_SUBREAPER = 36
PHASES = ("start", "fitting", "checkpoint", "log", "journal", "trials")
"""Phases of a child. The child stores the index of its phase in one byte of shared memory."""

_ORPHAN_LIMIT_S = 90.0
"""Maximum time that a process may outlive its parent [s]. Two agents of Ray wait a minute for
their head process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillPlan:
    """The work, and how often and when it is killed."""

    work: Callable[[Path], object]
    """Importable function or object that can be pickled."""
    reference_folder: Path
    """Folder of a run without kills, whose duration determines the times of the kills."""
    killed_folder: Path
    """Folder of the run with kills."""
    kills: int
    """Number of kills."""
    num_parts: int
    """Number of equal parts of the work."""
    max_parts_per_child: float = 2.5
    """Maximum number of parts that a child completes before it is killed from outside."""
    early_kill_share: float = 0.15
    """Share of the kills from outside whose time is drawn from the start of the process. The others
    happen after the work has begun."""
    seed: int = 0
    call_phases: tuple[str, ...] = ("checkpoint", "log")
    """Half of the children are killed at a call, in one of these phases."""


@dataclass(slots=True, kw_only=True)
class KillResult:
    """Result of a run with kills."""

    phases: Counter[str] = field(default_factory=Counter)
    """Number of kills by phase of the child."""
    from_outside: int = 0
    """Number of kills from outside."""
    longest_orphan_s: float = 0.0
    """Longest time that a descendant of a killed child continued to run [s]."""
    seconds: float = 0.0
    error: str = ""

    @property
    def kills(self) -> int:
        return sum(self.phases.values())

    def summary(self, work_name: str, unchanged: str = "bits") -> str:
        """Return a line with the numbers of kills, and with what the kills did not change."""
        phases = ", ".join(f"{count} in {phase}" for phase, count in sorted(self.phases.items()))
        return (
            f"{work_name}: {self.kills} kills ({phases}), {self.from_outside} from outside, "
            f"same {unchanged}, in {self.seconds:.0f} s"
        )


class KillServer:
    """Client of the server process, for tests; a context manager."""

    def __enter__(self) -> "KillServer":
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from tests.support.kill_server import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *_error) -> None:
        self._process.communicate(timeout=20)

    def kill(self, plan: KillPlan) -> KillResult:
        """Run the work with all kills until it is complete."""
        pickle.dump(plan, self._process.stdin)
        self._process.stdin.flush()
        result: KillResult = pickle.load(self._process.stdout)
        if result.error:
            raise AssertionError(result.error)
        return result


def serve() -> None:
    """Process requests until stdin ends; runs in the server process."""
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of children goes to stderr
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _import_all()
    while (plan := _read_request(sys.stdin.buffer)) is not None:
        try:
            result = _kill_through(plan)
        except Exception:
            result = KillResult(error=traceback.format_exc())
        pickle.dump(result, responses)
        responses.flush()


def _read_request(requests: BinaryIO) -> KillPlan | None:
    try:
        return pickle.load(requests)
    except EOFError:
        return None


def _import_all() -> None:
    import pyarrow.dataset  # noqa: F401
    import torch

    from tests.support import killed_work  # noqa: F401

    torch.set_num_threads(1)
    # The first optimizer of a process takes a second for imports.
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()


def _kill_through(plan: KillPlan) -> KillResult:
    started, result = time.monotonic(), KillResult()
    rng = random.Random(plan.seed)
    start_s = _finish(plan, plan.reference_folder)
    part_s = (time.monotonic() - started - start_s) / plan.num_parts
    window_s = part_s * plan.max_parts_per_child
    while result.kills < plan.kills:
        phase = rng.choice(plan.call_phases) if rng.random() < 0.5 else None
        # The child is killed at a call of one of its first three writes in this phase.
        call = (phase, rng.randrange(1, 1 + 3 * _CALLS_PER_WRITE[phase])) if phase else None
        phase_byte = mmap.mmap(-1, 1)
        child = _fork(plan, plan.killed_folder, phase_byte, call)
        if call is None:
            if rng.random() < plan.early_kill_share:
                time.sleep(rng.uniform(0, start_s + window_s))
            else:
                _wait_until_begun(phase_byte)
                time.sleep(rng.uniform(0, window_s))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status):
            raise AssertionError(
                f"The work ended with {os.WEXITSTATUS(status)} after {result.kills} of "
                f"{plan.kills} kills: use more work."
            )
        assert os.WTERMSIG(status) == signal.SIGKILL
        result.phases[PHASES[phase_byte[0]]] += 1
        result.from_outside += call is None
        result.longest_orphan_s = max(result.longest_orphan_s, _wait_for_orphans())
    _finish(plan, plan.killed_folder)
    result.seconds = time.monotonic() - started
    return result


def _finish(plan: KillPlan, folder: Path) -> float:
    """Run the work without kills; return the time from the fork to the first work [s]."""
    started, phase_byte = time.monotonic(), mmap.mmap(-1, 1)
    child = _fork(plan, folder, phase_byte, None)
    _wait_until_begun(phase_byte)
    start_s = time.monotonic() - started
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"the work itself ended with status {status}"
    _wait_for_orphans()
    return start_s


def _wait_until_begun(phase_byte: mmap.mmap) -> None:
    deadline = time.monotonic() + 30
    while phase_byte[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.0005)


def _wait_for_orphans() -> float:
    """Wait until all adopted descendants of a child have ended; return the waiting time [s]."""
    started = time.monotonic()
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.002)
        except ChildProcessError:
            return time.monotonic() - started
        assert time.monotonic() - started < _ORPHAN_LIMIT_S, "a process outlived its killed parent"


def _fork(plan: KillPlan, folder: Path, phase_byte: mmap.mmap, call: tuple[str, int] | None) -> int:
    child = os.fork()
    if child:
        return child
    try:
        _instrument(phase_byte, call)
        plan.work(folder)
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 3
    os._exit(status)


_CALLS_PER_WRITE = {"checkpoint": 4, "log": 1, "journal": 2}
"""Number of points in one write at which a child may be killed."""


def _instrument(phase_byte: mmap.mmap, call: tuple[str, int] | None) -> None:
    """Make this process store its phase in ``phase_byte`` and die at ``call`` = (phase, number)."""
    from sluice.eventlog.event_log import EventLog
    from sluice.training import checkpoint
    from sluice.tuning.resumable.journal import StudyJournal
    from tests.support.synthetic import SineWorkload

    calls = Counter[str]()

    def on_call(phase: str) -> None:
        calls[phase] += 1
        if call is not None and (phase, calls[phase]) == call:
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def in_phase(phase: str):
        previous_phase, phase_byte[0] = phase_byte[0], PHASES.index(phase)
        yield
        phase_byte[0] = previous_phase or PHASES.index("trials")

    def record_phase(owner: object, name: str, phase: str) -> None:
        original = getattr(owner, name)

        def wrapper(*args, **kwargs):
            with in_phase(phase):
                on_call(phase)
                return original(*args, **kwargs)

        setattr(owner, name, wrapper)

    def count_calls(name: str) -> None:
        original = getattr(os, name)

        def wrapper(*args, **kwargs):
            if phase_byte[0] in (PHASES.index("checkpoint"), PHASES.index("journal")):
                on_call(PHASES[phase_byte[0]])
            return original(*args, **kwargs)

        setattr(os, name, wrapper)

    record_phase(checkpoint, "write_atomic", "checkpoint")
    record_phase(StudyJournal, "append", "journal")
    count_calls("fsync")
    count_calls("fdatasync")
    count_calls("write")
    count_calls("replace")
    original_write, original_loss = EventLog.write, SineWorkload.loss

    def write_or_kill(log, event, **fields):
        with in_phase("log"):
            if call == ("log", calls["log"] + 1):
                log._file = _HalfWriter(log._file)
            calls["log"] += 1
            original_write(log, event, **fields)

    def record_fitting(workload, output, y):
        phase_byte[0] = PHASES.index("fitting")
        return original_loss(workload, output, y)

    EventLog.write, SineWorkload.loss = write_or_kill, record_fitting


class _HalfWriter:
    """File that writes half of the content and then kills the process."""

    def __init__(self, file) -> None:
        self._file = file

    def write(self, content: bytes) -> None:
        self._file.write(content[: len(content) // 2])
        self._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
