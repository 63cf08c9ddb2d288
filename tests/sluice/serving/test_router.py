"""ROLL-1, ROLL-2: requests are routed and counted, and faults of a challenger reach no user."""

import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.deployed import DeployedModel
from tests.sluice.serving.serving_samples import (
    GatedNetwork,
    RunningServer,
    candidate,
    quick_settings,
    run_server,
)


def count_requests(server: RunningServer, arm: str) -> dict[str, int]:
    window = server.client.get("/rollout").json()["window"]
    return {kind: number for kind, number in window[arm].items() if number and kind != "slower"}


def test_every_response_names_its_arm_and_version(server: RunningServer) -> None:
    split = server.set_challenger("two", share=1.0)
    response = server.predict(1.0, user="ada")
    payload = response.json()

    assert payload["outputs"] == [[3.0]]
    assert (payload["arm"], payload["version"], payload["candidate"]) == (
        "challenger",
        2,
        candidate("two"),
    )
    assert (payload["rollout"], payload["epoch"]) == ("r-two", split.epoch)
    assert response.headers["x-sluice-arm"] == "challenger"
    assert response.headers["x-sluice-version"] == "2"
    assert response.headers["x-sluice-rollout"] == "r-two"


def test_without_a_rollout_there_are_no_traffic_counts(server: RunningServer) -> None:
    response = server.predict(1.0)

    assert response.json()["rollout"] is None
    assert "x-sluice-rollout" not in response.headers
    assert server.client.get("/rollout").json() == {"window": None}


def test_a_user_keeps_the_challenger_while_its_share_increases(server: RunningServer) -> None:
    users = [f"user {number}" for number in range(30)]
    chosen: list[set[str]] = []
    for share in (0.0, 0.25, 0.5, 1.0):
        server.set_challenger("two", share=share)
        arms = {user: server.predict(0.0, user=user).json()["arm"] for user in users}
        chosen.append({user for user, arm in arms.items() if arm == "challenger"})

    assert chosen[0] == set()
    assert chosen[0] < chosen[1] < chosen[2] < chosen[3] == set(users)


@pytest.mark.parametrize(
    ("name", "fault"), [("raises", "errors"), ("hangs", "timeouts"), ("nan", "not_finite")]
)
def test_production_answers_when_the_challenger_fails(
    server: RunningServer, name: str, fault: str
) -> None:
    server.set_challenger(name)
    response = server.predict(1.0, user="ada")
    payload = response.json()

    assert response.status_code == 200
    assert (payload["outputs"], payload["arm"], payload["fallback"]) == (
        [[2.0]],
        "production",
        True,
    )
    assert count_requests(server, "challenger") == {"requests": 1, fault: 1}
    assert count_requests(server, "production") == {}, (
        "a fallback counts as a request of the challenger"
    )
    line = next(x for x in reversed(server.lines()) if x.get("trace") == payload["trace"])
    assert line["challenger_fault"] == fault
    assert "secret payload" not in server.log.getvalue()
    assert server.metrics()[f'sluice_arm_faults_total{{arm="challenger",fault="{fault}"}}'] >= 1


def test_a_hanging_challenger_delays_no_request_once_its_queue_is_full(
    server: RunningServer,
) -> None:
    server.set_challenger("hangs")
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda _: server.predict(1.0).json(), range(8)))

    assert all(response["outputs"] == [[2.0]] for response in responses)
    assert count_requests(server, "challenger") == {"requests": 8, "timeouts": 8}


def test_timeouts_of_production_use_the_deadline_of_the_challenger(server: RunningServer) -> None:
    """Otherwise a briefly busy host would count against the challenger only."""
    server.set_challenger("two", share=1e-9)
    gated = server.models[candidate("one")].networks[0]
    assert isinstance(gated, GatedNetwork)
    gated.gate.clear()
    opening = threading.Timer(0.35, gated.gate.set)
    opening.start()
    response = server.predict(1.0)
    opening.join()

    assert response.status_code == 200
    assert count_requests(server, "production") == {"requests": 1, "timeouts": 1}


def test_shadow_requests_are_counted_and_not_returned(server: RunningServer) -> None:
    server.set_challenger("two", share=0.0, shadow=True)
    payload = server.predict(1.0).json()
    server.wait_for(lambda: count_requests(server, "challenger") == {"requests": 1})

    assert (payload["outputs"], payload["arm"]) == ([[2.0]], "production")
    assert count_requests(server, "production") == {"requests": 1}


