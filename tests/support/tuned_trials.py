"""Objectives whose trials meet with an accident in a worker, once."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from sluice.tuning.objective import Objective
from tests.support.toy_search import LR, Toy


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledAfterReport:
    """The first worker that reported once damages files of the study and is killed."""

    objective: Objective
    marker: Path
    """File that says that it happened."""
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
    """Each learning rate has an error of its own, which is raised after the first report."""

    errors: dict[float, Exception]
    forgiven: bool = False
    """The error is raised by the first attempt alone."""

    def train(self, schedule, *, start, report_epochs):
        reports = Toy.train(self, schedule, start=start, report_epochs=report_epochs)
        if start is None:
            yield next(reports)
        error = self.errors.get(schedule[-1].params[LR])
        if error is not None and (start is None or not self.forgiven):
            raise error
        yield from reports
