"""Merges the event logs of all fold runs of a candidate into one log of the experiment."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError, IntegrityError
from sluice.base.settings import suggest_nearest
from sluice.eventlog.event_log import EventLog, validate_log
from sluice.training.members import Member
from sluice.workloads.workload import Workload


def merge_logs(
    members: Sequence[Member],
    store: ArtifactStore,
    *,
    workload: Workload,
    architecture: str,
    config: Mapping[str, Any],
) -> str:
    """Write one validated log for all members and return its artifact digest.

    The log contains the start of the experiment, the events of every fold run in (seed, fold)
    order, and the end of the experiment. The end has the mean of the headline metric over all
    members. All times, including elapsed_seconds, come from the fold runs and not from the clock.
    So the same members give the same bytes at any time.

    Args:
        members: Members of the finished fold runs.
        store: Contains the logs of the fold runs, and receives the merged log.
        workload: Workload with the names of the features and of the headline metric.
        architecture: Name of the architecture, as in the model settings.
        config: The resolved settings, as plain JSON.

    Raises:
        ContractError: There are no members, a log is invalid, or a member lacks the headline
            metric.
        IntegrityError: The log of a fold run is missing or damaged.
        StorageError: The merged log cannot be written.
    """
    if not members:
        raise ContractError(
            "A merged log requires at least one member, got 0.", fix="Train a model first."
        )
    sorted_members = sorted(members, key=lambda member: (member.seed, member.fold_id))
    headline = workload.headline_metric
    for member in sorted_members:
        if headline not in member.test_metrics:
            names = sorted(member.test_metrics)
            raise ContractError(
                f"The workload's headline_metric '{headline}' must be one of the metrics that "
                f"metrics() returns: {', '.join(names) or 'none'}."
                f"{suggest_nearest(headline, names)}",
                fix=f"Return '{headline}' from metrics(), or set another headline_metric.",
            )
    logs = [store.get(member.event_log) for member in sorted_members]
    start_time, end_time = _time_range(logs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.ndjson"
        with EventLog(path, clock=lambda: start_time) as log:
            log.write(
                "experiment_start",
                architecture=architecture,
                features=list(workload.feature_columns),
                config=dict(config),
            )
        with path.open("ab") as file:
            file.writelines(logs)
        with EventLog(path, clock=lambda: end_time) as log:
            log.write(
                "experiment_complete",
                total_folds=len({member.fold_id for member in sorted_members}),
                total_seeds=len({member.seed for member in sorted_members}),
                elapsed_seconds=sum(member.seconds for member in sorted_members),
                **{f"mean_{headline}": fmean(m.test_metrics[headline] for m in sorted_members)},
            )
        report = validate_log(
            path,
            test_metrics=tuple(f"test_{name}" for name in sorted_members[0].test_metrics),
            headline=f"mean_{headline}",
        )
        if not report.complete:
            raise IntegrityError(
                f"The merged event log is incomplete: {report.gaps[0]}.",
                cause="The log of a fold run was truncated after the fold run had ended.",
                fix="Remove the folder of the fold run under runs/ and train again.",
            )
        return store.put(path.read_bytes())


def _time_range(logs: Sequence[bytes]) -> tuple[datetime, datetime]:
    """Return the first and the last time in the logs."""
    times = [
        datetime.fromisoformat(json.loads(line)["timestamp"])
        for log in logs
        for line in log.splitlines()
    ]
    return min(times), max(times)
