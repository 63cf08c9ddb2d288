"""The failure sensor: raises an alert for each failed run, except for runs in a terminal."""

import os

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.tags import WILL_RETRY_TAG

from sluice.assets.resources import SluiceState, utc_now
from sluice.observability.alerts import Alert, raise_alert
from sluice.pipelines.run_failures import failure_reason
from sluice.pipelines.run_process import TERMINAL_TAG

_MAX_REASON_CHARS = 1000


def failure_sensor(pipeline: str, jobs: list[UnresolvedAssetJobDefinition]) -> dg.SensorDefinition:
    """Return the sensor that raises an alert for each failed run of the pipeline.

    Runs of ``sluice run`` raise no alert, because the command prints the error. A run that Dagster
    retries raises an alert only when its last attempt fails.

    Args:
        pipeline: Name of the pipeline.
        jobs: All jobs of the pipeline.
    """

    @dg.run_failure_sensor(
        name=f"{pipeline}_failure_sensor",
        monitored_jobs=jobs,
        default_status=dg.DefaultSensorStatus.RUNNING,
        minimum_interval_seconds=30,
        description="Raises an alert when a run of the pipeline fails. Runs of 'sluice run' are "
        "excepted, because the command prints the error. The alert names the failed check or the "
        "error. It is posted to the URL in SLUICE_ALERT_WEBHOOK, if that is set.",
    )
    def sensor(
        context: dg.RunFailureSensorContext, sluice_state: dg.ResourceParam[SluiceState]
    ) -> dg.SkipReason | None:
        run = context.dagster_run
        # A re-execution in the UI inherits the tag of the run, but has another id.
        if run.tags.get(TERMINAL_TAG) == run.run_id:
            return dg.SkipReason("The run was started in a terminal, which shows the error.")
        if run.tags.get(WILL_RETRY_TAG) == "true":
            return dg.SkipReason("Dagster retries the run.")
        alert = failure_alert(pipeline, context)
        result = raise_alert(alert, home=sluice_state.home, environ=os.environ)
        for problem in result.problems:
            context.log.warning(problem)
        return None

    return sensor


def failure_alert(pipeline: str, context: dg.RunFailureSensorContext) -> Alert:
    """Return the alert for a failed run."""
    run = context.dagster_run
    reason = failure_reason(context.instance, run.run_id) or str(context.failure_event.message)
    if len(reason) > _MAX_REASON_CHARS:
        reason = f"{reason[:_MAX_REASON_CHARS]} ..."
    return Alert(
        key=f"run/{run.run_id}",
        kind="run_failed",
        what=f"The job {run.job_name} failed (run {run.run_id[:8]}).",
        why=reason,
        do="Correct the cause and start the job again: completed work is kept.",
        severity="warning",
        model=pipeline,
        at=utc_now(),
    )
