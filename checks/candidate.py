"""Check that the registered candidate has its complete lineage."""

import dagster as dg

from sluice.checks.outcomes import blocking_result, blocking_spec
from sluice.registry.records import Registration

LINEAGE = "lineage_is_complete"


def candidate_checks(pipeline: str) -> dg.AssetChecksDefinition:
    """Build the check of ``candidate``."""
    asset = [pipeline, "candidate"]

    @dg.multi_asset_check(
        name=f"{pipeline}__candidate_checks",
        specs=[blocking_spec(LINEAGE, asset, "No field of the lineage is empty.")],
        ins={"candidate": dg.AssetIn(key=asset)},
    )
    def candidate_checks(candidate: Registration) -> dg.AssetCheckResult:
        missing_fields = candidate.version.lineage.missing_fields()
        return blocking_result(
            LINEAGE,
            asset,
            passed=not missing_fields,
            message=f"Missing in the lineage: {', '.join(missing_fields)}. The version cannot be "
            "promoted."
            if missing_fields
            else "Data, config, code, git commit, seeds, weights, environment and metrics are "
            "recorded.",
        )

    return candidate_checks
