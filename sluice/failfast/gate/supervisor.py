"""Runs the gate in a child process and enforces its time and memory limits from outside.

A loader that hangs, a forward pass that does not return, exhausted memory and a crash in native
code end the gate's process, never the caller's process. The running check then fails, with the line
of code. The checks that do not depend on the failed check run in another process.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sluice.base.cpu_wait import cpu_wait_s
from sluice.base.errors import SluiceError
from sluice.base.memory import available_bytes, proportional_bytes, resident_bytes
from sluice.config.poc_settings import TimeLimit
from sluice.failfast.gate.log import GateLog
from sluice.failfast.gate.messages import CRASH_FILE, RELOADING_DATA, CheckStarted, GateTask
from sluice.failfast.gate.plan import GatePlan, PlannedCheck
from sluice.failfast.gate.process import GateProcess, crash_location
from sluice.failfast.gate.request import GateRequest
from sluice.failfast.gate.timing import check_total_time
from sluice.failfast.result import CheckResult, GateReport
from sluice.findings.catalogue import FaultName
from sluice.findings.check_outcome import CheckOutcome

GateEvent = GatePlan | CheckStarted | CheckResult
"""Event that the supervisor logs and passes to its caller."""

STARTUP_LIMIT = TimeLimit(typical_s=30.0, max_s=120.0)
"""Time limit for importing torch and the user's module. This limit is no setting, because the
settings are known only after the import."""

_POLL_S = 0.1
"""Interval at which time and memory are checked [s]."""
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRun:
    """Report of a gate run, and the path of its log."""

    report: GateReport
    log: Path | None
    """Path of the log; None if the folder is not writable. A check reports such a folder."""


@dataclass(frozen=True, slots=True)
class _Stop:
    """Reason why a process was ended, or ended unexpectedly."""

    finding: CheckOutcome
    ends_gate: bool = False
    """Whether the remaining checks must not run in another process."""


@dataclass(slots=True, kw_only=True)
class _Progress:
    """State of the gate run; changed by the supervisor only."""

    started_at: float
    initial_free_bytes: int
    on_event: Callable[[GateEvent], None]
    log: GateLog
    plan: GatePlan | None = None
    results: dict[str, CheckResult] = field(default_factory=dict)
    running_check: str = ""
    running_since: float = 0.0
    cpu_wait_s: float = 0.0
    """Total time for which the gate's processes waited for a CPU that others used [s]."""

    def now(self) -> float:
        """Return a time for durations, without waits for a CPU that other programs use [s]."""
        return time.monotonic() - self.cpu_wait_s

    def record(self, message: GateEvent) -> None:
        match message:
            case GatePlan():
                if self.plan is not None:
                    return
                self.plan = message
            case CheckStarted(name=name):
                self.running_check, self.running_since = name, self.now()
            case CheckResult():
                self.running_check = ""
                self.results[message.name] = message
        self.log.write(message)
        self.on_event(message)

    @property
    def remaining_checks(self) -> tuple[PlannedCheck, ...]:
        checks = self.plan.checks if self.plan else ()
        return tuple(check for check in checks if check.name not in self.results)


def supervise(
    request: GateRequest,
    *,
    folder: Path,
    on_event: Callable[[GateEvent], None] = lambda _: None,
) -> GateRun:
    """Run the gate and return its report; only the log remains in the folder.

    Args:
        request: Target, level and seed of the gate run.
        folder: Folder of the gate logs, on the disk of the run's files; created when missing.
        on_event: Called with the plan, the start of each check and each result.

    Raises:
        SluiceError: The target cannot be opened: an unknown pipeline, an invalid setting, or a
            module that cannot be imported.
        KeyboardInterrupt: The user interrupted the gate; this is recorded in the log.
    """
    with GateLog.open(folder, request) as log:
        scratch = _create_scratch(folder)
        progress = _Progress(
            started_at=time.monotonic(),
            initial_free_bytes=available_bytes(),
            on_event=on_event,
            log=log,
        )
        try:
            report = _run_to_report(request, scratch, progress)
        except BaseException as error:
            log.write_stop(_stop_reason(error), check=progress.running_check)
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        log.write_outcome(report)
        return GateRun(report=report, log=log.path)


def _run_to_report(request: GateRequest, scratch: Path, progress: _Progress) -> GateReport:
    while True:
        stop = _run_process(request, scratch, progress)
        if stop is None or stop.ends_gate or not progress.remaining_checks:
            break
    assert progress.plan is not None
    for check in progress.remaining_checks:  # the whole gate exceeded its time limit
        progress.record(check.result(_skipped_outcome(), 0.0))
    seconds = progress.now() - progress.started_at
    progress.record(check_total_time(seconds, progress.plan.whole_gate))
    return GateReport(
        level=request.level,
        workload=progress.plan.workload,
        results=tuple(progress.results.values()),
        seconds=seconds,
    )


