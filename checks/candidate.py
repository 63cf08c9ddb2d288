"""A version without its full lineage is not one."""

import dagster as dg

from sluice.pipeline import PipelineSettings
from sluice.registry.records import Registration


def candidate_checks(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the check (REG-1)."""

    @dg.asset_check(
        asset=dg.AssetKey([pipeline.name, "candidate"]),
        name="lineage_is_complete",
        description="Every field of the lineage says something.",
        blocking=True,
    )
    def lineage_is_complete(candidate: Registration) -> dg.AssetCheckResult:
        missing = candidate.version.lineage.missing_fields()
        return dg.AssetCheckResult(
            passed=not missing,
            severity=dg.AssetCheckSeverity.ERROR,
            description=f"Missing in the lineage: {', '.join(missing)}. Promotion will refuse it."
            if missing
            else "Data, config, code, git, seeds, weights, environment and metrics are there.",
        )

    return lineage_is_complete
