"""A version without its full lineage is not one."""

import dagster as dg

from sluice.checks.outcomes import blocking, result
from sluice.config.pipeline import PipelineSettings
from sluice.registry.records import Registration

LINEAGE = "lineage_is_complete"


def candidate_checks(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the check (REG-1)."""
    asset = [pipeline.name, "candidate"]

    @dg.multi_asset_check(
        name=f"{pipeline.name}__candidate_checks",
        specs=[blocking(LINEAGE, asset, "Every field of the lineage says something.")],
        ins={"candidate": dg.AssetIn(key=asset)},
    )
    def candidate_checks(candidate: Registration) -> dg.AssetCheckResult:
        missing = candidate.version.lineage.missing_fields()
        return result(
            LINEAGE,
            asset,
            passed=not missing,
            seen=f"Missing in the lineage: {', '.join(missing)}. Promotion will refuse it."
            if missing
            else "Data, config, code, git, seeds, weights, environment and metrics are there.",
        )

    return candidate_checks
