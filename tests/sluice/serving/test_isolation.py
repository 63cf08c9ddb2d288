"""A challenger that crashes, hangs or leaks ends only its own process and fails no request."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from sluice.base.errors import ContractError
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.arm import NetworkFailed
from sluice.serving.arm_process import ArmProcess
from sluice.serving.isolation import Isolation
from sluice.serving.settings import ServingSettings
from sluice.serving.wire_protocol import MAX_BYTES, OUTPUT, InvalidFrame, LoaderSpec, pack, unpack
from tests.sluice.serving.serving_samples import (
    SECRET,
    LinearNetwork,
    RunningServer,
    body,
    deployed,
    quick_settings,
    run_server,
)
from tests.support import challengers
from tests.support.challengers import CONTRACT, candidate

MEMORY = 2**27


def more(*values: Any) -> Any:
    """Another test covers most of it."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def settings(**changes: Any) -> ServingSettings:
    return quick_settings(
        challenger_deadline_s=0.3,
        max_challenger_memory_bytes=MEMORY,
        challenger_restart_delay_s=0.1,
        max_challenger_restarts=20,
        **changes,
    )


@dataclass
class Rig:
    """A server whose challengers live in processes, each of which left its number in the folder."""

    server: RunningServer
    folder: Path

    def alive(self) -> list[int]:
        """Numbers of processes that are there, zombies included."""
        return [
            int(file.name) for file in self.folder.iterdir() if psutil.pid_exists(int(file.name))
        ]

    def challenge(self, name: str | None) -> None:
        """Give all traffic to a challenger, or to production; its loading is not waited for."""
        source = self.server.source
        source.split = TrafficSplit(
            epoch=source.split.epoch + 1,
            production=candidate("one"),
            challenger=None if name is None else candidate(name),
            rollout=None if name is None else f"r-{name}",
            share=0.0 if name is None else 1.0,
        )

    def end(self) -> None:
        """Go back to production, and wait until no process is left."""
        self.challenge(None)
        wanted = self.server.source.split
        wait_for(lambda: self.server.serving.router.table.split == wanted)
        wait_for(lambda: self.alive() == [])

    def pid(self) -> int:
        """Wait until the challenger answers; return its process."""
        found: list[int] = []

        def answered() -> bool:
            said = self.server.predict(challengers.RETURN_PID, user="ada").json()
            if said["arm"] == "challenger":
                found.append(int(said["outputs"][0][0]))
            return bool(found)

        wait_for(answered)
        return found[0]


