"""Objective of a search: trainings of the sine workload on its first fold."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.data.table import load_table, save_table
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.tuning.objective import TrainingObjective
from sluice.tuning.spaces import TrialSettings
from tests.support.synthetic import SineSettings, SineWorkload

SINE = TrialSettings(
    model=ModelSettings(hidden=6, layers=2, dropout=0.2),
    training=TrainSettings(max_epochs=6, batch_rows=32, learning_rate=1e-2),
)


def make_objective(home: Path, *, base=SINE, folds=1, **settings) -> TrainingObjective:
    workload = SineWorkload(SineSettings(**settings))
    frame = workload.compute_features(workload.load_rows())
    store = ArtifactStore(home / "artifacts")
    table = save_table(frame, store)
    return TrainingObjective(
        workload="tests.support.synthetic:SineWorkload",
        workload_settings=settings,
        base=base,
        seed=0,
        folds=workload.plan_folds(frame)[:folds],
        table=table,
        frame=load_table(table, store),
    )


@pytest.fixture
def objective(tmp_path) -> Callable[..., TrainingObjective]:
    def build(**options) -> TrainingObjective:
        return make_objective(tmp_path / "home", **options)

    return build
