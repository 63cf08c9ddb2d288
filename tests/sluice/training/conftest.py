"""Builds fold runs of the sine workload in a temporary home folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.data.table import save_table
from sluice.models.settings import ModelSettings
from sluice.training.fold_run_spec import FoldRunSpec
from sluice.training.settings import TrainSettings
from tests.support.synthetic import SineSettings, SineWorkload


def make_specs(
    home: Path,
    *,
    seeds=(0,),
    folds=1,
    hidden=6,
    max_epochs=4,
    dropout=0.2,
    model=None,
    **settings,
) -> list[FoldRunSpec]:
    """Return one fold run per seed in ``seeds`` and each of the first ``folds`` folds."""
    # Short trainings write no checkpoint by default.
    training = {"batch_rows": 32, "learning_rate": 1e-2, "checkpoint_every_epochs": 1}
    training |= {n: settings.pop(n) for n in list(settings) if n in TrainSettings.model_fields}
    workload = SineWorkload(SineSettings(**settings))
    frame = workload.compute_features(workload.load_rows())
    table = save_table(frame, ArtifactStore(home / "artifacts"))
    return [
        FoldRunSpec(
            workload="tests.support.synthetic:SineWorkload",
            workload_settings=settings,
            model=model or ModelSettings(hidden=hidden, layers=2, dropout=dropout),
            training=TrainSettings(max_epochs=max_epochs, **training),
            seed=seed,
            fold=fold,
            table=table,
            artifacts=home / "artifacts",
            runs=home / "runs",
        )
        for seed in seeds
        for fold in workload.plan_folds(frame)[:folds]
    ]


@pytest.fixture
def specs(tmp_path) -> Callable[..., list[FoldRunSpec]]:
    def build(folder: str = "home", **options) -> list[FoldRunSpec]:
        return make_specs(tmp_path / folder, **options)

    return build
