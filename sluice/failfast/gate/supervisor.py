"""Run the gate in a process of its own and enforce every time limit from outside (POC-11).

A loader that hangs, a forward pass that never ends, memory that runs out and a crash in native
code end the gate's process, never the caller's. The check it happened in fails, with the line of
code; the checks that do not depend on it run in a second process.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sluice.base.errors import SluiceError
from sluice.base.memory import available_bytes, proportional_bytes, resident_bytes
from sluice.config.poc_settings import TimeLimit
from sluice.failfast.gate.log import GateLog
from sluice.failfast.gate.messages import CRASH_FILE, PREPARING, Started, Task
from sluice.failfast.gate.plan import Plan, PlannedCheck
from sluice.failfast.gate.process import GateProcess, crash_place
from sluice.failfast.gate.request import GateRequest
from sluice.failfast.gate.timing import judge_whole_gate
from sluice.failfast.result import CheckResult, GateReport
from sluice.findings.finding import Finding
from sluice.findings.responses import FailureKind

Heard = Plan | Started | CheckResult
START = TimeLimit(typical_s=30.0, max_s=120.0)
"""For importing torch and the user's module: before it, no setting of the user's is known."""

_LOOK_S = 0.1
"""How often time and memory are looked at."""
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRun:
    """What the gate decided, and where its log lies."""

    report: GateReport
    log: Path | None
    """None when the folder cannot be written; the report then says so."""


@dataclass(frozen=True, slots=True)
class _Stop:
    """Why a process was ended, or ended by itself."""

    finding: Finding
    whole_gate: bool = False


@dataclass(slots=True, kw_only=True)
class _Progress:
    """What is known so far; the supervisor alone changes it."""

    started: float
    memory_bytes: int
    on_event: Callable[[Heard], None]
    log: GateLog
    plan: Plan | None = None
    results: dict[str, CheckResult] = field(default_factory=dict)
    running: str = ""
    running_since: float = 0.0

    def hear(self, message: Heard) -> None:
        match message:
            case Plan():
                if self.plan is not None:
                    return
                self.plan = message
            case Started(name=name):
                self.running, self.running_since = name, time.monotonic()
            case CheckResult():
                self.running = ""
                self.results[message.name] = message
        self.log.write(message)
        self.on_event(message)

    @property
    def left(self) -> tuple[PlannedCheck, ...]:
        checks = self.plan.checks if self.plan else ()
        return tuple(check for check in checks if check.name not in self.results)


def supervise(
    request: GateRequest,
    *,
    folder: Path,
    on_event: Callable[[Heard], None] = lambda _: None,
) -> GateRun:
    """Run the gate and report; the folder then holds its log and nothing else of it.

    Args:
        request: What is to be gated.
        folder: Where logs of gates are kept, on the disk that will hold the run's files; made when
            it is not there.
        on_event: Told what is planned, what begins and what was found, as it happens.

    Raises:
        SluiceError: The target cannot be opened: an unknown pipeline, a wrong setting, a module
            that does not import.
        KeyboardInterrupt: The user stopped it; the log says so.
    """
    with GateLog.open(folder, request) as log:
        scratch = _scratch(folder)
        progress = _Progress(
            started=time.monotonic(),
            memory_bytes=available_bytes(),
            on_event=on_event,
            log=log,
        )
        try:
            report = _report(request, scratch, progress)
        except BaseException as error:
            log.stopped(_told(error), check=progress.running)
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        log.complete(report)
        return GateRun(report=report, log=log.path)


def _report(request: GateRequest, scratch: Path, progress: _Progress) -> GateReport:
    while True:
        stop = _one_process(request, scratch, progress)
        if stop is None or stop.whole_gate or not progress.left:
            break
    assert progress.plan is not None
    for check in progress.left:  # the time of the whole gate is up
        progress.hear(check.result(_not_run(), 0.0))
    seconds = time.monotonic() - progress.started
    progress.hear(judge_whole_gate(seconds, progress.plan.whole_gate))
    return GateReport(
        level=request.level,
        workload=progress.plan.workload,
        results=tuple(progress.results.values()),
        seconds=seconds,
    )


def _one_process(request: GateRequest, scratch: Path, progress: _Progress) -> _Stop | None:
    """Run what is left in one process; None when it came to its end."""
    task = Task(request=request, scratch=scratch, done=tuple(progress.results.values()))
    begun = time.monotonic()
    with GateProcess(task) as process:
        while True:
            if not process.has_message(_LOOK_S):
                if process.has_ended() and not process.has_message(0):
                    crashed = _ended(process.status())
                    return _record(progress, crashed, crash_place(scratch / CRASH_FILE), begun)
                stop = _overdue(progress, begun) or _too_large(process, progress)
                if stop is None:
                    continue
                where = process.where()
                process.kill()
                return _record(progress, stop, where, begun)
            message = process.receive()
            if message is None:
                crashed = _ended(process.status())
                return _record(progress, crashed, crash_place(scratch / CRASH_FILE), begun)
            if isinstance(message, SluiceError):
                raise message
            if message == "finished":
                return None
            if isinstance(message, Plan | Started | CheckResult):
                progress.hear(message)


def _record(progress: _Progress, stop: _Stop, where: str, begun: float) -> _Stop:
    """Write what stopped the process to the check that was running.

    Raises:
        SluiceError: No check was running: the user's module does not import in time, say.
    """
    finding = stop.finding
    summary = f"{finding.summary.rstrip('.')} {where}." if where else finding.summary
    finding = Finding(outcome="fail", summary=summary, kind=finding.kind, fix=finding.fix)
    checks = {check.name: check for check in progress.left}
    name = progress.running
    if name == PREPARING and checks:
        name = next(iter(checks))
    if name not in checks:
        if stop.whole_gate:  # between two checks: the rest is skipped with this reason
            return stop
        cause, fix = finding.response
        raise SluiceError(f"Before the first check: {finding.summary}", cause=cause, fix=fix)
    seconds = time.monotonic() - (progress.running_since or begun)
    progress.hear(checks[name].result(finding, seconds))
    return stop


def _overdue(progress: _Progress, begun: float) -> _Stop | None:
    now = time.monotonic()
    plan = progress.plan
    if plan is not None and now - progress.started > plan.whole_gate.max_s:
        return _Stop(_over_time("The whole gate", plan.whole_gate), whole_gate=True)
    if plan is None or not progress.running:
        limit, since, what = START, begun, "The start"
    elif progress.running == PREPARING:
        limit, since, what = plan.preparing, progress.running_since, "Loading the data again"
    else:
        limit = next(check.limit for check in progress.left if check.name == progress.running)
        since, what = progress.running_since, "It"
    return _Stop(_over_time(what, limit)) if now - since > limit.max_s else None


def _over_time(what: str, limit: TimeLimit) -> Finding:
    return Finding(
        outcome="fail",
        summary=f"{what} was stopped after {limit.max_s:g} s, the most that is allowed, "
        f"while it was",
        kind="gate over time",
    )


def _too_large(process: GateProcess, progress: _Progress) -> _Stop | None:
    share = progress.plan.max_memory_share if progress.plan else 1.0
    used, limit = resident_bytes(process.pid), share * progress.memory_bytes
    if used > limit:  # memory that workers share was counted once for each of them
        used = proportional_bytes(process.pid)
    if used <= limit:
        return None
    return _Stop(
        Finding(
            outcome="fail",
            summary=f"It was stopped at {used / _GIB:.1f} GiB of memory; {limit / _GIB:.1f} GiB "
            f"({share:.0%} of what was free) are allowed, while it was",
            kind="out of memory",
        )
    )


def _ended(status: int) -> _Stop:
    kind: FailureKind = "process ended"
    if status == -9:
        what = "Its process was ended by signal 9 (SIGKILL)"
        kind = "out of memory"
    elif status < 0:
        what = f"Its process was ended by signal {-status} ({_signal_name(-status)})"
    else:
        what = f"Its process ended with status {status} and no answer"
    return _Stop(Finding(outcome="fail", summary=what, kind=kind))


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _not_run() -> Finding:
    return Finding(
        outcome="skipped",
        summary="Not run, because the time of the whole gate was up.",
        fix="Correct the checks that took long first, or raise poc.times.whole_gate.",
    )


def _scratch(folder: Path) -> Path:
    """Make the folder that checks may write in, on the disk of ``folder``.

    On a disk that cannot be written it is only named, and the checks that write will say so.
    """
    try:
        return Path(tempfile.mkdtemp(dir=folder, prefix=".scratch-"))
    except OSError:
        return folder / ".scratch"


def _told(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by the user"
    return error.what if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}"
