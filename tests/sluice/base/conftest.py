"""Fixtures: an artifact store, and trainings of the sine workload."""

from tests.sluice.registry.conftest import store  # noqa: F401  a fixture
from tests.sluice.training.conftest import specs  # noqa: F401  a fixture
