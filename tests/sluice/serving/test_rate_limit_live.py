"""Request limits, expired leases and a hanging source of splits, on running servers."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx

from sluice.base.errors import StorageError
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.deployed import DeployedModel
from tests.sluice.serving.serving_samples import (
    GatedNetwork,
    LinearNetwork,
    SplitSource,
    candidate,
    deployed,
    run_server,
)
from tests.sluice.serving.serving_samples import quick_settings as quick

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)
ONE = TrafficSplit(epoch=1, production=candidate("one"))


def test_requests_beyond_the_rate_get_429_and_are_counted() -> None:
    model = deployed("one", 1, LinearNetwork(1.0))
    settings = quick(requests_per_s=0.01, burst_requests=3)
    with run_server({model.candidate: model}, ONE, settings=settings) as server:
        responses = [server.predict(1.0) for _ in range(5)]
        key = 'sluice_http_requests_total{method="POST",route="/predict",status="429"}'

        assert [a.status_code for a in responses] == [200, 200, 200, 429, 429]
        assert responses[-1].headers["retry-after"] == "1"
        assert server.metrics()[key] == 2
        assert httpx.get(f"{server.url}/readyz").status_code == 200


def test_requests_beyond_the_concurrency_limit_get_503() -> None:
    network = GatedNetwork(1.0)
    model = deployed("one", 1, network)
    with run_server({model.candidate: model}, ONE, settings=quick(max_in_flight=2)) as server:
        network.gate.clear()
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(server.predict, 1.0) for _ in range(2)]
            server.wait_for(lambda: server.serving.admission.num_predicting == 2)
            refused = server.predict(1.0)
            network.gate.set()

    assert refused.status_code == 503
    assert refused.json()["kind"] == "overloaded"
    assert {response.result().status_code for response in waiting} == {200}


def test_hanging_production_is_reported_on_healthz() -> None:
    network = GatedNetwork(1.0)
    model = deployed("one", 1, network)
    settings = quick(deadline_s=0.02, challenger_deadline_s=0.01)
    with run_server({model.candidate: model}, ONE, settings=settings) as server:
        network.gate.clear()
        server.predict(1.0)
        server.wait_for(lambda: httpx.get(f"{server.url}/healthz").status_code == 503)
        ready = httpx.get(f"{server.url}/readyz").json()["ready"]
        network.gate.set()
        server.wait_for(lambda: httpx.get(f"{server.url}/healthz").status_code == 200)

    assert not ready


def test_an_expired_lease_stays_expired_when_the_clock_goes_back() -> None:
    models = [deployed("one", 1, LinearNetwork(1.0)), deployed("two", 2, LinearNetwork(2.0))]
    now = [NOON]
    split = TrafficSplit(
        epoch=2,
        production=candidate("one"),
        challenger=candidate("two"),
        rollout="r",
        share=1.0,
        expires_at=NOON + timedelta(minutes=1),
    )
    with run_server(
        {m.candidate: m for m in models}, split, settings=quick(), clock=lambda: now[0]
    ) as server:
        arms = [server.predict(1.0).json()["arm"]]
        for moment in (NOON + timedelta(minutes=2), NOON):
            now[0] = moment
            arms.append(server.predict(1.0).json()["arm"])
        renewed = NOON + timedelta(minutes=9)
        server.source.split = split.model_copy(update={"expires_at": renewed})
        server.wait_for(lambda: server.serving.router.table.split.expires_at == renewed)
        arms.append(server.predict(1.0).json()["arm"])

    assert arms == ["challenger", "production", "production", "challenger"]


def test_a_hanging_source_is_read_once_and_delays_no_request() -> None:
    released = threading.Event()
    calls = []

    class HangingSource(SplitSource):
        def read(self) -> TrafficSplit:
            calls.append(1)
            if len(calls) == 3:
                released.wait(20)
            return self.split

    model = deployed("one", 1, LinearNetwork(1.0))
    settings = quick(registry_timeout_s=0.05)
    with run_server(
        {model.candidate: model}, ONE, settings=settings, source=HangingSource(ONE)
    ) as server:
        server.wait_for(lambda: server.serving.split_sync.problems != [])
        server.wait_for(lambda: server.metrics()["sluice_weights_failures_total"] >= 3)
        response, num_reads, problems = (
            server.predict(1.0),
            len(calls),
            server.serving.split_sync.problems,
        )
        released.set()
        server.wait_for(lambda: server.serving.split_sync.problems == [])

    assert response.status_code == 200
    assert num_reads == 3
    assert "no answer within 0.05 s" in problems[0]


def test_a_hanging_load_blocks_neither_predictions_nor_shutdown() -> None:
    released = threading.Event()

    class Models(dict[str, DeployedModel]):
        def __missing__(self, _: str) -> DeployedModel:
            released.wait(20)
            raise StorageError("The store is gone.", fix="Wait.")

    model = deployed("one", 1, LinearNetwork(1.0))
    with run_server(Models({model.candidate: model}), ONE, settings=quick()) as server:
        server.source.split = TrafficSplit(epoch=2, production=candidate("two"))
        server.wait_for(lambda: any(t.name == "loading" for t in threading.enumerate()))
        response = server.predict(1.0)
    still_loading = any(t.name == "loading" for t in threading.enumerate())
    released.set()

    assert (response.status_code, response.json()["version"]) == (200, 1)
    assert still_loading
