"""ROLL-1, ROLL-2: routing and counting; no fault of a challenger reaches users."""

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


def counts(server: RunningServer, arm: str) -> dict[str, int]:
    window = server.client.get("/rollout").json()["window"]
    return {kind: number for kind, number in window[arm].items() if number and kind != "slower"}


def test_every_response_names_its_arm_and_version(server: RunningServer) -> None:
    split = server.set_challenger("two", share=1.0)
    answer = server.predict(1.0, user="ada")
    said = answer.json()

    assert said["outputs"] == [[3.0]]
    assert (said["arm"], said["version"], said["candidate"]) == ("challenger", 2, candidate("two"))
    assert (said["rollout"], said["epoch"]) == ("r-two", split.epoch)
    assert answer.headers["x-sluice-arm"] == "challenger"
    assert answer.headers["x-sluice-version"] == "2"
    assert answer.headers["x-sluice-rollout"] == "r-two"


def test_without_a_rollout_there_is_no_window(server: RunningServer) -> None:
    answer = server.predict(1.0)

    assert answer.json()["rollout"] is None
    assert "x-sluice-rollout" not in answer.headers
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
    answer = server.predict(1.0, user="ada")
    said = answer.json()

    assert answer.status_code == 200
    assert (said["outputs"], said["arm"], said["fallback"]) == ([[2.0]], "production", True)
    assert counts(server, "challenger") == {"requests": 1, fault: 1}
    assert counts(server, "production") == {}, "a fallback is the challenger's request"
    line = next(x for x in reversed(server.lines()) if x.get("trace") == said["trace"])
    assert line["challenger_fault"] == fault
    assert "secret payload" not in server.log.getvalue()
    assert server.metrics()[f'sluice_arm_faults_total{{arm="challenger",fault="{fault}"}}'] >= 1


def test_a_hanging_challenger_delays_no_request_once_its_queue_is_full(
    server: RunningServer,
) -> None:
    server.set_challenger("hangs")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: server.predict(1.0).json(), range(8)))

    assert all(answer["outputs"] == [[2.0]] for answer in answers)
    assert counts(server, "challenger") == {"requests": 8, "timeouts": 8}


def test_production_is_counted_late_by_the_challengers_deadline(server: RunningServer) -> None:
    """Otherwise a briefly busy host would count against the challenger only."""
    server.set_challenger("two", share=1e-9)
    gated = server.models[candidate("one")].networks[0]
    assert isinstance(gated, GatedNetwork)
    gated.gate.clear()
    opening = threading.Timer(0.35, gated.gate.set)
    opening.start()
    answer = server.predict(1.0)
    opening.join()

    assert answer.status_code == 200
    assert counts(server, "production") == {"requests": 1, "timeouts": 1}


def test_shadow_requests_are_counted_and_not_returned(server: RunningServer) -> None:
    server.set_challenger("two", share=0.0, shadow=True)
    said = server.predict(1.0).json()
    server.wait_for(lambda: counts(server, "challenger") == {"requests": 1})

    assert (said["outputs"], said["arm"]) == ([[2.0]], "production")
    assert counts(server, "production") == {"requests": 1}


def test_production_gets_the_shadow_requests_at_a_share_of_one(server: RunningServer) -> None:
    server.set_challenger("two", share=1.0, shadow=True)
    said = server.predict(1.0).json()
    server.wait_for(lambda: counts(server, "production") == {"requests": 1})

    assert (said["outputs"], said["arm"]) == ([[3.0]], "challenger")
    assert counts(server, "challenger") == {"requests": 1}


@pytest.mark.parametrize(("name", "fault"), [("raises", "errors"), ("nan", "not_finite")])
def test_failed_shadow_requests_are_counted_and_not_returned(
    server: RunningServer, name: str, fault: str
) -> None:
    server.set_challenger(name, share=0.0, shadow=True)
    said = server.predict(1.0).json()
    server.wait_for(lambda: counts(server, "challenger") == {"requests": 1, fault: 1})

    assert (said["outputs"], said["fallback"]) == ([[2.0]], False)


def test_a_hanging_shadow_drops_requests_beyond_its_queue(server: RunningServer) -> None:
    """One is begun and late; the others never began, which says nothing about the challenger.

    On a machine that is busy for longer than the time limit, another one is begun after it.
    """
    server.set_challenger("hangs", share=0.0, shadow=True)
    answers = [server.predict(1.0).json() for _ in range(40)]

    def one_began() -> bool:
        if counts(server, "challenger") != {}:
            return True
        answers.append(server.predict(1.0).json())  # on a busy machine not even the first one did
        return False

    server.wait_for(one_began)

    def dropped() -> int:
        return int(server.client.get("/rollout").json()["window"]["shadow_dropped"])

    def begun() -> int:
        return counts(server, "challenger").get("requests", 0)

    server.wait_for(lambda: dropped() + begun() == len(answers))
    assert all(answer["outputs"] == [[2.0]] for answer in answers)
    assert counts(server, "challenger") == {"requests": begun(), "timeouts": begun()}
    assert dropped() > 10 * begun()


