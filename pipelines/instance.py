"""Dagster's own home, opened so that it sends nothing anywhere and keeps no ghost runs."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from dagster._core.instance.ref import InstanceRef
from dagster._core.instance.types import _EventListenerLogHandler
from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext

from sluice.base.errors import SettingsError, StorageError
from sluice.base.files import disk_full_error, read_regular, storage_error, write_secret
from sluice.base.home import Home
from sluice.base.yaml_text import load_yaml
from sluice.pipelines.run_process import RunProcess

HANDLERS = "dagster_handler_config"
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


_MAX_CONFIG_BYTES = 1_000_000

_NO_ROOM = ("disk is full", "disk I/O error")
"""What SQLite says when there is none; the second, when a file beside the database has none."""


@contextlib.contextmanager
def open_instance(home: Home) -> Iterator[dg.DagsterInstance]:
    """Yield the instance under ``home``; the first time, its folder is made.

    Raises:
        SettingsError: Its ``dagster.yaml`` cannot be read, or calls what it names.
        StorageError: The folder cannot be written, or its disk is full; also in the block.
    """
    config = home.dagster / "dagster.yaml"
    if not config.exists():
        write_secret(config, CONFIG)  # who adds a database adds its password
    _require_no_call(config)
    if not os.access(home.dagster, os.W_OK):
        raise StorageError(
            f"Cannot write {home.dagster} (Permission denied).",
            fix="Make the folder writable, or point SLUICE_HOME at one that is.",
        )
    os.environ["DAGSTER_HOME"] = str(home.dagster)
    with _full_disk_said(home.dagster):
        try:
            instance = dg.DagsterInstance.from_ref(
                InstanceRef.from_dir(str(home.dagster), overrides=PRINT_TO_THE_TERMINAL)
            )
        except OSError as error:
            raise storage_error(home.dagster, error) from error
        # Dagster's own would print the error before it is raised, once per event.
        instance.get_event_log_handler = lambda: _EventHandler(instance)  # type: ignore[method-assign]
        with instance:
            yield instance


def _require_no_call(config: Path) -> None:
    """Refuse log handlers, which Python's ``dictConfig`` makes by calling whatever they name.

    A state folder may have been downloaded with the working folder that contains it.
    """
    try:
        content = load_yaml(read_regular(config, max_bytes=_MAX_CONFIG_BYTES).decode())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(
            f"Dagster's settings in {config} must be YAML, and cannot be read: {error}.",
            fix="Correct the file, or remove it: Sluice writes it again.",
        ) from None
    logs = content.get("python_logs") if isinstance(content, dict) else None
    if isinstance(logs, dict) and HANDLERS in logs:
        raise SettingsError(
            f"{config} must not set python_logs.{HANDLERS}, and does.",
            cause="A handler may name any function of Python, which Dagster would call.",
            fix=f"Remove {HANDLERS} from the file. If you did not write it, look at who did.",
        )


class _EventHandler(_EventListenerLogHandler):
    """Writes the events of a run, and raises a StorageError without printing it first."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._relay = _Relay(instance)
        super().__init__(self._relay)  # type: ignore[arg-type]
        self.setLevel(logging.DEBUG)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one event."""
        super().emit(record)
        error, self._relay.error = self._relay.error, None
        if error is not None:
            raise error


class _Relay:
    """Stands between a handler and its instance, and keeps the StorageError of an event."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self.error: StorageError | None = None

    def handle_new_event(self, *args: Any, **kwargs: Any) -> None:
        """Hand an event on; the handler raises what is kept here."""
        try:
            self._instance.handle_new_event(*args, **kwargs)
        except StorageError as error:
            self.error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)


@contextlib.contextmanager
def _full_disk_said(folder: Path) -> Iterator[None]:
    """Let Dagster's databases in a folder say in our words that their disk is full.

    Where the error arises: Dagster prints some of them before it passes them on.
    """

    def explain(context: ExceptionContext) -> StorageError | None:
        place = "" if context.engine is None else str(context.engine.url.database)
        seen = str(context.original_exception)
        if folder not in Path(place).parents or not any(words in seen for words in _NO_ROOM):
            return None
        return disk_full_error(Path(place), reason=f"{seen}, in Dagster's record of runs")

    event.listen(Engine, "handle_error", explain)
    try:
        yield
    finally:
        event.remove(Engine, "handle_error", explain)


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
