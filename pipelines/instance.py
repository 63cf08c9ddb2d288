"""Dagster's own home, opened so that it sends nothing anywhere and keeps no ghost runs."""

import os

import dagster as dg
from dagster._core.instance.ref import InstanceRef

from pipelines.run_process import RunProcess
from sluice.errors import StorageError
from sluice.files import storage_error, write_atomic
from sluice.home import Home

CONFIG = b"""# Written by Sluice when the folder was new; yours to change.
telemetry:
  enabled: false
run_monitoring:
  enabled: true
  free_slots_after_run_end_seconds: 60
concurrency:
  pools:
    default_limit: 1
python_logs:
  # The terminal of `sluice dev`: what happened, not every event. The UI shows them all.
  python_log_level: INFO
"""

PRINT_TO_THE_TERMINAL = {
    "compute_logs": {
        "module": "dagster._core.storage.noop_compute_log_manager",
        "class": "NoOpComputeLogManager",
    }
}
"""What a run in this process prints belongs on its terminal; Dagster would start two processes per
step to copy it, which cost seconds and print a traceback on Ctrl-C. The UI keeps its own copy."""

UNFINISHED = (
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def open_instance(home: Home) -> dg.DagsterInstance:
    """Open the instance under ``home``; the first time, its folder is made.

    Raises:
        StorageError: The folder cannot be written.
    """
    config = home.dagster / "dagster.yaml"
    if not config.exists():
        write_atomic(config, CONFIG)
    if not os.access(home.dagster, os.W_OK):
        raise StorageError(
            f"Cannot write {home.dagster} (Permission denied).",
            fix="Make the folder writable, or point SLUICE_HOME at one that is.",
        )
    os.environ["DAGSTER_HOME"] = str(home.dagster)
    try:
        return dg.DagsterInstance.from_ref(
            InstanceRef.from_dir(str(home.dagster), overrides=PRINT_TO_THE_TERMINAL)
        )
    except OSError as error:
        raise storage_error(home.dagster, error) from error


def close_ghost_runs(instance: dg.DagsterInstance) -> int:
    """Mark runs as failed whose executing process was killed; return how many."""
    ghosts = 0
    for run in instance.get_runs(dg.RunsFilter(statuses=list(UNFINISHED))):
        process = RunProcess.of(run.run_id, run.tags)
        if process is None or not process.is_gone:
            continue
        now = instance.get_run_by_id(run.run_id)
        if now is not None and now.status in UNFINISHED:  # it did not end well a moment ago
            instance.report_run_failed(now, "The process that executed this run was killed.")
            ghosts += 1
    return ghosts
