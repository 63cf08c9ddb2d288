"""A real database server for the tests of sources."""

from tests.sluice.registry.conftest import postgres_server as postgres_server
