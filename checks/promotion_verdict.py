"""Check that shows the verdict of the promotion gate; a promotion requires its receipt."""

import dagster as dg

from sluice.assets.promotion_verdict import PromotionDecision

BETTER = "candidate_is_better"


def verdict_check(pipeline: str) -> dg.AssetChecksDefinition:
    """Build the check, which only warns: a candidate that is not better does not stop the run."""
    key = dg.AssetKey([pipeline, "promotion_verdict"])

    @dg.multi_asset_check(
        name=f"{pipeline}__verdict_check",
        specs=[
            dg.AssetCheckSpec(
                BETTER,
                asset=key,
                description="The promotion gate returned PROMOTE. Otherwise production does not "
                "change.",
            )
        ],
        ins={"promotion_verdict": dg.AssetIn(key=key)},
    )
    def verdict_check(promotion_verdict: PromotionDecision) -> dg.AssetCheckResult:
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