def test_production_gets_the_shadow_requests_at_a_share_of_one(server: RunningServer) -> None:
    server.set_challenger("two", share=1.0, shadow=True)
    payload = server.predict(1.0).json()
    server.wait_for(lambda: count_requests(server, "production") == {"requests": 1})

    assert (payload["outputs"], payload["arm"]) == ([[3.0]], "challenger")
    assert count_requests(server, "challenger") == {"requests": 1}


@pytest.mark.parametrize(("name", "fault"), [("raises", "errors"), ("nan", "not_finite")])
def test_failed_shadow_requests_are_counted_and_not_returned(
    server: RunningServer, name: str, fault: str
) -> None:
    server.set_challenger(name, share=0.0, shadow=True)
    payload = server.predict(1.0).json()
    server.wait_for(lambda: count_requests(server, "challenger") == {"requests": 1, fault: 1})

    assert (payload["outputs"], payload["fallback"]) == ([[2.0]], False)


def test_a_hanging_shadow_drops_requests_beyond_its_queue(server: RunningServer) -> None:
    """One starts and times out; the others never start and are no evidence.

    If the machine is busy for longer than the timeout, another one starts after it.
    """
    server.set_challenger("hangs", share=0.0, shadow=True)
    responses = [server.predict(1.0).json() for _ in range(40)]

    def has_started() -> bool:
        if count_requests(server, "challenger") != {}:
            return True
        responses.append(
            server.predict(1.0).json()
        )  # on a busy machine the first one may not start
        return False

    server.wait_for(has_started)

    def count_dropped() -> int:
        return int(server.client.get("/rollout").json()["window"]["shadow_dropped"])

    def count_started() -> int:
        return count_requests(server, "challenger").get("requests", 0)

    server.wait_for(lambda: count_dropped() + count_started() == len(responses))
    assert all(response["outputs"] == [[2.0]] for response in responses)
    assert count_requests(server, "challenger") == {
        "requests": count_started(),
        "timeouts": count_started(),
    }
    assert count_dropped() > 10 * count_started()


def test_prometheus_metrics_equal_the_counts_of_the_step(server: RunningServer) -> None:
    split = server.set_challenger("nan")
    server.predict(1.0)
    metrics = server.metrics()

    assert metrics['sluice_step_count{arm="challenger",kind="not_finite"}'] == 1
    assert metrics['sluice_step_count{arm="production",kind="requests"}'] == 0
    assert metrics["sluice_step_epoch"] == metrics["sluice_weights_epoch"] == split.epoch
    assert metrics["sluice_challenger_share"] == 1


def test_a_new_epoch_counts_from_zero(server: RunningServer) -> None:
    server.set_challenger("nan")
    server.predict(1.0)
    server.set_challenger("nan", share=0.5)

    assert count_requests(server, "challenger") == {}


def test_an_older_epoch_is_ignored_and_reported(server: RunningServer) -> None:
    """A read from a lagging database replica must not undo a promotion."""
    new = server.set_challenger("two")
    server.source.split = server.source.split.model_copy(
        update={"epoch": new.epoch - 1, "share": 0.0}
    )
    server.wait_for(lambda: any("was ignored" in p for p in problems(server)))

    assert server.predict(1.0).json()["arm"] == "challenger"
    assert server.metrics()["sluice_weights_stale_total"] >= 1
    server.source.split = new


def problems(server: RunningServer) -> list[str]:
    metrics: list[str] = server.client.get("/problems").json()["problems"]
    return metrics


def test_an_unreachable_source_keeps_the_last_split_and_is_reported(server: RunningServer) -> None:
    server.set_challenger("two")
    server.source.down = True
    server.wait_for(lambda: problems(server) != [])
    ready = httpx.get(f"{server.url}/readyz")

    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    assert "the last known split stays in force: The registry is gone" in problems(server)[0]
    assert server.metrics()["sluice_weights_source_up"] == 0
    assert server.predict(1.0).json()["arm"] == "challenger"

    server.source.down = False
    server.wait_for(lambda: problems(server) == [])
    assert server.metrics()["sluice_weights_source_up"] == 1


def test_a_lease_expires_even_when_the_source_is_gone(
    server: RunningServer,
) -> None:
    server.set_challenger("two", expires_at=datetime.now(UTC) + timedelta(seconds=0.4))
    during = server.predict(1.0).json()["arm"]
    server.source.down = True
    server.wait_for(lambda: server.predict(1.0).json()["arm"] == "production")

    assert during == "challenger"
    server.wait_for(lambda: any("lease" in problem for problem in problems(server)))
    assert server.metrics()["sluice_challenger_share"] == 0


