"""What the checks of the gate look at, made when a check first asks for it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import pandas as pd

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError
from sluice.config.poc_settings import PocSettings
from sluice.data.folds import Fold
from sluice.data.table import TableRecord, load_table
from sluice.failfast.learning.mini_training import MiniTraining, run_mini_training
from sluice.findings.user_code import users_code
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Examples, Workload

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredData:
    """Tables that an earlier stage stored; the gate then looks at exactly these."""

    raw: TableRecord
    features: TableRecord
    folds: tuple[Fold, ...]
    artifacts: Path


@dataclass(frozen=True, kw_only=True)
class GateInputs:
    """A workload, how it is to be trained, and its data.

    Without ``stored`` the workload loads its own rows. Every table is made once, inside the first
    check that needs it, so that a defect in making it belongs to that check.
    """

    workload: Workload
    model: ModelSettings
    training: TrainSettings
    settings: PocSettings
    seed: int
    folder: Path
    """Existing folder on the disk that will hold the run's files; nothing is left in it."""
    clock: Clock
    """The time, with a time zone; also measures how long checks take."""
    stored: StoredData | None = None
    served: bool = False
    """It is a pipeline's: what is promoted is to be served."""

    @cached_property
    def raw(self) -> pd.DataFrame:
        """The raw rows."""
        if self.stored is not None:
            return load_table(self.stored.raw, ArtifactStore(self.stored.artifacts))
        with users_code("load_rows of the workload"):
            return self.workload.load_rows()

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The feature frame."""
        if self.stored is not None:
            return load_table(self.stored.features, ArtifactStore(self.stored.artifacts))
        with users_code("compute_features of the workload"):
            return self.workload.compute_features(self.raw)

    @cached_property
    def folds(self) -> tuple[Fold, ...]:
        """The folds over the frame; at least one.

        Raises:
            ContractError: There is no fold.
        """
        if self.stored is not None:
            folds = self.stored.folds
        else:
            with users_code("plan_folds of the workload"):
                folds = self.workload.plan_folds(self.frame)
        if not folds:
            raise ContractError(
                "At least one fold is required, plan_folds() gave none.",
                fix="Give more rows, or fewer and larger folds.",
            )
        return folds

    @cached_property
    def train(self) -> Examples:
        """Train examples of the first fold."""
        return self.workload.examples(self.frame, self.folds[0].train)

    @cached_property
    def held_out(self) -> Examples:
        """Validation examples of the first fold; no check looks at test rows."""
        return self.workload.examples(self.frame, self.folds[0].val)

    @cached_property
    def mini(self) -> MiniTraining:
        """A training of seconds, which several checks judge."""
        return run_mini_training(
            self.workload, self.model, self.training, self.train, self.settings, seed=self.seed
        )
