"""Objectives whose trials fail in a worker."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from sluice.tuning.objective import Objective
from tests.support.toy_search import LR, Toy


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledAfterReport:
    """The first worker damages files of the study and kills itself, after its first report."""

    objective: Objective
    marker: Path
    """File that the first worker creates, so that later workers do not do this."""
    study: Path
    damaged_files: str = ""
    """Pattern of the damaged files in the study's folder; empty for none."""

    def subject(self):
        return self.objective.subject()

    def train(self, schedule, *, start, report_epochs):
        for report in self.objective.train(schedule, start=start, report_epochs=report_epochs):
            yield report
            if not self.marker.exists():
                self.marker.touch()
                for path in self.study.rglob(self.damaged_files) if self.damaged_files else ():
                    content = path.read_bytes()
                    path.write_bytes(content[:-20])
                os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingByRate(Toy):
    """Raises an error after the first report. The error depends on the learning rate."""

    errors: dict[float, Exception]
    fails_only_first: bool = False
    """Whether only the first attempt raises the error."""

    def train(self, schedule, *, start, report_epochs):
        reports = Toy.train(self, schedule, start=start, report_epochs=report_epochs)
        if start is None:
            yield next(reports)
        error = self.errors.get(schedule[-1].params[LR])
        if error is not None and (start is None or not self.fails_only_first):
            raise error
        yield from reports
