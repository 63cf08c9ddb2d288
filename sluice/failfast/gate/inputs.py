"""Inputs of the gate's checks, computed on first access."""

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
from sluice.failfast.learning.example_sampling import sample_evenly
from sluice.failfast.learning.mini_training import MiniTraining, run_mini_training
from sluice.findings.user_code import wrap_user_errors
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples
from sluice.workloads.fitted_state import fit_workload
from sluice.workloads.workload import Workload

Clock = Callable[[], datetime]

_MAX_EXAMPLES_WITH_LARGE_OUTPUTS = 256
"""Maximum number of validation examples if the outputs of the workload are large
(``keep_outputs`` is False), because a check holds the outputs of all these examples in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredData:
    """Tables and folds that an earlier stage stored. The gate checks them instead of new tables."""

    raw: TableRecord
    features: TableRecord
    folds: tuple[Fold, ...]
    artifacts: Path


@dataclass(frozen=True, kw_only=True)
class GateInputs:
    """A workload, its training settings and its data.

    Without ``stored_data``, the workload loads the rows. Every table is computed once, inside
    the first check that needs it, so that an error is attributed to that check.
    """

    workload: Workload
    model_settings: ModelSettings
    train_settings: TrainSettings
    settings: PocSettings
    seed: int
    folder: Path
    """Existing folder in which checks write files and delete them again. It should be on the disk
    to which a training writes, because the checks test whether files can be written there."""
    clock: Clock
    """Function that returns the current time with a time zone; also used to time the checks."""
    stored_data: StoredData | None = None
    is_served: bool = False
    """Whether the workload belongs to a pipeline, whose promoted model is served."""
    guarded_metrics: tuple[str, ...] = ()
    """Metrics that the promotion gate guards; the workload must compute them."""

    @cached_property
    def raw(self) -> pd.DataFrame:
        """The raw rows."""
        if self.stored_data is not None:
            return load_table(self.stored_data.raw, ArtifactStore(self.stored_data.artifacts))
        with wrap_user_errors("load_rows of the workload"):
            return self.workload.load_rows()

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The feature frame."""
        if self.stored_data is not None:
            return load_table(self.stored_data.features, ArtifactStore(self.stored_data.artifacts))
        with wrap_user_errors("compute_features of the workload"):
            return self.workload.compute_features(self.raw)

    @cached_property
    def folds(self) -> tuple[Fold, ...]:
        """The folds over the feature frame; at least one.

        Raises:
            ContractError: ``plan_folds`` returned no fold.
        """
        if self.stored_data is not None:
            folds = self.stored_data.folds
        else:
            with wrap_user_errors("plan_folds of the workload"):
                folds = self.workload.plan_folds(self.frame)
        if not folds:
            raise ContractError(
                "At least one fold is required, plan_folds() returned none.",
                fix="Provide more rows, or plan fewer or smaller folds.",
            )
        return folds

    @cached_property
    def fitted(self) -> Workload:
        """The workload with the state that it fits on the train rows of the first fold."""
        with wrap_user_errors("fit of the workload"):
            return fit_workload(self.workload, self.frame, self.folds[0])

    @cached_property
    def train(self) -> Examples:
        """Train examples of the first fold."""
        return self.workload.examples(self.frame, self.folds[0].train)

    @cached_property
    def held_out(self) -> Examples:
        """Validation examples of the first fold, because no check may predict test rows.

        For large outputs of the workload (``keep_outputs`` is False), at most 256 evenly spaced
        examples are used.
        """
        examples = self.workload.examples(self.frame, self.folds[0].val)
        if self.workload.keep_outputs:
            return examples
        return sample_evenly(examples, _MAX_EXAMPLES_WITH_LARGE_OUTPUTS)

    @cached_property
    def mini_training(self) -> MiniTraining:
        """The mini training of a few seconds, whose result several checks use."""
        return run_mini_training(
            self.fitted,
            self.model_settings,
            self.train_settings,
            self.train,
            self.settings,
            seed=self.seed,
        )
