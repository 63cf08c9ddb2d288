"""One blocking check per item of the proof-of-concept gate; the receipt is the lock."""

from collections.abc import Iterator

import dagster as dg

from checks.outcomes import blocking, result
from sluice.failfast.gate import CHECKS
from sluice.failfast.result import GateReport
from sluice.pipeline import PipelineSettings


def poc_checks(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the checks (POC-12)."""
    asset = [pipeline.name, "poc_report"]
    names = {check.requirement: _name(check.requirement, check.name) for check in CHECKS}

    @dg.multi_asset_check(
        name=f"{pipeline.name}__poc_checks",
        specs=[blocking(names[check.requirement], asset, check.description) for check in CHECKS],
        ins={"poc_report": dg.AssetIn(key=asset)},
    )
    def poc_checks(poc_report: GateReport) -> Iterator[dg.AssetCheckResult]:
        for item in poc_report.results:
            yield result(
                names[item.requirement],
                asset,
                passed=item.outcome in ("pass", "warn"),
                seen=" ".join(part for part in (item.summary, item.cause, item.fix) if part),
                metadata={
                    "outcome": item.outcome,
                    "seconds": item.seconds,
                    "typical_s": item.typical_s,
                    "max_s": item.max_s,
                    **item.numbers,
                },
            )

    return poc_checks


def _name(requirement: str, name: str) -> str:
    return f"{requirement.lower()}_{name}".replace("-", "_").replace(" ", "_")