def test_a_renewed_lease_of_the_same_epoch_keeps_the_counts(server: RunningServer) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=60)
    split = server.set_challenger("nan", expires_at=soon)
    server.predict(1.0)
    later = split.model_copy(update={"expires_at": soon + timedelta(seconds=60)})
    server.source.split = later
    server.wait_for(lambda: server.serving.router.table.split == later)

    assert count_requests(server, "challenger") == {"requests": 1, "not_finite": 1}


@pytest.mark.parametrize(
    ("name", "message"),
    [("other columns", "cannot answer the same requests"), ("gone", "does not load")],
)
def test_a_challenger_that_cannot_be_served_is_reported(
    server: RunningServer, name: str, message: str
) -> None:
    server.set_challenger(name)

    server.wait_for(lambda: any(message in problem for problem in problems(server)))
    assert server.predict(1.0).json()["arm"] == "production"
    assert server.client.get("/rollout").json() == {"window": None}, (
        "there is no challenger to compare"
    )


def test_production_counts_from_when_its_challenger_is_loaded(server: RunningServer) -> None:
    """Requests before that have no counterpart and would bias the comparison."""
    one, two = server.models[candidate("one")], server.models[candidate("two")]
    models = {one.candidate: one}
    began = datetime.now(UTC)
    with run_server(models, server.source.split, settings=quick_settings()) as other_server:
        other_server.set_challenger("two", share=1e-9)
        other_server.wait_for(
            lambda: any("does not load" in problem for problem in problems(other_server))
        )
        for _ in range(3):
            other_server.predict(1.0)
        loaded = datetime.now(UTC)
        models[two.candidate] = two
        other_server.wait_for(lambda: other_server.serving.router.table.challenger is not None)
        other_server.predict(1.0)

        assert count_requests(other_server, "production") == {"requests": 1}
        window = other_server.serving.router.traffic_counts()
    assert window is not None
    assert began < loaded < window.since


def test_production_does_not_count_after_the_lease_expires(server: RunningServer) -> None:
    times = [datetime.now(UTC)]
    split, settings = server.source.split, quick_settings()
    with run_server(
        server.models, split, settings=settings, clock=lambda: times[-1]
    ) as other_server:
        other_server.set_challenger("two", share=1e-9, expires_at=times[0] + timedelta(seconds=60))
        other_server.predict(1.0)
        times.append(times[0] + timedelta(seconds=61))
        other_server.predict(1.0)

        assert count_requests(other_server, "production") == {"requests": 1}


def test_a_challenger_that_does_not_load_is_not_retried_at_every_lease_renewal(
    server: RunningServer,
) -> None:
    """Leases are renewed every second, but the delay between two attempts is longer."""
    attempts: list[str] = []
    one = server.models[candidate("one")]

    class FailingModels(dict[str, DeployedModel]):
        def __missing__(self, digest: str) -> DeployedModel:
            attempts.append(digest)
            raise KeyError(digest)

    models = FailingModels({one.candidate: one})
    split = TrafficSplit(epoch=1, production=one.candidate)
    with run_server(models, split, settings=quick_settings(load_retry_s=600)) as other_server:
        until = datetime.now(UTC) + timedelta(seconds=60)
        other_server.set_challenger("gone", share=0.5, expires_at=until)
        other_server.wait_for(
            lambda: any("does not load" in problem for problem in problems(other_server))
        )
        for later in range(1, 4):
            renewed = other_server.source.split.model_copy(
                update={"expires_at": until + timedelta(seconds=later)}
            )
            other_server.source.split = renewed
            other_server.wait_for(
                lambda renewed=renewed: other_server.serving.router.table.split == renewed
            )  # type: ignore[misc]
        other_server.set_challenger("gone", share=1.0, expires_at=until)  # a new step loads again

        assert attempts == [candidate("gone")] * 2


def test_production_that_does_not_load_keeps_the_last_version(server: RunningServer) -> None:
    server.source.split = server.source.split.model_copy(
        update={"production": candidate("nan"), "epoch": server.source.split.epoch + 1}
    )

    server.wait_for(lambda: any("must be finite" in p for p in problems(server)))
    assert server.predict(1.0).json()["version"] == 1


