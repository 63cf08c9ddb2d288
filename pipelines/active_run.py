"""Finds the active run of a job, so that a schedule or sensor does not start a second run."""

import socket

import dagster as dg

from sluice.pipelines.instance import EXECUTING_STATUSES, close_killed_runs
from sluice.pipelines.run_process import RunProcess


def describe_active_run(instance: dg.DagsterInstance, job: str) -> str:
    """Return a description of the queued or active run of a job; "" if no such run exists.

    Runs whose process was killed are closed first, because Dagster would list them as active.
    """
    close_killed_runs(instance)
    statuses = [dg.DagsterRunStatus.QUEUED, *EXECUTING_STATUSES]
    runs = instance.get_runs(dg.RunsFilter(job_name=job, statuses=statuses), limit=1)
    if not runs:
        return ""
    run = runs[0]
    if run.status not in EXECUTING_STATUSES:
        return f"Run {run.run_id[:8]} of {job} is queued."
    text = f"Run {run.run_id[:8]} of {job} is in progress."
    process = RunProcess.of(run.run_id, run.tags)
    if process is None:
        return (
            f"{text} Its process is unknown. If that process no longer exists, {_how_to_close(run)}"
        )
    if not process.is_on_this_host:
        return (
            f"{text} It runs on host {process.host}, whose processes cannot be seen from host "
            f"{socket.gethostname()}. If that host or container no longer exists, "
            f"{_how_to_close(run)}"
        )
    return text


def _how_to_close(run: dg.DagsterRun) -> str:
    return (
        f"close the run: in the UI open Runs, select {run.run_id[:8]}, then Actions, Terminate, "
        "with 'Force termination immediately' selected."
    )
