from tests.sluice.registry.conftest import postgres_server as postgres_server
from tests.sluice.registry.conftest import store as store
