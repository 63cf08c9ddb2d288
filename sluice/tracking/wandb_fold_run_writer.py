"""Writes the fold runs of one training to Weights & Biases, in a separate process.

``sluice.tracking.wandb_fold_runs`` sends the messages. Their form is in ``wandb_run_writer``.
"""

import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.eventlog.event_log import read_events
from sluice.tracking.wandb_run_end import RunEnd, finish_run
from sluice.tracking.wandb_run_writer import (
    init_run,
    last_written_epoch,
    store_artifact,
    write_runs,
)

_METRIC_NAMES = {
    "train_loss": "train/loss",
    "val_loss": "val/loss",
    "learning_rate": "train/learning_rate",
    "grad_norm_mean": "train/grad_norm_mean",
    "grad_norm_max": "train/grad_norm_max",
    "clipped_share": "train/clipped_share",
    "seconds": "epoch_seconds",
}
"""Name of a metric in W&B, by the name of its field in the result of an epoch."""

_LOST_REASON = "The process of the training ended. Run the training again to resume it."


class _FoldRunWriter:
    """Writes one fold run as a W&B run, whose step is the epoch."""

    def __init__(
        self, destination: Mapping[str, Any], run_id: str, *, name: str, config: Mapping[str, Any]
    ) -> None:
        self._tags = tuple(destination["tags"])
        if destination["mode"] == "offline":
            # Remove incomplete runs of earlier attempts: a later sync of an incomplete run would
            # replace the complete run.
            _remove_offline_runs(Path(destination["folder"]), run_id)
        self._run = init_run(destination, run_id, name=name, config=config, job="training")
        self._run.define_metric("epoch")
        for metric in ("train/*", "val/*", "epoch_seconds"):
            self._run.define_metric(metric, step_metric="epoch")
        self._last_epoch = last_written_epoch(self._run)

    def write_epoch(self, result: Mapping[str, Any]) -> None:
        """Write the result of an epoch, unless this epoch or a later epoch was already written."""
        epoch = int(result["epoch"])
        if epoch <= self._last_epoch:
            return
        self._last_epoch = epoch
        values = {
            metric: result[field] for field, metric in _METRIC_NAMES.items() if field in result
        }
        # Without ``commit`` the row would wait for the next epoch.
        self._run.log({"epoch": epoch, **values}, step=epoch, commit=True)

    def close(
        self,
        *,
        state: RunEnd,
        reason: str = "",
        summary: Mapping[str, Any] | None = None,
        weights: Mapping[str, str] | None = None,
        log_path: str | None = None,
        done_path: str | None = None,
    ) -> None:
        """Write how the run ended, and wait until everything is written or sent.

        Args:
            state: How the run ended.
            reason: Why the run did not finish; empty if it finished.
            summary: Results of the run.
            weights: Name, path and digest of the weights to store as an artifact.
            log_path: Event log of the run. Its epochs are written unless a message reported them.
            done_path: File to create when the run is complete.
        """
        if log_path is not None:
            for event in read_events(log_path).events:
                if event["event"] == "epoch_complete":
                    self.write_epoch(event)
        self._run.summary.update(dict(summary or {}))
        if weights is not None:
            self._log_weights(weights, summary or {})
        folder = str(Path(self._run.dir).parent)
        finish_run(self._run, tags=self._tags, state=state, reason=reason)
        if done_path is not None:
            Path(done_path).write_text(json.dumps({"folder": folder}))

    def _log_weights(self, weights: Mapping[str, str], summary: Mapping[str, Any]) -> None:
        store_artifact(
            self._run,
            Path(weights["path"]),
            artifact=weights["artifact"],
            kind="model",
            name="model.safetensors",
            metadata={"digest": weights["digest"], **summary},
            aliases=[weights["digest"][:12]],
        )


def _remove_offline_runs(folder: Path, run_id: str) -> None:
    pattern = re.compile(rf"offline-run-\d{{8}}_\d{{6}}-{re.escape(run_id)}")
    for path in (folder / "wandb").glob("offline-run-*"):
        if pattern.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    write_runs(sys.stdin, open_run=_FoldRunWriter, lost_reason=_LOST_REASON)
