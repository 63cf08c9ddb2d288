from datetime import UTC, datetime, timedelta

import pytest

from sluice.config.poc_settings import PocSettings
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings


class Ticks:
    """A clock that moves on by ``step_s`` every time it is asked."""

    def __init__(self, step_s: float = 0.001) -> None:
        self.step = timedelta(seconds=step_s)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += self.step
        return self.now


@pytest.fixture
def clock():
    return Ticks()


@pytest.fixture
def settings():
    return PocSettings()


@pytest.fixture
def model():
    return ModelSettings(architecture="gru", hidden=8)


@pytest.fixture
def training():
    return TrainSettings(learning_rate=3e-3)


@pytest.fixture
def train_of():
    def examples(workload):
        frame = workload.compute_features(workload.load_rows())
        return workload.examples(frame, workload.plan_folds(frame)[0].train)

    return examples
