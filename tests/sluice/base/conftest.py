"""Makes fixtures of other folders available: an artifact store and specs of fold runs."""

from tests.sluice.registry.conftest import store  # noqa: F401  a fixture
from tests.sluice.training.conftest import specs  # noqa: F401  a fixture
