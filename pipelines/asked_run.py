"""What became of the run that a sensor asked for: it is named, and asked for again if it failed."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun:
    """A run, by the tags it was asked for with."""

    run_id: str
    job: str
    status: dg.DagsterRunStatus

    failed_at: datetime | None
    """None unless it failed."""

    def __str__(self) -> str:
        """Name it as the UI does, and where it stands."""
        ended = f" since {self.failed_at:%H:%M} UTC" if self.failed_at else ""
        return f"run {self.run_id[:8]} of {self.job} is {self.status.value}{ended}"


def asked_run(instance: dg.DagsterInstance, tags: Mapping[str, str]) -> AskedRun | None:
    """Return the newest run with these tags; None when there is none."""
    for record in instance.get_run_records(dg.RunsFilter(tags=dict(tags)), limit=1):
        run = record.dagster_run
        ended_s = record.end_time or record.update_timestamp.timestamp()
        failed = run.status == dg.DagsterRunStatus.FAILURE
        return AskedRun(
            run_id=run.run_id,
            job=run.job_name,
            status=run.status,
            failed_at=datetime.fromtimestamp(ended_s, UTC) if failed else None,
        )
    return None
