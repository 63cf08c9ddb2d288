"""A process that has imported everything forks children that do some work, and kills them.

A new interpreter costs seconds of imports, a fork costs milliseconds; the child is a real process
and its end a real SIGKILL. The server has one thread, so that forking it is safe.

Moments are of two kinds. *From outside*: the server waits a random time after the child began and
kills it, wherever it is. *At a call*: the child kills itself just before a random one of the system
calls by which a file is written, or after half of a log line.
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
PLACES = ("start", "fitting", "checkpoint", "log", "journal", "trials")
"""Where a child may be; it says so in one byte of memory that both processes see."""


_ORPHAN_LIMIT_S = 90.0
"""Maximum time that a process may outlive the one that started it [s]. Two agents of Ray look for
its head process for a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Killing:
    """What to do, and how often to kill it."""

    work: Callable[[Path], object]
    """Importable, and picklable with its arguments."""
    whole: Path
    """Where it runs without being killed, to know how long it takes."""
    cut: Path
    """Where it is killed."""
    kills: int
    pieces: int
    """Parts of the work; a child lives for up to ``window_pieces`` of them."""
    window_pieces: float = 2.5
    start: float = 0.15
    """Share of the kills from outside that may come before the work has begun."""
    seed: int = 0
    calls: tuple[str, ...] = ("checkpoint", "log")
    """Places in which half of the children are killed at a call."""


@dataclass(slots=True, kw_only=True)
class Killed:
    """What happened."""

    places: Counter[str] = field(default_factory=Counter)
    """Where the children were when they died."""
    from_outside: int = 0
    longest_orphan_s: float = 0.0
    """How long a process of a killed child's lived on [s]."""
    seconds: float = 0.0
    error: str = ""

    @property
    def kills(self) -> int:
        return sum(self.places.values())

    def told(self, what: str, same: str = "bits") -> str:
        """Say in a line what happened."""
        places = ", ".join(f"{count} in {place}" for place, count in sorted(self.places.items()))
        return (
            f"{what}: {self.kills} kills ({places}), {self.from_outside} from outside, "
            f"same {same}, in {self.seconds:.0f} s"
        )


class KillServer:
    """The tests' side; use as a context manager."""

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

    def kill(self, killing: Killing) -> Killed:
        """Run the work to its end through all the kills."""
        pickle.dump(killing, self._process.stdin)
        self._process.stdin.flush()
        killed: Killed = pickle.load(self._process.stdout)
        if killed.error:
            raise AssertionError(killed.error)
        return killed


