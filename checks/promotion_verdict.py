"""The verdict on the verdict's page. It shows; the receipt decides."""

import dagster as dg

from assets.promotion_verdict import Decision
from sluice.pipeline import PipelineSettings


def verdict_check(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the check. A candidate that is not better is no broken run, so it warns."""

    @dg.asset_check(
        asset=dg.AssetKey([pipeline.name, "promotion_verdict"]),
        name="candidate_is_better",
        description="The gate said PROMOTE. Anything else leaves production as it is.",
    )
    def candidate_is_better(promotion_verdict: Decision) -> dg.AssetCheckResult:
        receipt = promotion_verdict.receipt
        return dg.AssetCheckResult(
            passed=receipt.passed,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{receipt.outcome}: {receipt.reason}",
            metadata={"verdict": receipt.outcome},
        )

    return candidate_is_better
