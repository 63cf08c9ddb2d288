"""Trainings of the sine workload."""

from tests.sluice.training.conftest import specs  # noqa: F401  a fixture
