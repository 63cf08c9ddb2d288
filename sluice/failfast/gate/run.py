"""Run the checks of the POC gate in this process: the one place that guards and times them.

``supervisor`` runs the same in a process of its own, which can be stopped; use that one unless
you know that nothing hangs or crashes.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from threadpoolctl import threadpool_limits

from sluice.base.seeding import deterministic
from sluice.failfast.gate.checks import CHECKS, GateCheck
from sluice.failfast.gate.inputs import Clock, GateInputs
from sluice.failfast.gate.timing import judge_time, judge_whole_gate
from sluice.failfast.result import CheckResult, GateReport, Level
from sluice.findings.user_code import finding_from


def _nobody(_: object) -> None:
    """Hear nothing."""


def run_gate(
    inputs: GateInputs,
    *,
    level: Level,
    on_result: Callable[[CheckResult], None] = _nobody,
    checks: tuple[GateCheck, ...] = CHECKS,
) -> GateReport:
    """Run every check of the level and report; nothing is left in ``inputs.folder`` (POC-12).

    Args:
        inputs: What the checks look at.
        level: 'minimum' (POC-1..5 and the data they stand on) or 'full' (POC-1..13).
        on_result: Told of every result as it comes.
        checks: The table; another one for tests.
    """
    started = inputs.clock()
    wanted = tuple(check for check in checks if level in check.levels)
    results = run_checks(inputs, wanted, on_result=on_result)
    seconds = _since(started, inputs.clock)
    last = judge_whole_gate(seconds, inputs.settings.times.whole_gate)
    on_result(last)
    return GateReport(
        level=level,
        workload=type(inputs.workload).__name__,
        results=(*results, last),
        seconds=seconds,
    )


def run_checks(
    inputs: GateInputs,
    checks: Iterable[GateCheck],
    *,
    done: Iterable[CheckResult] = (),
    on_start: Callable[[str], None] = _nobody,
    on_result: Callable[[CheckResult], None] = _nobody,
) -> tuple[CheckResult, ...]:
    """Run ``checks`` one after another and return their results.

    An exception in the user's code fails the check it happened in. A check whose prerequisite did
    not pass is skipped, never passed.

    Args:
        inputs: What the checks look at.
        checks: Which, in order.
        done: Results of checks that ran before; prerequisites may be among them.
        on_start: Told the name of a check before it runs.
        on_result: Told of its result.
    """
    known = {result.name: result for result in done}
    results = []
    # As in the real training: an operation without a deterministic form must show here. One thread
    # for NumPy as well: on busy cores several make small matrix products ten times slower.
    with deterministic(), threadpool_limits(1):
        for check in checks:
            on_start(check.name)
            known[check.name] = _run(check, inputs, known)
            results.append(known[check.name])
            on_result(known[check.name])
    return tuple(results)


def _run(check: GateCheck, inputs: GateInputs, known: dict[str, CheckResult]) -> CheckResult:
    """Run and time one check. Everything that guards a check is put around it here."""
    planned = check.planned(inputs.settings.times)
    blocking = planned.blocked_by(known)
    if blocking is not None:
        return planned.skipped(blocking)
    started = inputs.clock()
    try:
        finding = check.function(inputs)
    except (Exception, SystemExit) as error:  # the edge of the user's code
        finding = finding_from(error)
    seconds = _since(started, inputs.clock)
    return planned.result(judge_time(finding, seconds, planned.limit), seconds)


def _since(started: datetime, clock: Clock) -> float:
    # A wall clock that is set back must not make a time negative.
    return max(0.0, (clock() - started).total_seconds())
