"""Whether a job is at work already, so that a tick does not start it beside itself."""

import dagster as dg

from pipelines.instance import UNFINISHED, close_ghost_runs
from pipelines.run_process import RunProcess


def under_way(instance: dg.DagsterInstance, job: str) -> str:
    """Return which run of a job waits or works, in words; "" when none does.

    Runs whose command was killed are closed first, or they would count for ever.
    """
    close_ghost_runs(instance)
    waiting = [dg.DagsterRunStatus.QUEUED, *UNFINISHED]
    runs = instance.get_runs(dg.RunsFilter(job_name=job, statuses=waiting), limit=1)
    if not runs:
        return ""
    said = f"Run {runs[0].run_id[:8]} of {job} is under way."
    if runs[0].status in UNFINISHED and RunProcess.of(runs[0].run_id, runs[0].tags) is None:
        said += " Which process works on it is not known; if none does, terminate it in the UI."
    return said
