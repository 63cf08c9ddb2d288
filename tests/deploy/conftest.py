from tests.sluice.registry.conftest import postgres_server as postgres_server
