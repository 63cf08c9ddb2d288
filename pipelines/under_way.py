"""Whether a job is at work already, so that a tick does not start it beside itself."""

import socket

import dagster as dg

from sluice.pipelines.instance import UNFINISHED, close_ghost_runs
from sluice.pipelines.run_process import RunProcess


def under_way(instance: dg.DagsterInstance, job: str) -> str:
    """Return which run of a job waits or works, in words; "" when none does.

    Runs whose command was killed are closed first, or they would count for ever.
    """
    close_ghost_runs(instance)
    waiting = [dg.DagsterRunStatus.QUEUED, *UNFINISHED]
    runs = instance.get_runs(dg.RunsFilter(job_name=job, statuses=waiting), limit=1)
    if not runs:
        return ""
    run = runs[0]
    said = f"Run {run.run_id[:8]} of {job} is under way."
    if run.status not in UNFINISHED:
        return said
    process = RunProcess.of(run.run_id, run.tags)
    if process is None:
        return f"{said} Which process works on it is not known; if none does, {_close(run)}"
    if not process.is_here:
        return (
            f"{said} It works on host {process.host}, and what lives there cannot be seen from "
            f"host {socket.gethostname()}. If that host or container is gone, {_close(run)}"
        )
    return said


def _close(run: dg.DagsterRun) -> str:
    return (
        f"close the run: in the UI open Runs, tick {run.run_id[:8]}, then Actions, Terminate, with "
        "'Force termination immediately' ticked where it asks."
    )
