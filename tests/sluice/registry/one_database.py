"""Fixture for tests of the ledger that do not depend on the kind of database."""

from pathlib import Path

import pytest

from tests.sluice.registry.conftest import empty_registry

ON_BOTH = pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
"""A test in which the database itself has a part."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.exhaustive)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty registry, in PostgreSQL only in the exhaustive tests."""
    return empty_registry(request, tmp_path)
