"""Progress messages of a running search."""

import math
from collections.abc import Sequence

from sluice.base.pluralize import pluralize
from sluice.tuning.records import TrialRecord


class SearchProgress:
    """Reports every trial that ended, and with PBT every step of the population, once.

    The members of a population all end at the same time: without its steps there would be no
    message for hours.
    """

    def __init__(self, *, num_trials: int, population: bool) -> None:
        self._num_trials, self._population = num_trials, population
        self._ended: set[int] = set()
        self._stepped = 0
        """Epoch of the last reported step."""

    @property
    def num_ended(self) -> int:
        """Number of trials that have ended."""
        return len(self._ended)

    def lines(self, trials: Sequence[TrialRecord]) -> list[str]:
        """Return the new messages.

        Args:
            trials: All trials after the latest report.
        """
        lines = []
        epoch = _min_epoch(trials)
        if self._population and epoch > self._stepped:
            self._stepped = epoch
            lines += _step(epoch, trials)
        for trial in trials:
            if trial.state != "running" and trial.id not in self._ended:
                self._ended.add(trial.id)
                lines.append(
                    f"{len(self._ended)}/{self._num_trials} trial {trial.id} {trial.state} after "
                    f"{pluralize(len(trial.epochs), 'epoch')}, loss {trial.loss:.4g}. "
                    f"{trial.reason}".strip()
                )
        return lines


def _min_epoch(trials: Sequence[TrialRecord]) -> int:
    """Return the epoch that every member has reached, except failed ones."""
    return min((len(trial.epochs) for trial in trials if trial.state != "failed"), default=0)


def _step(epoch: int, trials: Sequence[TrialRecord]) -> list[str]:
    moved = [trial.id for trial in trials if trial.schedule[-1].from_epoch == epoch]
    losses = {
        trial.id: trial.epochs[-1].val_loss
        for trial in trials
        if trial.epochs
        and trial.id not in moved  # members that copied have the losses of their donor
    }
    losses = {trial: loss for trial, loss in losses.items() if math.isfinite(loss)}
    if not losses:
        return []  # the final messages of the members contain the reasons
    best, worst = min(losses, key=losses.__getitem__), max(losses, key=losses.__getitem__)
    total = sum(len(trial.schedule) > 1 for trial in trials)
    return [
        f"population after epoch {epoch}: best loss {losses[best]:.4g} (trial {best}), worst "
        f"continuing loss {losses[worst]:.4g} (trial {worst}); {len(moved)} copied another "
        f"trial's weights ({', '.join(map(str, moved)) or 'none'}), {total} of {len(trials)} have "
        "changed values"
    ]