def serve() -> None:
    """Answer requests until the input ends; run in the server's process."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what children print is no answer
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _import_all()
    while (killing := _next(sys.stdin.buffer)) is not None:
        try:
            killed = _kill_through(killing)
        except Exception:
            killed = Killed(error=traceback.format_exc())
        pickle.dump(killed, answers)
        answers.flush()


def _next(requests: BinaryIO) -> Killing | None:
    try:
        return pickle.load(requests)
    except EOFError:
        return None


def _import_all() -> None:
    import pyarrow.dataset  # noqa: F401
    import torch

    from tests.support import killed_work  # noqa: F401

    torch.set_num_threads(1)
    # The first optimizer of a process imports for a second.
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()


def _kill_through(killing: Killing) -> Killed:
    began, killed = time.monotonic(), Killed()
    rng = random.Random(killing.seed)
    start_s = _finish(killing, killing.whole)
    piece_s = (time.monotonic() - began - start_s) / killing.pieces
    window_s = piece_s * killing.window_pieces
    while killed.kills < killing.kills:
        place = rng.choice(killing.calls) if rng.random() < 0.5 else None
        # Far enough to get on: at a call of the first few times that it comes there.
        call = (place, rng.randrange(1, 1 + 3 * _CALLS[place])) if place else None
        at = mmap.mmap(-1, 1)
        child = _fork(killing, killing.cut, at, call)
        if call is None:
            if rng.random() < killing.start:
                time.sleep(rng.uniform(0, start_s + window_s))
            else:
                _wait_for_begin(at)
                time.sleep(rng.uniform(0, window_s))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status):
            raise AssertionError(
                f"The work ended with {os.WEXITSTATUS(status)} after {killed.kills} of "
                f"{killing.kills} kills: give it more to do."
            )
        assert os.WTERMSIG(status) == signal.SIGKILL
        killed.places[PLACES[at[0]]] += 1
        killed.from_outside += call is None
        killed.longest_orphan_s = max(killed.longest_orphan_s, _wait_for_orphans())
    _finish(killing, killing.cut)
    killed.seconds = time.monotonic() - began
    return killed


def _finish(killing: Killing, folder: Path) -> float:
    """Return how long it took until the work had begun [s]."""
    began, at = time.monotonic(), mmap.mmap(-1, 1)
    child = _fork(killing, folder, at, None)
    _wait_for_begin(at)
    start_s = time.monotonic() - began
    status = os.waitpid(child, 0)[1]
    assert status == 0, f"the work itself ended with status {status}"
    _wait_for_orphans()
    return start_s


def _wait_for_begin(at: mmap.mmap) -> None:
    deadline = time.monotonic() + 30
    while at[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.0005)


def _wait_for_orphans() -> float:
    """Return how long it took until no child of a child was left; they become ours."""
    began = time.monotonic()
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.002)
        except ChildProcessError:
            return time.monotonic() - began
        assert time.monotonic() - began < _ORPHAN_LIMIT_S, "a process outlived the killed one"


def _fork(killing: Killing, folder: Path, at: mmap.mmap, call: tuple[str, int] | None) -> int:
    child = os.fork()
    if child:
        return child
    try:
        _watch(at, call)
        killing.work(folder)
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 3
    os._exit(status)


_CALLS = {"checkpoint": 4, "log": 1, "journal": 2}
"""System calls of one write, before each of which a child may die."""


def _watch(at: mmap.mmap, call: tuple[str, int] | None) -> None:
    """Make this process say where it is, and die at ``call``: (place, which of its calls)."""
    from sluice.eventlog.event_log import EventLog
    from sluice.training import checkpoint
    from sluice.tuning.resumable.journal import StudyJournal
    from tests.support.synthetic import SineWorkload

    calls = Counter[str]()

    def reach(place: str) -> None:
        calls[place] += 1
        if call is not None and (place, calls[place]) == call:
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def inside(place: str):
        before, at[0] = at[0], PLACES.index(place)
        yield
        at[0] = before or PLACES.index("trials")

    def said(owner: object, name: str, place: str) -> None:
        original = getattr(owner, name)

        def known(*given, **named):
            with inside(place):
                reach(place)
                return original(*given, **named)

        setattr(owner, name, known)

    def counted(name: str) -> None:
        original = getattr(os, name)

        def known(*given, **named):
            if at[0] in (PLACES.index("checkpoint"), PLACES.index("journal")):
                reach(PLACES[at[0]])
            return original(*given, **named)

        setattr(os, name, known)

    said(checkpoint, "write_atomic", "checkpoint")
    said(StudyJournal, "append", "journal")
    counted("fsync")
    counted("fdatasync")
    counted("write")
    counted("replace")
    write, loss = EventLog.write, SineWorkload.loss

    def write_or_half(log, event, **fields):
        with inside("log"):
            if call == ("log", calls["log"] + 1):
                log._file = _Half(log._file)
            calls["log"] += 1
            write(log, event, **fields)

    def fitting(workload, output, y):
        at[0] = PLACES.index("fitting")
        return loss(workload, output, y)

    EventLog.write, SineWorkload.loss = write_or_half, fitting


class _Half:
    """Writes half of what it is given, and dies."""

    def __init__(self, file) -> None:
        self._file = file

    def write(self, content: bytes) -> None:
        self._file.write(content[: len(content) // 2])
        self._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
