"""The verdict on the verdict's page. It shows; the receipt decides."""

import dagster as dg

from sluice.assets.promotion_verdict import Decision
from sluice.config.pipeline import PipelineSettings

BETTER = "candidate_is_better"


def verdict_check(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the check. A candidate that is not better is no broken run, so it warns."""
    key = dg.AssetKey([pipeline.name, "promotion_verdict"])

    @dg.multi_asset_check(
        name=f"{pipeline.name}__verdict_check",
        specs=[
            dg.AssetCheckSpec(
                BETTER,
                asset=key,
                description="The gate said PROMOTE. Anything else leaves production as it is.",
            )
        ],
        ins={"promotion_verdict": dg.AssetIn(key=key)},
    )
    def verdict_check(promotion_verdict: Decision) -> dg.AssetCheckResult:
        receipt = promotion_verdict.receipt
        return dg.AssetCheckResult(
            asset_key=key,
            check_name=BETTER,
            passed=receipt.passed,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{receipt.outcome}: {receipt.reason}",
            metadata={"verdict": receipt.outcome},
        )

    return verdict_check
