"""Does a candidate pass a suite that guards promotion?

The rows of a suite are all there is to it, not a sample of more: their counts decide as they
stand. A mean loss is judged by its bound.
"""

from sluice.evaluation.suites.result import GuardVerdict, SuiteResult
from sluice.evaluation.suites.settings import SuiteGuard, SuiteSettings
from sluice.verdicts.guard_outcome import GuardResult

_Finding = tuple[GuardResult, str, str]


def judge_guard(
    guard: SuiteGuard, result: SuiteResult | None, settings: SuiteSettings, *, unit: str
) -> GuardVerdict:
    """Judge one guard; it passes only when everything it asks for is shown.

    A limit that is broken fails it, whatever else is missing. It says nothing when there is no
    such suite, when losses are not finite, when too few of its rows can be scored, or when a
    bound cannot be computed or lies on both sides of its margin.

    Args:
        guard: Limits.
        result: The candidate on that suite; None when there is no such suite.
        settings: How many rows are enough.
        unit: Of the losses.
    """
    if result is None:
        return GuardVerdict(
            suite=guard.suite,
            version=None,
            outcome="insufficient",
            reason=f"The guard asks for suite '{guard.suite}', and there is none.",
            remedy="Add the suite, or take its guard out of the settings.",
        )
    findings = [
        *_evidence(result, settings),
        *_broken(guard, result),
        *_fixed(guard, result),
        *_margin(guard, result, unit),
    ]
    outcomes = {outcome for outcome, _, _ in findings}
    outcome: GuardResult = (
        "fail" if "fail" in outcomes else "insufficient" if "insufficient" in outcomes else "pass"
    )
    told = [finding for finding in findings if finding[0] == outcome]
    return GuardVerdict(
        suite=result.name,
        version=result.version,
        outcome=outcome,
        reason=f"Suite '{result.name}': " + "; ".join(what for _, what, _ in told) + ".",
        remedy=" ".join(fix for _, _, fix in told if fix),
    )


def _evidence(result: SuiteResult, settings: SuiteSettings) -> list[_Finding]:
    found: list[_Finding] = [
        ("insufficient", what, "Find out why the model diverged.") for what in result.lacking
    ]
    if not (result.rows and result.scored_share >= settings.min_scored_share):
        found.append(
            (
                "insufficient",
                f"{len({row.label for row in result.rows})} of {result.num_rows} rows can be "
                f"scored, required {settings.min_scored_share:.0%} ({len(result.gone)} gone, "
                f"{len(result.seen)} trained on, {len(result.unscored)} in no test window)",
                "Revise the suite with rows of the present test windows.",
            )
        )
    return found


def _broken(guard: SuiteGuard, result: SuiteResult) -> list[_Finding]:
    if guard.max_broken_share is None or not result.rows:
        return []
    said = (
        f"{result.count('broken')} of {len(result.rows)} rows are broken "
        f"({result.broken_share:.2%}), allowed {guard.max_broken_share:.2%}"
    )
    if result.broken_share <= guard.max_broken_share:
        return [("pass", said, "")]
    return [("fail", said, "Look at the broken rows: the reference gets them right.")]


def _fixed(guard: SuiteGuard, result: SuiteResult) -> list[_Finding]:
    if guard.min_fixed is None or not result.rows:
        return []
    said = f"{result.count('fixed')} rows are fixed, required {guard.min_fixed}"
    if result.count("fixed") >= guard.min_fixed:
        return [("pass", said, "")]
    return [("fail", said, "Look at the rows that are still wrong and at what suspects them.")]


def _margin(guard: SuiteGuard, result: SuiteResult, unit: str) -> list[_Finding]:
    if guard.margin is None or not result.rows:
        return []
    gain = result.gain
    if gain.low > -guard.margin:
        said = f"gain at least {gain.low:.4g} {unit}, required above {-guard.margin:.4g}"
        return [("pass", said, "")]
    if gain.high < -guard.margin:
        said = f"gain at most {gain.high:.4g} {unit}, required above {-guard.margin:.4g}"
        return [("fail", said, "The candidate is proven worse here by more than the margin.")]
    if gain.lacking:
        return [("insufficient", f"no bound of the gain: {gain.lacking}", "Widen the suite.")]
    said = (
        f"gain between {gain.low:.4g} and {gain.high:.4g} {unit}, on both sides of the margin "
        f"{-guard.margin:.4g}"
    )
    return [("insufficient", said, "Add rows to the suite, train more seeds, or widen the margin.")]
