"""Registry URL for ledger tests that do not depend on the kind of database.

They use SQLite, and PostgreSQL only in the exhaustive tests.
"""

from pathlib import Path

import pytest

from tests.sluice.registry.conftest import empty_registry

ON_BOTH = pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
"""Marks a test of behaviour that depends on the database; it also runs on PostgreSQL if slow."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.exhaustive)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty registry in SQLite, in exhaustive tests also in PostgreSQL."""
    return empty_registry(request, tmp_path)
