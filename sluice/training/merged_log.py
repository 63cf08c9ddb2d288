"""Merges the event logs of all fold runs into the log of an experiment."""

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

    It contains the experiment's start, the events of every fold run in (seed, fold) order, and the
    experiment's end with the mean of the headline metric over all members. Its times are those of
    the fold runs, and elapsed_seconds is their total fitting time, so that the same members produce
    the same bytes whenever they are merged.

    Args:
        members: Members of the finished fold runs.
        store: Holds the fold runs' logs and receives the merged one.
        workload: Names the features and the headline metric.
        architecture: Architecture of the model settings.
        config: The resolved settings, as plain JSON.

    Raises:
        ContractError: No members, or a log or the headline metric breaks its contract.
        IntegrityError: The log of a fold run is missing or damaged.
        StorageError: The merged log cannot be written.
    """
    if not members:
        raise ContractError(
            "A merged log requires at least one member, got 0.", fix="Train a model first."
        )
    ordered = sorted(members, key=lambda member: (member.seed, member.fold_id))
    headline = workload.headline_metric
    for member in ordered:
        if headline not in member.test_metrics:
            known = sorted(member.test_metrics)
            raise ContractError(
                f"The workload's headline_metric '{headline}' must be one of the metrics that it "
                f"returns: {', '.join(known) or 'none'}.{suggest_nearest(headline, known)}",
                fix="Return it from metrics(), or set another headline_metric.",
            )
    logs = [store.get(member.event_log) for member in ordered]
    first, last = _span(logs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.ndjson"
        with EventLog(path, clock=lambda: first) as log:
            log.write(
                "experiment_start",
                architecture=architecture,
                features=list(workload.feature_columns),
                config=dict(config),
            )
        with path.open("ab") as file:
            file.writelines(logs)
        with EventLog(path, clock=lambda: last) as log:
            log.write(
                "experiment_complete",
                total_folds=len({member.fold_id for member in ordered}),
                total_seeds=len({member.seed for member in ordered}),
                elapsed_seconds=sum(member.seconds for member in ordered),
                **{f"mean_{headline}": fmean(m.test_metrics[headline] for m in ordered)},
            )
        report = validate_log(
            path,
            test_metrics=tuple(f"test_{name}" for name in ordered[0].test_metrics),
            headline=f"mean_{headline}",
        )
        if not report.complete:
            raise IntegrityError(
                f"The merged event log is incomplete: {report.gaps[0]}.",
                cause="The log of a fold run lost its last events after it had ended.",
                fix="Remove the folder of the fold run under runs/ and train again.",
            )
        return store.put(path.read_bytes())


def _span(logs: Sequence[bytes]) -> tuple[datetime, datetime]:
    """Return the first and the last time in the logs."""
    times = [
        datetime.fromisoformat(json.loads(line)["timestamp"])
        for log in logs
        for line in log.splitlines()
    ]
    return min(times), max(times)
