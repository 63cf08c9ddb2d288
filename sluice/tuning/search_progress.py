"""Creates the progress messages of a running search."""

import math
from collections.abc import Sequence

from sluice.base.pluralize import pluralize
from sluice.tuning.records import TrialRecord


class SearchProgress:
    """Reports each trial once when it has ended, and with PBT each step of the population.

    All trials of a population end at the same time. Without messages about the steps of the
    population, there would be no message for hours.
    """

    def __init__(self, *, num_trials: int, is_population_based: bool) -> None:
        self._num_trials, self._is_population_based = num_trials, is_population_based
        self._ended_ids: set[int] = set()
        """Ids of the trials whose end was reported."""
        self._last_step_epoch = 0
        """Epoch of the last reported step of the population."""

    @property
    def num_ended(self) -> int:
        """Number of trials whose end was reported."""
        return len(self._ended_ids)

    def new_messages(self, trials: Sequence[TrialRecord]) -> list[str]:
        """Return the messages about events that were not reported before.

        Args:
            trials: All trials after the latest report.
        """
        lines = []
        epoch = _min_epoch(trials)
        if self._is_population_based and epoch > self._last_step_epoch:
            self._last_step_epoch = epoch
            lines += _describe_step(epoch, trials)
        for trial in trials:
            if trial.state != "running" and trial.id not in self._ended_ids:
                self._ended_ids.add(trial.id)
                lines.append(
                    f"{len(self._ended_ids)}/{self._num_trials} trial {trial.id} {trial.state} "
                    f"after {pluralize(len(trial.epochs), 'epoch')}, loss {trial.loss:.4g}. "
                    f"{trial.reason}".strip()
                )
        return lines


def _min_epoch(trials: Sequence[TrialRecord]) -> int:
    """Return the last epoch that all trials have reached, except failed trials."""
    return min((len(trial.epochs) for trial in trials if trial.state != "failed"), default=0)


def _describe_step(epoch: int, trials: Sequence[TrialRecord]) -> list[str]:
    copying_ids = [trial.id for trial in trials if trial.schedule[-1].from_epoch == epoch]
    # Trials that copied another trial are excluded, because they have the losses of that trial.
    loss_by_id = {
        trial.id: trial.epochs[-1].val_loss
        for trial in trials
        if trial.epochs and trial.id not in copying_ids
    }
    loss_by_id = {trial_id: loss for trial_id, loss in loss_by_id.items() if math.isfinite(loss)}
    if not loss_by_id:
        return []  # the messages about the end of the trials contain the reasons
    best_id = min(loss_by_id, key=loss_by_id.__getitem__)
    worst_id = max(loss_by_id, key=loss_by_id.__getitem__)
    num_changed = sum(len(trial.schedule) > 1 for trial in trials)
    return [
        f"population after epoch {epoch}: best loss {loss_by_id[best_id]:.4g} (trial {best_id}), "
        "worst loss of a trial that keeps its weights "
        f"{loss_by_id[worst_id]:.4g} (trial {worst_id}); "
        f"{len(copying_ids)} copied another trial's weights "
        f"({', '.join(map(str, copying_ids)) or 'none'}); the values of {num_changed} "
        f"of {len(trials)} trials were changed so far"
    ]
