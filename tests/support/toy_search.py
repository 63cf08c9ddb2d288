"""An objective that takes no time and has a known optimum: a learning rate of 0.01."""

import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from sluice.tuning.records import EpochLosses, TrialReport

LR = "training.learning_rate"
DROPOUT = "model.dropout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    """Objective with the loss (log10(learning rate) + 2) ** 2 + dropout + 1 / epoch."""

    nan_above: float = math.inf
    """The loss is NaN at higher learning rates."""
    raises: bool = False
    kill_above: float = math.inf
    """The worker is killed at higher learning rates."""
    kill_once: str = ""
    """File that the first killed worker creates, so that no further worker is killed; "" for no
    such limit."""
    pause_s: float = 0.0
    """Maximum pause before a report; it varies between reports [s]."""
    linger_s: float = 0.0
    """Time that the first stopped trial takes to end [s]."""
    lingered: str = ""
    """File that the first stopped trial creates, so that later trials end at once."""
    tune_waits_s: int | None = None
    """Tune's time limit for the end of a stopped trial [s]; None for the limit of the search."""
    max_epochs: int = 27
    """Number of epochs of a trial that is not stopped."""

    def subject(self):
        return {"toy": 1}

    def train(self, schedule, *, start, report_epochs):
        """Yield reports. A checkpoint contains only the number of completed epochs."""
        if self.tune_waits_s is not None:
            os.environ["TUNE_FUNCTION_THREAD_TIMEOUT_S"] = str(self.tune_waits_s)
        try:
            yield from self._reports(schedule, start, report_epochs)
        except GeneratorExit:
            if self.linger_s and not Path(self.lingered).exists():
                Path(self.lingered).touch()
                time.sleep(self.linger_s)
            raise

    def _reports(self, schedule, start, report_epochs):
        num_done = 0 if start is None else int((start / "mark").read_text())
        stop_epochs = {epoch for epoch in report_epochs if num_done < epoch < self.max_epochs}
        if schedule[-1].params[LR] > self.kill_above:
            self._die()
        for index, last_epoch in enumerate(sorted(stop_epochs | {self.max_epochs})):
            if self.raises:
                raise ZeroDivisionError("the user's bug")
            time.sleep(self.pause_s * ((index * 7 + last_epoch) % 5) / 4)
            losses = list(curve(schedule, last_epoch, self.nan_above))
            yield TrialReport(
                epochs=epoch_losses(losses),
                is_finished=last_epoch == self.max_epochs,
                reason="The last epoch." if last_epoch == self.max_epochs else "",
                save=lambda folder, epoch=last_epoch: (folder / "mark").write_text(str(epoch)),
            )

    def _die(self):
        if not (self.kill_once and Path(self.kill_once).exists()):
            if self.kill_once:
                Path(self.kill_once).touch()
            os.kill(os.getpid(), signal.SIGKILL)


def epoch_losses(losses):
    return tuple(
        EpochLosses(epoch=e, train_loss=x, val_loss=x, kept_loss=min(losses[:e]))
        for e, x in enumerate(losses, start=1)
    )


def curve(schedule, until, nan_above=math.inf):
    """Yield the loss of each epoch, which depends on the values of the schedule in this epoch."""
    for epoch in range(1, until + 1):
        settings = [s for s in schedule if s.from_epoch < epoch][-1]
        rate = settings.params[LR]
        distance = (math.log10(rate) + 2) ** 2 + float(settings.params.get(DROPOUT, 0))
        yield math.nan if rate > nan_above else distance + 1 / epoch
