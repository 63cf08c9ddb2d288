"""Work for a kill server: a training, and a search over trainings."""

import dataclasses
from pathlib import Path

from sluice.cluster.settings import ComputeSettings
from sluice.training.fold_run import train_fold_run
from sluice.training.fold_run_spec import FoldRunSpec
from sluice.training.members import Member
from sluice.tuning.objective import TrainingObjective
from sluice.tuning.records import SearchResult
from sluice.tuning.search import run_search
from sluice.tuning.settings import SearchSettings
from sluice.tuning.spaces import Space
from tests.support.simulated_tune import simulate


def ignore(*_event) -> None:
    pass


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainWork:
    """Runs a fold run, whose files are stored in a folder."""

    spec: FoldRunSpec

    def __call__(self, folder: Path) -> Member:
        return train_fold_run(dataclasses.replace(self.spec, runs=folder), ignore)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchWork:
    """Runs a search in this process, whose files are stored in a folder."""

    objective: TrainingObjective
    space: Space
    settings: SearchSettings

    def __call__(self, folder: Path) -> SearchResult:
        return run_search(
            self.objective,
            self.space,
            self.objective.base,
            self.settings,
            folder=folder,
            on_report=ignore,
            compute=ComputeSettings(),
            run=simulate,
        )
