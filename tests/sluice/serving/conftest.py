from collections.abc import Iterator

import pytest

from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.contract import InputContract
from tests.sluice.serving.serving_samples import (
    Gated,
    Hangs,
    Live,
    Raises,
    Says,
    SaysNaN,
    candidate,
    deployed,
    live,
    quick_settings,
)

OTHER = InputContract(columns=("a", "c"), seq_len=3)


@pytest.fixture(scope="session")
def running() -> Iterator[Live]:
    """One server for all tests of a file: 'one' is in production, the others are candidates."""
    models = [
        deployed("one", 1, Gated(1.0), Gated(1.0)),
        deployed("two", 2, Says(2.0)),
        deployed("raises", 3, Raises()),
        deployed("hangs", 4, hanging := Hangs()),
        deployed("nan", 5, SaysNaN()),
        deployed("other columns", 6, Says(6.0), contract=OTHER),
    ]
    with live(
        {model.candidate: model for model in models},
        TrafficSplit(epoch=1, production=candidate("one")),
        settings=quick_settings(),
    ) as server:
        yield server
        hanging.go.set()


@pytest.fixture
def server(running: Live) -> Iterator[Live]:
    """The server with all traffic on 'one', before and after."""
    yield running
    running.source.down = False
    running.put()
