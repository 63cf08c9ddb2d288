from datetime import UTC, datetime, timedelta

import pytest

from sluice.config.poc_settings import PocSettings
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings


class TickingClock:
    """A clock that advances by ``step_s`` with each call."""

    def __init__(self, step_s: float = 0.001) -> None:
        self.step = timedelta(seconds=step_s)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += self.step
        return self.now


@pytest.fixture
def clock():
    return TickingClock()


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
def load_train_examples():
    """Function that returns the train examples of a workload's first fold."""

    def load(workload):
        frame = workload.compute_features(workload.load_rows())
        return workload.examples(frame, workload.plan_folds(frame)[0].train)

    return load
