"""What there is to tell while a search runs."""

import math
from collections.abc import Sequence

from sluice.base.pluralize import counted
from sluice.tuning.records import Trial


class SearchNews:
    """Tells once of every trial that ended, and with PBT of every step of the population.

    The members of a population end all at once: without its steps nothing is heard for hours.
    """

    def __init__(self, *, num_trials: int, population: bool) -> None:
        self._num_trials, self._population = num_trials, population
        self._ended: set[int] = set()
        self._stepped = 0
        """Epoch of the last step that was told."""

    @property
    def num_ended(self) -> int:
        """Trials that ended so far."""
        return len(self._ended)

    def lines(self, trials: Sequence[Trial]) -> list[str]:
        """Return what is new.

        Args:
            trials: All trials as they are after an outcome.
        """
        lines = []
        epoch = _epoch_of_all(trials)
        if self._population and epoch > self._stepped:
            self._stepped = epoch
            lines += _step(epoch, trials)
        for trial in trials:
            if trial.state != "running" and trial.id not in self._ended:
                self._ended.add(trial.id)
                lines.append(
                    f"{len(self._ended)}/{self._num_trials} trial {trial.id} {trial.state} after "
                    f"{counted(len(trial.epochs), 'epoch')}, loss {trial.loss:.4g}. "
                    f"{trial.reason}".strip()
                )
        return lines


def _epoch_of_all(trials: Sequence[Trial]) -> int:
    """Return the epoch that every member has reached which did not fail."""
    return min((len(trial.epochs) for trial in trials if trial.state != "failed"), default=0)


def _step(epoch: int, trials: Sequence[Trial]) -> list[str]:
    moved = [trial.id for trial in trials if trial.schedule[-1].from_epoch == epoch]
    losses = {
        trial.id: trial.epochs[-1].val_loss
        for trial in trials
        if trial.epochs and trial.id not in moved  # those that moved have their donor's losses
    }
    losses = {trial: loss for trial, loss in losses.items() if math.isfinite(loss)}
    if not losses:
        return []  # the ends of all members say why
    best, worst = min(losses, key=losses.__getitem__), max(losses, key=losses.__getitem__)
    total = sum(len(trial.schedule) > 1 for trial in trials)
    return [
        f"population after epoch {epoch}: best loss {losses[best]:.4g} (trial {best}), worst that "
        f"stays {losses[worst]:.4g} (trial {worst}); {len(moved)} took over another's weights "
        f"now ({', '.join(map(str, moved)) or 'none'}), {total} of {len(trials)} descend from a "
        "change"
    ]
