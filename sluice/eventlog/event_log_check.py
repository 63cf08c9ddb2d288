"""Checks that the event log of a workload can be written, read back and validated."""

import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from sluice.base.errors import ContractError, StorageError
from sluice.base.files import storage_error
from sluice.eventlog.event_log import EventLog, read_events, validate_log
from sluice.findings.check_outcome import CheckOutcome


def check_event_log(
    folder: Path,
    *,
    architecture: str,
    features: tuple[str, ...],
    config: Mapping[str, Any],
    headline: str,
    clock: Callable[[], datetime],
) -> CheckOutcome:
    """Write one event of each type of a training, read the open log, and validate the closed log.

    Args:
        folder: An existing folder on the disk of the real logs; the check creates a temporary
            folder in it.
        architecture: Name of the architecture, as in the real log.
        features: The workload's feature names.
        config: The settings, as in the real log.
        headline: The workload's headline metric.
        clock: Returns the timestamps of the events.
    """
    events = _example_events(architecture, features, dict(config), headline)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix="poc-event-log-") as temporary:
            path = Path(temporary) / "events.ndjson"
            with EventLog(path, clock=clock) as log:
                for event, fields in events:
                    log.write(event, **fields)
                flushed_records = read_events(path).events
            validate_log(path, test_metrics=(headline,), headline=headline)
    except OSError as error:
        return _not_writable(storage_error(folder, error))
    except StorageError as error:
        return _not_writable(error)
    except ContractError as error:
        return CheckOutcome(
            outcome="fail",
            summary=error.what,
            fault="log validation failed",
            fix=error.fix,
        )
    expected_events = [{"event": event, **fields} for event, fields in events]
    flushed_events = [
        {name: value for name, value in event.items() if name != "timestamp"}
        for event in flushed_records
    ]
    if flushed_events != expected_events:
        differing_lines = [
            number
            for number, event in enumerate(expected_events, 1)
            if flushed_events[number - 1 : number] != [event]
        ]
        return CheckOutcome(
            outcome="fail",
            summary="The log that was read back differs from the written one: "
            f"{len(flushed_events)} of {len(expected_events)} events were on disk after the flush, "
            f"and lines {differing_lines} differ.",
            fault="log validation failed",
        )
    return CheckOutcome(
        outcome="pass",
        summary=f"{len(events)} events were written, flushed, read back and validated.",
        numbers={"events": len(events)},
    )


def _not_writable(error: StorageError) -> CheckOutcome:
    return CheckOutcome(
        outcome="fail", summary=error.what, fault="storage not writable", fix=error.fix
    )


def _example_events(
    architecture: str, features: tuple[str, ...], config: dict[str, Any], headline: str
) -> list[tuple[str, dict[str, Any]]]:
    # One loss is infinite on purpose, because the log must preserve the loss of a diverged
    # training. NaN is not used, because it does not equal itself.
    return [
        (
            "experiment_start",
            {"architecture": architecture, "features": list(features), "config": config},
        ),
        ("fold_start", {"fold_id": 0, "train_size": 3, "val_size": 2, "test_size": 1}),
        ("epoch_complete", {"epoch": 1, "train_loss": 1.0, "val_loss": float("inf")}),
        ("fold_complete", {"fold_id": 0, headline: 0.5}),
        ("experiment_complete", {"total_folds": 1, headline: 0.5, "elapsed_seconds": 0.1}),
    ]