def _run_process(request: GateRequest, scratch: Path, progress: _Progress) -> _Stop | None:
    """Run the remaining checks in one process; return why the process was stopped, or None."""
    task = GateTask(
        request=request, scratch=scratch, earlier_results=tuple(progress.results.values())
    )
    process_started_at, earlier_wait_s = progress.now(), progress.cpu_wait_s
    with GateProcess(task) as process:
        while True:
            wait_s = earlier_wait_s + cpu_wait_s(process.pid)
            # Take the maximum, because cpu_wait_s returns 0 for a process that has ended.
            progress.cpu_wait_s = max(progress.cpu_wait_s, wait_s)
            if not process.has_message(_POLL_S):
                if process.has_ended() and not process.has_message(0):
                    crash = _crash_stop(process.exit_status())
                    return _record_stop(
                        progress, crash, crash_location(scratch / CRASH_FILE), process_started_at
                    )
                stop = _check_time(progress, process_started_at) or _check_memory(process, progress)
                if stop is None:
                    continue
                code_location = process.locate_running_code()
                process.kill()
                return _record_stop(progress, stop, code_location, process_started_at)
            message = process.receive()
            if message is None:
                crash = _crash_stop(process.exit_status())
                return _record_stop(
                    progress, crash, crash_location(scratch / CRASH_FILE), process_started_at
                )
            if isinstance(message, SluiceError):
                raise message
            if message == "finished":
                return None
            if isinstance(message, GatePlan | CheckStarted | CheckResult):
                progress.record(message)


def _record_stop(
    progress: _Progress, stop: _Stop, code_location: str, process_started_at: float
) -> _Stop:
    """Record the reason of the stop as the result of the check that was running.

    Raises:
        SluiceError: No check was running, for example during the import of the user's module.
    """
    finding = stop.finding
    summary = finding.summary
    if code_location:
        summary = f"{summary.rstrip('.')} {code_location}."
    finding = CheckOutcome(outcome="fail", summary=summary, fault=finding.fault, fix=finding.fix)
    checks = {check.name: check for check in progress.remaining_checks}
    name = progress.running_check
    if name == RELOADING_DATA and checks:
        name = next(iter(checks))
    if name not in checks:
        if stop.ends_gate:  # no check was running; the caller skips the remaining checks
            return stop
        cause, fix = finding.response
        when = "Between two checks" if progress.results else "Before the first check"
        raise SluiceError(f"{when}: {finding.summary}", cause=cause, fix=fix)
    seconds = progress.now() - (progress.running_since or process_started_at)
    progress.record(checks[name].result(finding, seconds))
    return stop


def _check_time(progress: _Progress, process_started_at: float) -> _Stop | None:
    now = progress.now()
    plan = progress.plan
    if plan is not None and now - progress.started_at > plan.whole_gate.max_s:
        return _Stop(_timeout_finding("The whole gate", plan.whole_gate), ends_gate=True)
    if plan is None or not progress.running_check:
        if progress.running_since > process_started_at:  # between two checks
            return None
        limit, started_at, subject = STARTUP_LIMIT, process_started_at, "The startup"
    elif progress.running_check == RELOADING_DATA:
        limit, started_at = plan.reload_limit, progress.running_since
        subject = "Loading the data again"
    else:
        limit = next(
            check.limit
            for check in progress.remaining_checks
            if check.name == progress.running_check
        )
        started_at, subject = progress.running_since, "The check"
    return _Stop(_timeout_finding(subject, limit)) if now - started_at > limit.max_s else None


def _timeout_finding(subject: str, limit: TimeLimit) -> CheckOutcome:
    """Return the finding. ``_record_stop`` completes the summary with the line that was running."""
    return CheckOutcome(
        outcome="fail",
        summary=f"{subject} was stopped at the limit of {limit.max_s:g} s, while it was",
        fault="time limit exceeded",
    )


def _check_memory(process: GateProcess, progress: _Progress) -> _Stop | None:
    share = progress.plan.max_memory_share if progress.plan else 1.0
    used_bytes, limit_bytes = resident_bytes(process.pid), share * progress.initial_free_bytes
    if used_bytes > limit_bytes:
        # resident_bytes counts shared memory once for each process that shares it.
        used_bytes = proportional_bytes(process.pid)
    if used_bytes <= limit_bytes:
        return None
    return _Stop(
        CheckOutcome(
            outcome="fail",
            summary=f"The gate's process was stopped at {used_bytes / _GIB:.1f} GiB of memory "
            f"({limit_bytes / _GIB:.1f} GiB are allowed, {share:.0%} of the memory that was free "
            "at the start), while it was",
            fault="out of memory",
        )
    )


def _crash_stop(status: int) -> _Stop:
    fault: FaultName = "process crashed"
    if status == -9:
        summary = "The gate's process was ended by signal 9 (SIGKILL)"
        fault = "out of memory"
    elif status < 0:
        summary = f"The gate's process was ended by signal {-status} ({_signal_name(-status)})"
    else:
        summary = f"The gate's process ended with status {status} and without a result"
    return _Stop(CheckOutcome(outcome="fail", summary=summary, fault=fault))


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _skipped_outcome() -> CheckOutcome:
    return CheckOutcome(
        outcome="skipped",
        summary="Skipped, because the time limit of the whole gate was reached.",
        fix="Correct the slow checks first, or raise poc.times.whole_gate.",
    )


def _create_scratch(folder: Path) -> Path:
    """Create the scratch folder of the checks, on the disk of ``folder``.

    On a disk that is not writable, a path is returned but not created. The checks that write fail.
    """
    try:
        return Path(tempfile.mkdtemp(dir=folder, prefix=".scratch-"))
    except OSError:
        return folder / ".scratch"


def _stop_reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by the user"
    return error.what if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}"
