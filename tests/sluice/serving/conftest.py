from collections.abc import Iterator

import pytest

from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.contract import InputContract
from tests.sluice.serving.serving_samples import (
    GatedNetwork,
    HangingNetwork,
    LinearNetwork,
    NaNNetwork,
    RaisingNetwork,
    RunningServer,
    candidate,
    deployed,
    quick_settings,
    run_server,
)

OTHER = InputContract(columns=("a", "c"), seq_len=3)


@pytest.fixture(scope="session")
def running() -> Iterator[RunningServer]:
    """One server for the session: 'one' is in production, the others are candidates."""
    models = [
        deployed("one", 1, GatedNetwork(1.0), GatedNetwork(1.0)),
        deployed("two", 2, LinearNetwork(2.0)),
        deployed("raises", 3, RaisingNetwork()),
        deployed("hangs", 4, hanging := HangingNetwork()),
        deployed("nan", 5, NaNNetwork()),
        deployed("other columns", 6, LinearNetwork(6.0), contract=OTHER),
    ]
    with run_server(
        {model.candidate: model for model in models},
        TrafficSplit(epoch=1, production=candidate("one")),
        settings=quick_settings(),
    ) as server:
        yield server
        hanging.released.set()


@pytest.fixture
def server(running: RunningServer) -> Iterator[RunningServer]:
    """The shared server; production 'one' gets all traffic again after the test."""
    yield running
    running.source.down = False
    running.set_split()
