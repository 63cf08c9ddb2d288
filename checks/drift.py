"""The verdict on drift, beside the report. It shows; what acts on it reads the report."""

import dagster as dg

from sluice.assets.drift_report import DRIFT_REPORT
from sluice.config.pipeline import PipelineSettings
from sluice.drift.watch import DriftWatch

NO_DRIFT = "no_drift"


def drift_check(pipeline: PipelineSettings) -> dg.AssetChecksDefinition:
    """Build the check, which warns: drift does not break a run.

    A judged window that decides nothing warns too. Too few new rows for a window is no finding: the
    check passes, and its description says that it waits.
    """
    key = dg.AssetKey([pipeline.name, DRIFT_REPORT])

    @dg.multi_asset_check(
        name=f"{pipeline.name}__drift_check",
        specs=[
            dg.AssetCheckSpec(
                NO_DRIFT,
                asset=key,
                description="Nothing moved since the version in production learned, or there are "
                "too few new rows and requests to judge yet: its description says WAITING then.",
            )
        ],
        ins={"drift_report": dg.AssetIn(key=key)},
    )
    def drift_check(drift_report: DriftWatch) -> dg.AssetCheckResult:
        watch = drift_report
        return dg.AssetCheckResult(
            asset_key=key,
            check_name=NO_DRIFT,
            passed=watch.verdict in ("STABLE", "WAITING"),
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{watch.verdict}: {watch.reason}",
            metadata={
                "verdict": watch.verdict,
                "alarm": ", ".join(episode.cure for episode in watch.episodes) or "none",
            },
        )

    return drift_check
