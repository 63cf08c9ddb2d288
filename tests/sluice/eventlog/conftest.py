"""Fixture of a clock for event logs."""

from tests.sluice.failfast.conftest import clock  # noqa: F401  fixture
