"""Event logs with a defect, for the log validator."""

import json
from collections.abc import Callable
from pathlib import Path

from sluice.base.errors import ContractError
from sluice.eventlog.event_log import validate_log
from sluice.findings.check_outcome import CheckOutcome
from sluice.findings.user_code import outcome_from_error

_Line = dict[str, object]


def validate_log_without_val_loss(folder: Path) -> CheckOutcome:
    """Validate a log whose third epoch has no validation loss."""

    def damage(lines: list[_Line]) -> None:
        del lines[4]["val_loss"]

    return _validate(folder, damage)


def validate_log_with_loss_as_text(folder: Path) -> CheckOutcome:
    """Validate a log whose second epoch stores its training loss as text."""

    def damage(lines: list[_Line]) -> None:
        lines[3]["train_loss"] = "0.5"

    return _validate(folder, damage)


def _validate(folder: Path, damage: Callable[[list[_Line]], None]) -> CheckOutcome:
    """Damage a healthy log, write it to the folder and validate it."""
    lines = _make_healthy_log()
    damage(lines)
    path = folder / "events.ndjson"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    try:
        report = validate_log(path, test_metrics=("sharpe",), headline="sharpe")
    except ContractError as error:
        return outcome_from_error(error)
    return CheckOutcome(
        outcome="pass", summary=f"{sum(report.counts.values())} events are complete."
    )


def _make_healthy_log() -> list[_Line]:
    epochs: list[_Line] = [
        {"event": "epoch_complete", "epoch": epoch, "train_loss": 0.5, "val_loss": 0.6}
        for epoch in (1, 2, 3)
    ]
    fold = {"event": "fold_start", "fold_id": 0, "train_size": 300, "val_size": 60, "test_size": 60}
    lines: list[_Line] = [
        {"event": "experiment_start", "architecture": "gru", "features": ["bmi"], "config": {}},
        dict(fold),
        *epochs,
        {"event": "fold_complete", "fold_id": 0, "sharpe": 0.4},
        {
            "event": "experiment_complete",
            "total_folds": 1,
            "sharpe": 0.4,
            "elapsed_seconds": 12.5,
        },
    ]
    return [line | {"timestamp": f"2024-05-01T12:00:{i:02}+00:00"} for i, line in enumerate(lines)]