def wait_for(true: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """A process may take seconds to start on a busy machine."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"it did not happen within {seconds:g} s"
        time.sleep(0.03)


def recipe(folder: Path) -> LoaderSpec:
    return LoaderSpec(load="tests.support.challengers:load", arguments={"folder": str(folder)})


def window(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    x = np.zeros((len(values), 3, 2), np.float32)
    x[:, -1, 0] = values
    return x


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("processes")
    production = deployed("one", 1, LinearNetwork(1.0), contract=CONTRACT)
    chosen = settings()
    with Isolation(recipe(folder), chosen) as isolation:
        split = TrafficSplit(epoch=1, production=production.candidate)
        promoted = deployed("two", 2, LinearNetwork(2.0), contract=CONTRACT)
        models = {model.candidate: model for model in (production, promoted)}
        with run_server(models, split, settings=chosen, isolate=isolation.load) as server:
            yield Rig(server, folder)
    assert Rig(server, folder).alive() == []


@pytest.fixture
def two(rig: Rig) -> Iterator[Rig]:
    """All traffic on the challenger 'two', whose process is new and ends with the test."""
    rig.challenge("two")
    rig.pid()
    yield rig
    rig.end()


def counts(server: RunningServer, arm: str) -> dict[str, int]:
    found = server.client.get("/rollout").json()["window"][arm]
    return {kind: number for kind, number in found.items() if number and kind != "slower"}


def problems(server: RunningServer) -> str:
    return " ".join(server.client.get("/problems").json()["problems"])


@contextlib.contextmanager
def steady_load(server: RunningServer) -> Iterator[list[int]]:
    """Ask all the time; every answer's status."""
    stop, seen = threading.Event(), list[int]()

    def ask() -> None:
        headers = {"authorization": f"Bearer {SECRET}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=20) as client:
            while not stop.wait(0.03):
                seen.append(client.post("/predict", json=body(1.0)).status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield seen
        enough = len(seen) + 5
        wait_for(lambda: len(seen) > enough)
    finally:
        stop.set()
        thread.join(20)


def test_a_challenger_answers_from_another_process(two: Rig) -> None:
    answer = two.server.predict(3.0, -1.0, user="ada").json()

    assert (answer["outputs"], answer["arm"], answer["version"]) == (
        [[6.0], [-2.0]],
        "challenger",
        2,
    )
    assert two.alive() == [two.pid()] != [os.getpid()]
    assert problems(two.server) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "fault", "said"),
    [
        (challengers.SEGFAULT, "errors", "ended by signal SIGSEGV"),
        more(challengers.EXIT, "errors", "ended with status 3"),
        more(challengers.BABBLE, "errors", "sent an invalid frame"),
        (challengers.LEAK, "errors", "MiB, the limit is 128"),
        (challengers.LOOP, "timeouts", "hung for 3 s"),
    ],
)
def test_a_failing_process_fails_no_request_and_restarts(
    two: Rig, value: int, fault: str, said: str
) -> None:
    """Under load: production answers, the fault is counted, the problem is reported and solved."""
    before = two.pid()
    with steady_load(two.server) as statuses:
        wait_for(lambda: two.server.predict(value).json()["fallback"])
        wait_for(lambda: said in problems(two.server))
        after = two.pid()
        wait_for(lambda: problems(two.server) == "")

    assert set(statuses) == {200}
    assert counts(two.server, "challenger")[fault] >= 1
    assert counts(two.server, "production") == {}
    assert two.alive() == [after] != [before], "the old process is reaped"


def test_an_error_of_a_network_is_reported_by_its_location_only(two: Rig) -> None:
    before = two.pid()
    said = two.server.predict(challengers.RAISE).json()
    line = next(x for x in reversed(two.server.lines()) if x.get("trace") == said["trace"])

    assert (said["outputs"], said["fallback"]) == ([[1.0 + challengers.RAISE]], True)
    assert (line["challenger_fault"], line["challenger_error"]) == ("errors", "TypeError")
    assert "secret payload" not in two.server.log.getvalue()
    assert two.pid() == before


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_child_processes_of_a_challenger_end_with_it(two: Rig) -> None:
    two.server.predict(challengers.SPAWN)
    (started,) = psutil.Process(two.pid()).children()
    assert not has_ended(started)
    two.server.predict(challengers.EXIT)
    wait_for(lambda: has_ended(started))

    assert has_ended(started)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dies while loading", "the process ended by signal SIGSEGV"),
        ("raises while loading", "did not load: ImportError('no such code')"),
    ],
)
def test_a_challenger_that_does_not_load_leaves_production_serving(
    rig: Rig, name: str, said: str
) -> None:
    rig.challenge(name)

    wait_for(lambda: said in problems(rig.server))
    assert rig.server.predict(1.0).json()["arm"] == "production"
    rig.end()


def test_a_rollback_does_not_wait_for_a_challenger_that_hangs_while_it_loads(rig: Rig) -> None:
    rig.challenge("hangs while loading")
    wait_for(lambda: rig.alive() != [])
    assert "still loading" in problems(rig.server)
    rig.challenge(None)
    wanted = rig.server.source.split
    wait_for(lambda: rig.server.serving.router.table.split == wanted)
    # It hangs for a minute, which is more than anybody waited here.
    rig.end()
    assert problems(rig.server) == ""


def test_a_promotion_loads_the_challenger_in_process_without_a_failed_request(two: Rig) -> None:
    with steady_load(two.server) as statuses:
        two.server.set_split(production=candidate("two"))
        wait_for(lambda: two.alive() == [])
        answer = two.server.predict(1.0).json()

    assert (answer["arm"], answer["version"], answer["outputs"]) == ("production", 2, [[3.0]])
    assert set(statuses) == {200}


