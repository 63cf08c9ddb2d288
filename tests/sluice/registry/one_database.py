"""For files in which most tests are about the ledger and not about what keeps it."""

from pathlib import Path

import pytest

from tests.sluice.registry.conftest import empty_registry

ON_BOTH = pytest.mark.parametrize(
    "url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True
)
"""A test in which the database itself has a part."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.exhaustive)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty registry of its own, in PostgreSQL only where all is tested."""
    return empty_registry(request, tmp_path)
