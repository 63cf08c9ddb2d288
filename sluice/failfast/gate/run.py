"""Runs and times the checks of the POC gate in the current process.

``supervisor`` runs the same checks in a separate process, which can be stopped. Use ``supervisor``
unless you know that no check hangs or crashes.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from threadpoolctl import threadpool_limits

from sluice.base.seeding import deterministic
from sluice.failfast.gate.checks import CHECKS, GateCheck
from sluice.failfast.gate.inputs import Clock, GateInputs
from sluice.failfast.gate.timing import apply_time_limit, check_total_time
from sluice.failfast.result import CheckResult, GateReport, Level
from sluice.findings.user_code import outcome_from_error


def _ignore(_: object) -> None:
    """Do nothing."""


def run_gate(
    inputs: GateInputs,
    *,
    level: Level,
    on_result: Callable[[CheckResult], None] = _ignore,
    checks: tuple[GateCheck, ...] = CHECKS,
) -> GateReport:
    """Run every check of the level and return the report; ``inputs.folder`` is left empty.

    Args:
        inputs: Inputs of the checks.
        level: 'minimum' or 'full'.
        on_result: Called with every result.
        checks: Table of checks; tests pass another table.
    """
    started_at = inputs.clock()
    level_checks = tuple(check for check in checks if level in check.levels)
    results = run_checks(inputs, level_checks, on_result=on_result)
    seconds = _seconds_since(started_at, inputs.clock)
    time_result = check_total_time(seconds, inputs.settings.times.whole_gate)
    on_result(time_result)
    return GateReport(
        level=level,
        workload=type(inputs.workload).__name__,
        results=(*results, time_result),
        seconds=seconds,
    )


def run_checks(
    inputs: GateInputs,
    checks: Iterable[GateCheck],
    *,
    earlier_results: Iterable[CheckResult] = (),
    on_start: Callable[[str], None] = _ignore,
    on_result: Callable[[CheckResult], None] = _ignore,
) -> tuple[CheckResult, ...]:
    """Run ``checks`` one after another and return their results.

    An exception in user code fails the check in which it occurs. A check whose prerequisite did
    not pass is skipped.

    Args:
        inputs: Inputs of the checks.
        checks: Checks to run, in order.
        earlier_results: Results of earlier checks, which may be prerequisites.
        on_start: Called with the name of a check before it runs.
        on_result: Called with the result of a check.
    """
    results_by_name = {result.name: result for result in earlier_results}
    results = []
    # Operations without a deterministic implementation must fail here, as in the real training.
    # NumPy uses one thread, too: on busy cores, small matrix products are ten times slower with
    # several threads.
    with deterministic(), threadpool_limits(1):
        for check in checks:
            on_start(check.name)
            results_by_name[check.name] = _run(check, inputs, results_by_name)
            results.append(results_by_name[check.name])
            on_result(results_by_name[check.name])
    return tuple(results)


def _run(
    check: GateCheck, inputs: GateInputs, results_by_name: dict[str, CheckResult]
) -> CheckResult:
    """Run and time one check; an exception becomes a failed outcome."""
    planned_check = check.to_planned_check(inputs.settings.times)
    blocking_result = planned_check.failed_prerequisite(results_by_name)
    if blocking_result is not None:
        return planned_check.skipped_result(blocking_result)
    started_at = inputs.clock()
    try:
        outcome = check.function(inputs)
    except (Exception, SystemExit) as error:  # boundary to user code
        outcome = outcome_from_error(error)
    seconds = _seconds_since(started_at, inputs.clock)
    return planned_check.result(apply_time_limit(outcome, seconds, planned_check.limit), seconds)


def _seconds_since(started_at: datetime, clock: Clock) -> float:
    # The duration must not be negative if the wall clock was set back.
    return max(0.0, (clock() - started_at).total_seconds())
