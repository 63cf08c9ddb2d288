"""Check that shows the drift verdict; sensors and jobs read the report instead."""

import dagster as dg

from sluice.assets.drift_report import DRIFT_REPORT
from sluice.drift.monitor_state import MonitorState

NO_DRIFT = "no_drift"


def drift_check(pipeline: str) -> dg.AssetChecksDefinition:
    """Build the check, which only warns: drift does not stop a run.

    An inconclusive window warns as well. If there are too few new rows for a window, the check
    passes and its description starts with WAITING.
    """
    key = dg.AssetKey([pipeline, DRIFT_REPORT])

    @dg.multi_asset_check(
        name=f"{pipeline}__drift_check",
        specs=[
            dg.AssetCheckSpec(
                NO_DRIFT,
                asset=key,
                description="No drift since the version in production was trained. The check also "
                "passes, with WAITING, while there are too few new rows or requests for a window.",
            )
        ],
        ins={"drift_report": dg.AssetIn(key=key)},
    )
    def drift_check(drift_report: MonitorState) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(
            asset_key=key,
            check_name=NO_DRIFT,
            passed=drift_report.verdict in ("STABLE", "WAITING"),
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{drift_report.verdict}: {drift_report.reason}",
            metadata={
                "verdict": drift_report.verdict,
                "alarm actions": ", ".join(alarm.action for alarm in drift_report.alarms) or "none",
            },
        )

    return drift_check
