"""Opens the Dagster instance under ``SLUICE_HOME``, and closes runs that were killed."""

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

LOG_HANDLERS_KEY = "dagster_handler_config"
INITIAL_CONFIG = b"""# Created by Sluice. You may edit this file.
telemetry:
  enabled: false
run_monitoring:
  enabled: true
  free_slots_after_run_end_seconds: 60
concurrency:
  pools:
    default_limit: 1
python_logs:
  # For the terminal of `sluice dev`; the UI shows all events.
  python_log_level: INFO
"""

NO_LOG_CAPTURE = {
    "compute_logs": {
        "module": "dagster._core.storage.noop_compute_log_manager",
        "class": "NoOpComputeLogManager",
    }
}
"""Disables the capture of stdout and stderr. For the capture, Dagster would start two processes per
step, which takes seconds and prints a traceback on Ctrl-C."""

EXECUTING_STATUSES = (
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)
"""Statuses of runs that a process executes, unless the process was killed."""

_MAX_CONFIG_BYTES = 1_000_000

_DISK_FULL_MESSAGES = ("disk is full", "disk I/O error")
"""Messages of SQLite on a full disk. The second message concerns a file beside the database."""


@contextlib.contextmanager
def open_instance(home: Home) -> Iterator[dg.DagsterInstance]:
    """Yield the instance under ``home``; create its folder if that is missing.

    Raises:
        SettingsError: Its ``dagster.yaml`` is not a readable YAML file, or sets log handlers.
        StorageError: The folder is not writable or its disk is full. A disk that becomes full
            inside the ``with`` block also raises this error.
    """
    config = home.dagster / "dagster.yaml"
    if not config.exists():
        # The file is private, because a database URL in it may contain a password.
        write_secret(config, INITIAL_CONFIG)
    _reject_log_handlers(config)
    if not os.access(home.dagster, os.W_OK):
        raise StorageError(
            f"Cannot write {home.dagster} (Permission denied).",
            fix="Make the folder writable, or set SLUICE_HOME to a writable folder.",
        )
    os.environ["DAGSTER_HOME"] = str(home.dagster)
    with _report_full_disk(home.dagster):
        try:
            instance = dg.DagsterInstance.from_ref(
                InstanceRef.from_dir(str(home.dagster), overrides=NO_LOG_CAPTURE)
            )
        except OSError as error:
            raise storage_error(home.dagster, error) from error
        # Dagster's own handler prints each error before it raises it.
        instance.get_event_log_handler = lambda: _EventHandler(instance)  # type: ignore[method-assign]
        with instance:
            yield instance


def _reject_log_handlers(config: Path) -> None:
    """Reject log handlers: ``logging.config.dictConfig`` calls any function that they name.

    A state folder may have been downloaded with untrusted files.
    """
    try:
        content = load_yaml(read_regular(config, max_bytes=_MAX_CONFIG_BYTES).decode())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(
            f"Dagster's settings in {config} must be a readable YAML file: {error}.",
            fix="Correct the file, or remove it: Sluice creates it again.",
        ) from None
    log_settings = content.get("python_logs") if isinstance(content, dict) else None
    if isinstance(log_settings, dict) and LOG_HANDLERS_KEY in log_settings:
        raise SettingsError(
            f"{config} must not set python_logs.{LOG_HANDLERS_KEY}.",
            cause="A handler can name any Python function, which Dagster would call.",
            fix=f"Remove {LOG_HANDLERS_KEY} from the file. If you did not write it, find out "
            "who did.",
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
    """Passes events from ``_EventHandler`` to Dagster, and stores the StorageError of an event.

    Dagster's handler would print the error. ``_EventHandler`` raises it afterwards.
    """

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self.error: StorageError | None = None

    def handle_new_event(self, *args: Any, **kwargs: Any) -> None:
        """Pass an event to Dagster; store a StorageError, which the handler raises afterwards."""
        try:
            self._instance.handle_new_event(*args, **kwargs)
        except StorageError as error:
            self.error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)


@contextlib.contextmanager
def _report_full_disk(folder: Path) -> Iterator[None]:
    """Raise a StorageError when a database of Dagster in a folder reports a full disk.

    The error is converted where it occurs, because Dagster prints some errors before it raises
    them.
    """

    def convert_full_disk_error(context: ExceptionContext) -> StorageError | None:
        database = "" if context.engine is None else str(context.engine.url.database)
        message = str(context.original_exception)
        is_disk_full = any(text in message for text in _DISK_FULL_MESSAGES)
        if folder not in Path(database).parents or not is_disk_full:
            return None
        return disk_full_error(Path(database), reason=f"{message}, in Dagster's record of runs")

    event.listen(Engine, "handle_error", convert_full_disk_error)
    try:
        yield
    finally:
        event.remove(Engine, "handle_error", convert_full_disk_error)


def close_killed_runs(instance: dg.DagsterInstance) -> int:
    """Mark runs whose process was killed as failed; return their number.

    Their slots in concurrency pools are freed, because the next run that needs the GPU waits for
    these slots. Dagster's daemon would free them later; without a daemon, nothing would.
    """
    num_closed = 0
    for run in instance.get_runs(dg.RunsFilter(statuses=list(EXECUTING_STATUSES))):
        process = RunProcess.of(run.run_id, run.tags)
        if process is None or not process.has_ended:
            continue
        current_run = instance.get_run_by_id(run.run_id)
        # The status is read again, because the run may have ended in the meantime.
        if current_run is not None and current_run.status in EXECUTING_STATUSES:
            instance.report_run_failed(
                current_run, "The process that executed this run was killed."
            )
            num_closed += 1
    storage = instance.event_log_storage
    for run_id in (
        storage.get_concurrency_run_ids() if storage.supports_global_concurrency_limits else ()
    ):
        holding_run = instance.get_run_by_id(run_id)
        process = None if holding_run is None else RunProcess.of(run_id, holding_run.tags)
        if holding_run is None or (
            holding_run.is_finished and process is not None and process.has_ended
        ):
            storage.free_concurrency_slots_for_run(run_id)
    return num_closed
