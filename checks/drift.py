"""The verdict on drift, beside the report. It shows; what acts on it reads the report."""

import dagster as dg

from sluice.assets.drift_report import DRIFT_REPORT
from sluice.drift.watch import DriftWatch
from sluice.pipeline import PipelineSettings

NO_DRIFT = "no_drift"


def drift_check(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the check. Drift is no broken run, so it warns; too little evidence is no pass."""
    key = dg.AssetKey([pipeline.name, DRIFT_REPORT])

    @dg.multi_asset_check(
        name=f"{pipeline.name}__drift_check",
        specs=[
            dg.AssetCheckSpec(
                NO_DRIFT,
                asset=key,
                description="Nothing moved since the version in production learned, and enough "
                "was seen to say so.",
            )
        ],
        ins={"drift_report": dg.AssetIn(key=key)},
    )
    def drift_check(drift_report: DriftWatch) -> dg.AssetCheckResult:
        watch = drift_report
        return dg.AssetCheckResult(
            asset_key=key,
            check_name=NO_DRIFT,
            passed=watch.verdict == "STABLE",
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{watch.verdict}: {watch.reason}",
            metadata={
                "verdict": watch.verdict,
                "alarm": ", ".join(episode.cure for episode in watch.episodes) or "none",
            },
        )

    return drift_check