def test_production_moves_without_a_failed_request(server: RunningServer) -> None:
    """Promotions and rollbacks under load: one of the two versions responds to each request."""
    stop, results = threading.Event(), []

    def load() -> None:
        with httpx.Client(base_url=server.url, headers=dict(server.client.headers)) as client:
            while not stop.is_set():
                response = client.post(
                    "/predict", json={"columns": ["a", "b"], "windows": [[[0, 0]] * 3]}
                )
                results.append((response.status_code, response.json().get("version")))

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for name in ("two", "one") * 5:
        server.set_split(production=candidate(name))
        num_needed = len(results) + 5
        server.wait_for(lambda num_needed=num_needed: len(results) > num_needed)  # type: ignore[misc]
    stop.set()
    for thread in threads:
        thread.join()

    assert {status for status, _ in results} == {200}
    assert {version for _, version in results} == {1, 2}
    assert len(results) > 50


def test_an_unused_arm_ends_its_threads(server: RunningServer) -> None:
    def threads() -> int:
        return sum(t.name == f"arm-{candidate('two')[:12]}" for t in threading.enumerate())

    gc.collect()  # servers of other tests
    server.wait_for(lambda: threads() == 0)
    server.set_challenger("two", share=0.5, shadow=True)
    server.predict(1.0)
    assert threads() == 2
    server.set_split()

    server.wait_for(lambda: threads() == 0)


def test_an_arm_that_failed_ends_its_threads(server: RunningServer) -> None:
    """The garbage collector, which may run late, is not needed for that."""

    def threads() -> int:
        return sum(t.name == f"arm-{candidate('raises')[:12]}" for t in threading.enumerate())

    gc.collect()
    server.wait_for(lambda: threads() == 0)
    gc.disable()
    try:
        server.set_challenger("raises", share=0.5, shadow=True)
        for _ in range(3):
            server.predict(1.0)
        assert threads() == 2
        server.set_split()
        server.wait_for(lambda: threads() == 0)
    finally:
        gc.enable()


@pytest.fixture
def gate(server: RunningServer) -> Iterator[threading.Event]:
    """The gate of production's network; production blocks while it is closed."""
    network = server.models[candidate("one")].networks[0]
    assert isinstance(network, GatedNetwork)
    yield network.gate
    network.gate.set()


def test_an_error_of_production_is_reported_without_request_data(server: RunningServer) -> None:
    """A model that fails while loading is never served, so this one fails after its load."""
    network = server.models[candidate("one")].networks[0]
    assert isinstance(network, GatedNetwork)
    network.is_broken = True
    response = server.predict(1.0)
    network.is_broken = False
    line = next(x for x in reversed(server.lines()) if x["event"] == "model failed")

    assert response.status_code == 500
    assert "TypeError" in response.json()["what"]
    assert line["error"] == "TypeError"
    assert any("forward" in place for place in line["at"])
    assert "secret payload" not in server.log.getvalue() + response.text
    assert server.predict(1.0).json()["outputs"] == [[2.0]]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_request_that_fails_on_both_arms_counts_for_both(
    server: RunningServer, share: float
) -> None:
    """Otherwise a client with invalid input could end a healthy rollout or hide a faulty one."""
    network = server.models[candidate("one")].networks[0]
    assert isinstance(network, GatedNetwork)
    server.set_challenger("raises", share=share, shadow=True)
    network.is_broken = True
    response = server.predict(1.0)
    server.wait_for(lambda: count_requests(server, "challenger") == {"requests": 1, "errors": 1})
    network.is_broken = False

    assert response.status_code == 500
    assert count_requests(server, "production") == {"requests": 1, "errors": 1}


def test_a_timeout_of_production_gets_504(server: RunningServer, gate: threading.Event) -> None:
    gate.clear()
    began = time.monotonic()
    response = server.predict(1.0)

    assert response.status_code == 504
    assert response.json()["kind"] == "prediction_timeout"
    assert time.monotonic() - began > 1.0


def test_the_event_loop_is_free_while_a_model_computes(
    server: RunningServer, gate: threading.Event
) -> None:
    gate.clear()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(server.predict, 1.0)
        for _ in range(3):
            assert httpx.get(f"{server.url}/healthz").status_code == 200
        gate.set()

    # The response is the prediction or a timeout; both need the event loop.
    assert future.result().status_code in (200, 504)


def test_waiting_requests_are_computed_in_one_batch(
    server: RunningServer, gate: threading.Event
) -> None:
    gate.clear()
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(server.predict, float(n)) for n in range(8)]
        server.wait_for(lambda: server.serving.router.table.production.num_waiting == 8)
        gate.set()

    assert [future.result().json()["outputs"] for future in futures] == [
        [[n + 1.0]] for n in range(8)
    ]