def test_the_window_is_the_same_for_prometheus(server: RunningServer) -> None:
    split = server.set_challenger("nan")
    server.predict(1.0)
    found = server.metrics()

    assert found['sluice_step_count{arm="challenger",kind="not_finite"}'] == 1
    assert found['sluice_step_count{arm="production",kind="requests"}'] == 0
    assert found["sluice_step_epoch"] == found["sluice_weights_epoch"] == split.epoch
    assert found["sluice_challenger_share"] == 1


def test_a_new_epoch_counts_from_zero(server: RunningServer) -> None:
    server.set_challenger("nan")
    server.predict(1.0)
    server.set_challenger("nan", share=0.5)

    assert counts(server, "challenger") == {}


def test_an_older_epoch_is_ignored_and_reported(server: RunningServer) -> None:
    """A promotion that a lagging replica has not read must not be undone."""
    new = server.set_challenger("two")
    server.source.split = server.source.split.model_copy(
        update={"epoch": new.epoch - 1, "share": 0.0}
    )
    server.wait_for(lambda: any("was ignored" in p for p in problems(server)))

    assert server.predict(1.0).json()["arm"] == "challenger"
    assert server.metrics()["sluice_weights_stale_total"] >= 1
    server.source.split = new


def problems(server: RunningServer) -> list[str]:
    found: list[str] = server.client.get("/problems").json()["problems"]
    return found


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

    assert counts(server, "challenger") == {"requests": 1, "not_finite": 1}


@pytest.mark.parametrize(
    ("name", "said"),
    [("other columns", "cannot answer the same requests"), ("gone", "does not load")],
)
def test_a_challenger_that_cannot_be_served_is_reported(
    server: RunningServer, name: str, said: str
) -> None:
    server.set_challenger(name)

    server.wait_for(lambda: any(said in problem for problem in problems(server)))
    assert server.predict(1.0).json()["arm"] == "production"
    assert server.client.get("/rollout").json() == {"window": None}, "there is nothing to compare"


def test_production_counts_from_when_its_challenger_is_loaded(server: RunningServer) -> None:
    """Otherwise a bad minute before would favour the challenger, and a good one the opposite."""
    one, two = server.models[candidate("one")], server.models[candidate("two")]
    models = {one.candidate: one}
    began = datetime.now(UTC)
    with run_server(models, server.source.split, settings=quick_settings()) as held:
        held.set_challenger("two", share=1e-9)
        held.wait_for(lambda: any("does not load" in problem for problem in problems(held)))
        for _ in range(3):
            held.predict(1.0)
        loaded = datetime.now(UTC)
        models[two.candidate] = two
        held.wait_for(lambda: held.serving.router.table.challenger is not None)
        held.predict(1.0)

        assert counts(held, "production") == {"requests": 1}
        window = held.serving.router.traffic_counts()
    assert window is not None
    assert began < loaded < window.since


def test_production_does_not_count_when_the_lease_is_over(server: RunningServer) -> None:
    times = [datetime.now(UTC)]
    split, settings = server.source.split, quick_settings()
    with run_server(server.models, split, settings=settings, clock=lambda: times[-1]) as held:
        held.set_challenger("two", share=1e-9, expires_at=times[0] + timedelta(seconds=60))
        held.predict(1.0)
        times.append(times[0] + timedelta(seconds=61))
        held.predict(1.0)

        assert counts(held, "production") == {"requests": 1}


def test_a_challenger_that_does_not_load_is_not_tried_at_every_lease(server: RunningServer) -> None:
    """The lease is renewed each second; the delay between two attempts is longer."""
    tried: list[str] = []
    one = server.models[candidate("one")]

    class Counted(dict[str, DeployedModel]):
        def __missing__(self, wanted: str) -> DeployedModel:
            tried.append(wanted)
            raise KeyError(wanted)

    models = Counted({one.candidate: one})
    split = TrafficSplit(epoch=1, production=one.candidate)
    with run_server(models, split, settings=quick_settings(load_retry_s=600)) as held:
        until = datetime.now(UTC) + timedelta(seconds=60)
        held.set_challenger("gone", share=0.5, expires_at=until)
        held.wait_for(lambda: any("does not load" in problem for problem in problems(held)))
        for later in range(1, 4):
            renewed = held.source.split.model_copy(
                update={"expires_at": until + timedelta(seconds=later)}
            )
            held.source.split = renewed
            held.wait_for(lambda renewed=renewed: held.serving.router.table.split == renewed)  # type: ignore[misc]
        held.set_challenger(
            "gone", share=1.0, expires_at=until
        )  # another step needs the copies, too

        assert tried == [candidate("gone")] * 2


