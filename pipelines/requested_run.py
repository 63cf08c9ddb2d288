"""Finds the run that a sensor requested earlier, so that a failed run is requested again."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedRun:
    """A run that a sensor requested."""

    run_id: str
    job: str
    status: dg.DagsterRunStatus

    failed_at: datetime | None
    """End time of the run if it failed; else None."""

    def __str__(self) -> str:
        """Return the id as the UI shows it, with job and status."""
        since = f" since {self.failed_at:%H:%M} UTC" if self.failed_at else ""
        return f"run {self.run_id[:8]} of {self.job} is {self.status.value}{since}"


def find_requested_run(
    instance: dg.DagsterInstance, tags: Mapping[str, str]
) -> RequestedRun | None:
    """Return the newest run with these tags; None if no run has them."""
    for record in instance.get_run_records(dg.RunsFilter(tags=dict(tags)), limit=1):
        run = record.dagster_run
        ended_s = record.end_time or record.update_timestamp.timestamp()
        is_failed = run.status == dg.DagsterRunStatus.FAILURE
        return RequestedRun(
            run_id=run.run_id,
            job=run.job_name,
            status=run.status,
            failed_at=datetime.fromtimestamp(ended_s, UTC) if is_failed else None,
        )
    return None
