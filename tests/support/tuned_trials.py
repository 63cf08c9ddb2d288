"""Objectives whose trials fail once in a worker."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from sluice.tuning.objective import Objective
from tests.support.toy_search import LR, Toy


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledAfterReport:
    """After its first report, the first worker damages files of the study and kills itself."""

    objective: Objective
    marker: Path
    """File that marks that this has happened."""
    study: Path
    damaged: str = ""
    """Pattern of the files in the study's folder that are damaged."""

    def subject(self):
        return self.objective.subject()

    def train(self, schedule, *, start, report_epochs):
        for report in self.objective.train(schedule, start=start, report_epochs=report_epochs):
            yield report
            if not self.marker.exists():
                self.marker.touch()
                for path in self.study.rglob(self.damaged) if self.damaged else ():
                    content = path.read_bytes()
                    path.write_bytes(content[:-20])
                os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingByRate(Toy):
    """Raises an error that depends on the learning rate, after the first report."""

    errors: dict[float, Exception]
    forgiven: bool = False
    """Whether only the first attempt raises the error."""

    def train(self, schedule, *, start, report_epochs):
        reports = Toy.train(self, schedule, start=start, report_epochs=report_epochs)
        if start is None:
            yield next(reports)
        error = self.errors.get(schedule[-1].params[LR])
        if error is not None and (start is None or not self.forgiven):
            raise error
        yield from reports