def swap(rig: Rig, times: int) -> None:
    for _ in range(times):
        rig.challenge("two")
        rig.pid()
        rig.end()


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_swaps_leave_no_process_handle_or_thread(rig: Rig, times: int) -> None:
    swap(rig, 1)
    me = psutil.Process()

    def held() -> tuple[int, int]:
        return me.num_fds(), threading.active_count()

    before, memory = held(), me.memory_info().rss
    swap(rig, times)

    wait_for(lambda: held() <= before)
    assert me.memory_info().rss - memory < 2**24


@pytest.mark.slow
def test_a_process_has_predicted_once_before_a_user_asks(tmp_path: Path) -> None:
    """A network's first prediction is slow; the guards judge one that fails."""
    with Isolation(recipe(tmp_path), settings()) as isolation:
        model = isolation.load(candidate("raises the first time"), threading.Event())

        assert model.predict(window(3.0), None).mean(axis=0).tolist() == [[6.0]]


@pytest.mark.slow
def test_restarts_are_bounded_and_the_last_error_is_reported(tmp_path: Path) -> None:
    chosen = settings().model_copy(update={"max_challenger_restarts": 1})
    with Isolation(recipe(tmp_path), chosen) as isolation:
        model = isolation.load(candidate("two"), threading.Event())
        for _ in range(2):
            wait_for(lambda: model.problem == "")
            with pytest.raises(NetworkFailed, match="process ended with status 3"):
                model.predict(window(challengers.EXIT), None)
            wait_for(lambda: model.problem != "")

        assert "does not restart (1 of 1 restarts so far)" in model.problem
        with pytest.raises(NetworkFailed, match="process ended with status 3"):
            model.predict(window(1.0), None)


def test_a_challenger_beyond_its_load_time_or_memory_is_ended(tmp_path: Path) -> None:
    late = settings(challenger_load_timeout_s=0.01)
    with (
        Isolation(recipe(tmp_path), late) as isolation,
        pytest.raises(ContractError, match="did not load within"),
    ):
        isolation.load(candidate("hangs while loading"), threading.Event())


def test_a_shadow_request_yields_between_networks_unless_a_request_waits(tmp_path: Path) -> None:
    """The same process answers both; what is asked for by a user must not wait for a copy."""
    process = ArmProcess(recipe(tmp_path), candidate("two"), environment=os.environ)
    wait_for(lambda: process.wait_for_model(1.0) is not None)
    pauses: list[str] = []
    answers: list[float] = []
    user = threading.Thread(
        target=lambda: answers.append(process.predict(window(4.0), None)[1, 0, 0])
    )

    def pause_until_somebody_waits() -> None:
        pauses.append("waited")
        user.start()
        wait_for(lambda: process.is_user_waiting)

    try:
        assert process.predict(window(5.0), lambda: pauses.append("paused"))[1, 0, 0] == 15.0
        assert process.predict(window(6.0), pause_until_somebody_waits)[1, 0, 0] == 18.0
        user.join(20)
    finally:
        process.end("was stopped")

    assert pauses == ["paused", "paused", "waited"], "two networks, and one for the user's sake"
    assert answers == [12.0]


@pytest.mark.parametrize("cut", [1, 3, 8, -1])
def test_an_incomplete_frame_is_refused(cut: int) -> None:
    frame = pack(OUTPUT, np.arange(6.0).reshape(3, 2))

    assert np.array_equal(unpack(frame, np.float64), np.arange(6.0).reshape(3, 2))
    with pytest.raises(InvalidFrame):
        unpack(frame[:cut], np.float64)
    with pytest.raises(InvalidFrame):
        unpack(OUTPUT + b"\x02" + b"\xff" * 8, np.float64)
    assert MAX_BYTES > 4096 * 1000 * 8, "the largest batch of a thousand outputs fits"
