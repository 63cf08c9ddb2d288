"""One blocking asset check for each check of the POC gate.

Training requires the receipt of the gate, so skipping these checks does not bypass the gate.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from sluice.checks.outcomes import blocking_result, blocking_spec, failing_with_messages
from sluice.failfast.gate.checks import CHECKS
from sluice.failfast.gate.timing import WHOLE_GATE_CHECK
from sluice.failfast.result import CheckResult, GateReport


def poc_checks(pipeline: str) -> dg.AssetChecksDefinition:
    """Build the checks of ``poc_report``."""
    asset = [pipeline, "poc_report"]
    descriptions = [(check.name, check.description) for check in CHECKS]
    descriptions.append((WHOLE_GATE_CHECK, "The whole gate finishes within its time limit."))

    @dg.multi_asset_check(
        name=f"{pipeline}__poc_checks",
        specs=[blocking_spec(name, asset, description) for name, description in descriptions],
        ins={"poc_report": dg.AssetIn(key=asset)},
    )
    @failing_with_messages
    def poc_checks(poc_report: GateReport) -> Iterator[dg.AssetCheckResult]:
        for result in poc_report.results:
            yield blocking_result(
                result.name,
                asset,
                passed=result.passed,
                message=" ".join(
                    text for text in (result.summary, result.cause, result.fix) if text
                ),
                metadata=_metadata(result),
            )

    return poc_checks


def _metadata(result: CheckResult) -> dict[str, Any]:
    """Return the likely cause, the fix, the command that explains the fault, and the numbers."""
    command = "" if result.finding is None else result.finding.explain_command
    advice = {"likely cause": result.cause, "fix": result.fix, "explained by": command}
    return {
        **{name: text for name, text in advice.items() if text},
        "outcome": result.outcome,
        "seconds": result.seconds,
        "typical_s": result.typical_s,
        "max_s": result.max_s,
        **result.numbers,
    }