def test_production_that_does_not_load_keeps_the_last_version(server: RunningServer) -> None:
    server.source.split = server.source.split.model_copy(
        update={"production": candidate("nan"), "epoch": server.source.split.epoch + 1}
    )

    server.wait_for(lambda: any("must be finite" in p for p in problems(server)))
    assert server.predict(1.0).json()["version"] == 1


def test_production_moves_without_a_failed_request(server: RunningServer) -> None:
    """Promotions and rollbacks under load: every request is answered by one of both."""
    stop, seen = threading.Event(), []

    def load() -> None:
        with httpx.Client(base_url=server.url, headers=dict(server.client.headers)) as client:
            while not stop.is_set():
                answer = client.post(
                    "/predict", json={"columns": ["a", "b"], "windows": [[[0, 0]] * 3]}
                )
                seen.append((answer.status_code, answer.json().get("version")))

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    for name in ("two", "one") * 5:
        server.set_split(production=candidate(name))
        enough = len(seen) + 5
        server.wait_for(lambda enough=enough: len(seen) > enough)  # type: ignore[misc]
    stop.set()
    for thread in threads:
        thread.join()

    assert {status for status, _ in seen} == {200}
    assert {version for _, version in seen} == {1, 2}
    assert len(seen) > 50


def test_arms_that_are_not_needed_end_their_threads(server: RunningServer) -> None:
    def threads() -> int:
        return sum(t.name == f"arm-{candidate('two')[:12]}" for t in threading.enumerate())

    gc.collect()  # servers of other tests
    server.wait_for(lambda: threads() == 0)
    server.set_challenger("two", share=0.5, shadow=True)
    server.predict(1.0)
    assert threads() == 2
    server.set_split()

    server.wait_for(lambda: threads() == 0)


def test_an_arm_that_failed_ends_its_thread_as_well(server: RunningServer) -> None:
    """Without the garbage collector, which may not come by for hours."""

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
    """Closed: production waits."""
    network = server.models[candidate("one")].networks[0]
    assert isinstance(network, GatedNetwork)
    yield network.gate
    network.gate.set()


def test_an_error_of_production_is_reported_without_request_data(server: RunningServer) -> None:
    """A model that fails to load never serves: this one must fail after it was loaded."""
    network = server.models[candidate("one")].networks[0]
    assert isinstance(network, GatedNetwork)
    network.broken = True
    answer = server.predict(1.0)
    network.broken = False
    line = next(x for x in reversed(server.lines()) if x["event"] == "model failed")

    assert answer.status_code == 500
    assert "TypeError" in answer.json()["what"]
    assert line["error"] == "TypeError"
    assert any("forward" in place for place in line["at"])
    assert "secret payload" not in server.log.getvalue() + answer.text
    assert server.predict(1.0).json()["outputs"] == [[2.0]]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_what_both_arms_fail_on_counts_for_both(server: RunningServer, share: float) -> None:
    """Otherwise a client with invalid input could end a healthy rollout or hide a faulty one."""
    network = server.models[candidate("one")].networks[0]
    assert isinstance(network, GatedNetwork)
    server.set_challenger("raises", share=share, shadow=True)
    network.broken = True
    answer = server.predict(1.0)
    server.wait_for(lambda: counts(server, "challenger") == {"requests": 1, "errors": 1})
    network.broken = False

    assert answer.status_code == 500
    assert counts(server, "production") == {"requests": 1, "errors": 1}


def test_a_timeout_of_production_is_reported_in_time(
    server: RunningServer, gate: threading.Event
) -> None:
    gate.clear()
    began = time.monotonic()
    answer = server.predict(1.0)

    assert answer.status_code == 504
    assert answer.json()["kind"] == "prediction_timeout"
    assert time.monotonic() - began > 1.0


def test_the_event_loop_is_free_while_a_model_computes(
    server: RunningServer, gate: threading.Event
) -> None:
    gate.clear()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.predict, 1.0)
        for _ in range(3):
            assert httpx.get(f"{server.url}/healthz").status_code == 200
        gate.set()

    # Computed until the gate was open, or told that it is late: that needs the loop, too.
    assert asked.result().status_code in (200, 504)


def test_waiting_requests_are_computed_in_one_batch(
    server: RunningServer, gate: threading.Event
) -> None:
    gate.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(server.predict, float(n)) for n in range(8)]
        server.wait_for(lambda: server.serving.router.table.production.num_waiting == 8)
        gate.set()

    assert [a.result().json()["outputs"] for a in asked] == [[[n + 1.0]] for n in range(8)]
