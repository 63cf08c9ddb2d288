"""Evaluates the guard of a regression suite for a candidate.

The rows of a suite are not a sample of a larger population, so limits on counts are checked without
confidence bounds. A limit on the mean loss is tested with the confidence bounds of the gain.
"""

from sluice.base.pluralize import pluralize
from sluice.evaluation.suites.gain import SAME_GAIN_MESSAGE
from sluice.evaluation.suites.result import SuiteGuardOutcome, SuiteResult
from sluice.evaluation.suites.settings import SuiteGuard, SuiteSettings
from sluice.evaluation.suites.suite_arm import SELECTION_MESSAGE
from sluice.verdicts.guard_outcome import GuardResult

_LimitResult = tuple[GuardResult, str, str]
"""Result of one limit of a guard: pass, fail or insufficient, the message and the fix."""


def evaluate_guard(
    guard: SuiteGuard, result: SuiteResult | None, settings: SuiteSettings, *, unit: str
) -> SuiteGuardOutcome:
    """Evaluate one guard; it passes only if all its limits are satisfied.

    A violated limit fails the guard, even if other evidence is missing. Without a violation, the
    guard is insufficient in each of these cases: the suite does not exist, losses are not finite,
    too few rows can be scored, a bound cannot be computed, or the interval of the gain contains the
    margin.

    Args:
        guard: Guard with its limits.
        result: Result of the candidate on the suite; None if the suite does not exist.
        settings: Settings of suites.
        unit: Unit of the losses.
    """
    if result is None:
        return SuiteGuardOutcome(
            suite=guard.suite,
            version=None,
            outcome="insufficient",
            reason=f"Suite '{guard.suite}' has a guard but does not exist.",
            remedy="Add the suite, or remove its guard from the settings.",
        )
    limit_results = [
        *_check_evidence(result, settings),
        *_check_broken_share(guard, result),
        *_check_num_fixed(guard, result),
        *_check_margin(guard, result, unit),
    ]
    outcomes = {outcome for outcome, _, _ in limit_results}
    outcome: GuardResult = (
        "fail" if "fail" in outcomes else "insufficient" if "insufficient" in outcomes else "pass"
    )
    decisive_results = [limit for limit in limit_results if limit[0] == outcome]
    return SuiteGuardOutcome(
        suite=result.name,
        version=result.version,
        outcome=outcome,
        reason=f"Suite '{result.name}': "
        + "; ".join(message for _, message, _ in decisive_results)
        + ".",
        remedy=" ".join(fix for _, _, fix in decisive_results if fix),
    )


def _check_evidence(result: SuiteResult, settings: SuiteSettings) -> list[_LimitResult]:
    limit_results: list[_LimitResult] = [
        ("insufficient", problem, _fix_for(problem)) for problem in result.lacking
    ]
    if not (result.rows and result.scored_share >= settings.min_scored_share):
        limit_results.append(
            (
                "insufficient",
                f"{len({row.label for row in result.rows})} of {result.num_rows} rows can be "
                f"scored, required {settings.min_scored_share:.0%} ({len(result.gone)} no longer "
                f"in the data, {len(result.seen)} used for training, {len(result.unscored)} in no "
                "test window)",
                "Revise the suite with rows of the current test windows.",
            )
        )
    return limit_results


def _fix_for(problem: str) -> str:
    if problem.endswith(SELECTION_MESSAGE):
        return "Train the model with more seeds, so that some seeds did not select the rows."
    return "Find out why the model diverged."


def _fix_for_bounds(result: SuiteResult) -> str:
    """Return the fix for absent bounds; "" if the result has another problem with its own fix."""
    if result.lacking:
        return ""
    if result.gain.lacking.endswith(SELECTION_MESSAGE):
        return "Remove the margin: a rule without seeds selected these rows."
    if result.gain.lacking == SAME_GAIN_MESSAGE:
        return "Check that the two models have different predictions."
    return "Add rows to the suite, or train more seeds."


def _check_broken_share(guard: SuiteGuard, result: SuiteResult) -> list[_LimitResult]:
    if guard.max_broken_share is None or not result.rows:
        return []
    message = (
        f"{result.count('broken')} of {len(result.rows)} rows are broken "
        f"({result.broken_share:.2%}), allowed {guard.max_broken_share:.2%}"
    )
    if result.broken_share <= guard.max_broken_share:
        return [("pass", message, "")]
    return [("fail", message, "Inspect the broken rows: the reference is right on them.")]


def _check_num_fixed(guard: SuiteGuard, result: SuiteResult) -> list[_LimitResult]:
    if guard.min_fixed is None or not result.rows:
        return []
    message = f"{pluralize(result.count('fixed'), 'fixed row')}, required {guard.min_fixed}"
    if result.count("fixed") >= guard.min_fixed:
        return [("pass", message, "")]
    fix = "Inspect the rows that are still wrong, and whether the model or the data are suspected."
    return [("fail", message, fix)]


def _check_margin(guard: SuiteGuard, result: SuiteResult, unit: str) -> list[_LimitResult]:
    if guard.margin is None or not result.rows:
        return []
    gain = result.gain
    threshold = 0.0 - guard.margin  # -margin would be displayed as "-0" for a margin of 0
    if gain.low > threshold:
        message = f"gain at least {gain.low:.4g} {unit}, required above {threshold:.4g}"
        return [("pass", message, "")]
    if gain.high < threshold:
        message = f"gain at most {gain.high:.4g} {unit}, required above {threshold:.4g}"
        return [("fail", message, "The candidate is significantly worse on this suite.")]
    if gain.lacking:
        message = f"no bound of the gain: {gain.lacking}"
        return [("insufficient", message, _fix_for_bounds(result))]
    message = (
        f"gain between {gain.low:.4g} and {gain.high:.4g} {unit}, on both sides of the margin "
        f"{threshold:.4g}"
    )
    fix = "Add rows to the suite, train more seeds, or widen the margin."
    return [("insufficient", message, fix)]
