"""Truncates the event log of a resumed fold run to the epochs of its checkpoint."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sluice.base.files import read_error, write_atomic
from sluice.eventlog.event_log import EventLog
from sluice.training.train_state import EpochResult
from sluice.workloads.examples import Examples


def truncate_log(
    path: Path,
    seed: int,
    fold_id: int,
    rows: Mapping[str, Examples],
    history: Sequence[EpochResult],
    *,
    is_resumed: bool,
    clock: Callable[[], datetime],
) -> None:
    """Make the log contain exactly the start of the fold run and the epochs of ``history``.

    Other lines are removed, because a killed process may have written epochs after its last
    checkpoint. If a line is missing, the log is rewritten from ``history``. So the log of a resumed
    fold run differs from the log of an uninterrupted fold run only in its times.

    Args:
        path: The log, which may be missing.
        seed: Seed of the fold run.
        fold_id: Fold of the fold run.
        rows: Examples of each split.
        history: Results of the epochs of the checkpoint.
        is_resumed: Whether a checkpoint exists. If not, the fold run starts now.
        clock: Time of new lines.

    Raises:
        StorageError: The log cannot be read or written.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    except OSError as error:
        raise read_error(path, error) from error
    num_lines = 1 + len(history)
    if is_resumed and _matches(lines[:num_lines], history):
        write_atomic(path, b"".join(lines[:num_lines]))
        return
    write_atomic(path, b"")
    with EventLog(path, clock=clock) as log:
        log.write(
            "fold_start",
            fold_id=fold_id,
            seed=seed,
            train_size=len(rows["train"]),
            val_size=len(rows["val"]),
            test_size=len(rows["test"]),
        )
        for result in history:
            log.write("epoch_complete", **epoch_fields(seed, fold_id, result))


def epoch_fields(seed: int, fold_id: int, result: EpochResult) -> dict[str, Any]:
    """Return the fields of one ``epoch_complete`` event."""
    return {"fold_id": fold_id, "seed": seed, **dataclasses.asdict(result)}


def _matches(lines: Sequence[bytes], history: Sequence[EpochResult]) -> bool:
    """Return whether the lines are the start of the fold run and the epochs of ``history``."""
    expected = ["fold_start", *(result.epoch for result in history)]
    try:
        events = [json.loads(line) for line in lines if line.endswith(b"\n")]
        return [event.get("epoch", event["event"]) for event in events] == expected
    except (ValueError, KeyError, AttributeError):
        return False
