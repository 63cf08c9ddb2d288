"""Writes the trials of one search to Weights & Biases, in a separate process.

``sluice.tracking.wandb_trials`` sends the messages. Their form is in ``wandb_run_writer``.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.tracking.wandb_run_end import RunEnd, finish_run
from sluice.tracking.wandb_run_writer import init_run, last_written_epoch, write_runs

_LOST_REASON = "The process of the search ended. Run the search again to resume it."


class _TrialWriter:
    """Writes one trial as a W&B run, whose step is the epoch."""

    def __init__(
        self, destination: Mapping[str, Any], run_id: str, *, name: str, config: Mapping[str, Any]
    ) -> None:
        self._tags = tuple(destination["tags"])
        self._run = init_run(destination, run_id, name=name, config=config, job="search")
        self._config = dict(config)
        self._last_epoch = last_written_epoch(self._run)

    def write_epoch(self, *, result: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        """Write the result of an epoch, unless this epoch or a later epoch was already written.

        Args:
            result: Epoch and losses.
            config: Values with which the epoch was trained; PBT may change them.
        """
        if config != self._config:
            self._config = dict(config)
            self._run.config.update(self._config, allow_val_change=True)
        epoch = int(result["epoch"])
        if epoch > self._last_epoch:
            self._last_epoch = epoch
            # Without ``commit`` the row would wait for the next epoch.
            self._run.log(dict(result), step=epoch, commit=True)

    def close(self, *, state: RunEnd, reason: str, done_path: str | None = None) -> None:
        """Write how the run ended, and wait until everything is written or sent.

        Args:
            state: How the run ended.
            reason: Why the run ended.
            done_path: File to create when the run is complete; None if the run may be continued.
        """
        finish_run(self._run, tags=self._tags, state=state, reason=reason)
        if done_path is not None:
            Path(done_path).write_text("{}")


if __name__ == "__main__":
    write_runs(sys.stdin, open_run=_TrialWriter, lost_reason=_LOST_REASON)
