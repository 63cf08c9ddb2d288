"""Makes the PostgreSQL server of the registry tests available to the data tests."""

from tests.sluice.registry.conftest import postgres_server as postgres_server
