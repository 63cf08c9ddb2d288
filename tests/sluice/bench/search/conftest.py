"""Objectives on the sine workload."""

from tests.sluice.tuning.conftest import objective  # noqa: F401  a fixture
