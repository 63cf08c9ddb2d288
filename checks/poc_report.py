"""One blocking check per item of the proof-of-concept gate; the receipt is the lock."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from sluice.checks.outcomes import blocking, result
from sluice.config.pipeline import PipelineSettings
from sluice.failfast.gate.checks import CHECKS
from sluice.failfast.gate.timing import WHOLE_GATE
from sluice.failfast.result import CheckResult, GateReport


def poc_checks(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the checks (POC-12)."""
    asset = [pipeline.name, "poc_report"]
    declared = [(c.requirement, c.name, c.description) for c in CHECKS]
    declared.append(("POC-11", WHOLE_GATE, "The whole gate takes no longer than it may."))

    @dg.multi_asset_check(
        name=f"{pipeline.name}__poc_checks",
        specs=[
            blocking(_name(requirement, name), asset, description)
            for requirement, name, description in declared
        ],
        ins={"poc_report": dg.AssetIn(key=asset)},
    )
    def poc_checks(poc_report: GateReport) -> Iterator[dg.AssetCheckResult]:
        for item in poc_report.results:
            yield result(
                _name(item.requirement, item.name),
                asset,
                passed=item.passed,
                seen=" ".join(part for part in (item.summary, item.cause, item.fix) if part),
                metadata=_metadata(item),
            )

    return poc_checks


def _metadata(item: CheckResult) -> dict[str, Any]:
    """Return why it is likely and what to do first, then the numbers."""
    said = {"why": item.cause, "what to do": item.fix}
    return {
        **{name: text for name, text in said.items() if text},
        "outcome": item.outcome,
        "seconds": item.seconds,
        "typical_s": item.typical_s,
        "max_s": item.max_s,
        **item.numbers,
    }


def _name(requirement: str, name: str) -> str:
    return f"{requirement.lower()}_{name}".replace("-", "_")
