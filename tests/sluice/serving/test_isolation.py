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


def exhaustive_case(*values: Any) -> Any:
    """Return a case for exhaustive runs; another case covers most of its code."""
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
class ProcessRig:
    """A server whose challengers run in processes; each process creates a file named by its pid."""

    server: RunningServer
    folder: Path

    def alive(self) -> list[int]:
        """Return the pids of existing processes, including zombies."""
        return [
            int(file.name) for file in self.folder.iterdir() if psutil.pid_exists(int(file.name))
        ]

    def challenge(self, name: str | None) -> None:
        """Route all traffic to a challenger or to production, without waiting until it loads."""
        source = self.server.source
        source.split = TrafficSplit(
            epoch=source.split.epoch + 1,
            production=candidate("one"),
            challenger=None if name is None else candidate(name),
            rollout=None if name is None else f"r-{name}",
            share=0.0 if name is None else 1.0,
        )

    def end(self) -> None:
        """Return to production and wait until no process exists."""
        self.challenge(None)
        split = self.server.source.split
        wait_for(lambda: self.server.serving.router.table.split == split)
        wait_for(lambda: self.alive() == [])

    def pid(self) -> int:
        """Wait until the challenger responds and return its pid."""
        pids: list[int] = []

        def has_responded() -> bool:
            message = self.server.predict(challengers.RETURN_PID, user="ada").json()
            if message["arm"] == "challenger":
                pids.append(int(message["outputs"][0][0]))
            return bool(pids)

        wait_for(has_responded)
        return pids[0]


def wait_for(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Wait for a condition; on a busy machine a process takes seconds to start."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {seconds:g} s"
        time.sleep(0.03)


def loader_spec(folder: Path) -> LoaderSpec:
    return LoaderSpec(load="tests.support.challengers:load", arguments={"folder": str(folder)})


def window(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    x = np.zeros((len(values), 3, 2), np.float32)
    x[:, -1, 0] = values
    return x


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessRig]:
    folder = tmp_path_factory.mktemp("processes")
    production = deployed("one", 1, LinearNetwork(1.0), contract=CONTRACT)
    serving_settings = settings()
    with Isolation(loader_spec(folder), serving_settings) as isolation:
        split = TrafficSplit(epoch=1, production=production.candidate)
        promoted = deployed("two", 2, LinearNetwork(2.0), contract=CONTRACT)
        models = {model.candidate: model for model in (production, promoted)}
        with run_server(models, split, settings=serving_settings, isolate=isolation.load) as server:
            yield ProcessRig(server, folder)
    assert ProcessRig(server, folder).alive() == []


@pytest.fixture
def two(rig: ProcessRig) -> Iterator[ProcessRig]:
    """All traffic goes to the challenger 'two' in a new process, which ends with the test."""
    rig.challenge("two")
    rig.pid()
    yield rig
    rig.end()


def count_faults(server: RunningServer, arm: str) -> dict[str, int]:
    pids = server.client.get("/rollout").json()["window"][arm]
    return {kind: number for kind, number in pids.items() if number and kind != "slower"}


def problems(server: RunningServer) -> str:
    return " ".join(server.client.get("/problems").json()["problems"])


@contextlib.contextmanager
def steady_load(server: RunningServer) -> Iterator[list[int]]:
    """Send requests continuously and collect the status of each response."""
    stop, statuses = threading.Event(), list[int]()

    def send_requests() -> None:
        headers = {"authorization": f"Bearer {SECRET}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=20) as client:
            while not stop.wait(0.03):
                statuses.append(client.post("/predict", json=body(1.0)).status_code)

    thread = threading.Thread(target=send_requests)
    thread.start()
    try:
        yield statuses
        num_wanted = len(statuses) + 5
        wait_for(lambda: len(statuses) > num_wanted)
    finally:
        stop.set()
        thread.join(20)


def test_a_challenger_answers_from_another_process(two: ProcessRig) -> None:
    response = two.server.predict(3.0, -1.0, user="ada").json()

    assert (response["outputs"], response["arm"], response["version"]) == (
        [[6.0], [-2.0]],
        "challenger",
        2,
    )
    assert two.alive() == [two.pid()] != [os.getpid()]
    assert problems(two.server) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "fault", "message"),
    [
        (challengers.SEGFAULT, "errors", "ended by signal SIGSEGV"),
        exhaustive_case(challengers.EXIT, "errors", "ended with status 3"),
        exhaustive_case(challengers.BABBLE, "errors", "sent an invalid frame"),
        (challengers.LEAK, "errors", "MiB, the limit is 128"),
        (challengers.LOOP, "timeouts", "hung for 3 s"),
    ],
)
def test_a_failing_process_fails_no_request_and_restarts(
    two: ProcessRig, value: int, fault: str, message: str
) -> None:
    """Under load, production responds, the fault is counted, and the problem is reported."""
    before = two.pid()
    with steady_load(two.server) as statuses:
        wait_for(lambda: two.server.predict(value).json()["fallback"])
        wait_for(lambda: message in problems(two.server))
        after = two.pid()
        wait_for(lambda: problems(two.server) == "")

    assert set(statuses) == {200}
    assert count_faults(two.server, "challenger")[fault] >= 1
    assert count_faults(two.server, "production") == {}
    assert two.alive() == [after] != [before], "the old process is reaped"


def test_an_error_of_a_network_is_reported_by_its_location_only(two: ProcessRig) -> None:
    before = two.pid()
    message = two.server.predict(challengers.RAISE).json()
    line = next(x for x in reversed(two.server.lines()) if x.get("trace") == message["trace"])

    assert (message["outputs"], message["fallback"]) == ([[1.0 + challengers.RAISE]], True)
    assert (line["challenger_fault"], line["challenger_error"]) == ("errors", "TypeError")
    assert "secret payload" not in two.server.log.getvalue()
    assert two.pid() == before


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_child_processes_of_a_challenger_end_with_it(two: ProcessRig) -> None:
    two.server.predict(challengers.SPAWN)
    (child,) = psutil.Process(two.pid()).children()
    assert not has_ended(child)
    two.server.predict(challengers.EXIT)
    wait_for(lambda: has_ended(child))

    assert has_ended(child)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dies while loading", "the process ended by signal SIGSEGV"),
        ("raises while loading", "did not load: ImportError('no such code')"),
    ],
)
def test_a_challenger_that_does_not_load_leaves_production_serving(
    rig: ProcessRig, name: str, message: str
) -> None:
    rig.challenge(name)

    wait_for(lambda: message in problems(rig.server))
    assert rig.server.predict(1.0).json()["arm"] == "production"
    rig.end()


def test_a_rollback_does_not_wait_for_a_challenger_that_hangs_while_loading(
    rig: ProcessRig,
) -> None:
    rig.challenge("hangs while loading")
    wait_for(lambda: rig.alive() != [])
    assert "still loading" in problems(rig.server)
    rig.challenge(None)
    split = rig.server.source.split
    wait_for(lambda: rig.server.serving.router.table.split == split)
    # The load hangs for a minute, longer than all waits of this test.
    rig.end()
    assert problems(rig.server) == ""


def test_a_promotion_loads_the_challenger_in_process_without_a_failed_request(
    two: ProcessRig,
) -> None:
    with steady_load(two.server) as statuses:
        two.server.set_split(production=candidate("two"))
        wait_for(lambda: two.alive() == [])
        response = two.server.predict(1.0).json()

    assert (response["arm"], response["version"], response["outputs"]) == ("production", 2, [[3.0]])
    assert set(statuses) == {200}


def replace_challenger(rig: ProcessRig, times: int) -> None:
    for _ in range(times):
        rig.challenge("two")
        rig.pid()
        rig.end()


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_changes_of_the_challenger_leak_no_process_descriptor_or_thread(
    rig: ProcessRig, times: int
) -> None:
    replace_challenger(rig, 1)
    process = psutil.Process()

    def count_resources() -> tuple[int, int]:
        return process.num_fds(), threading.active_count()

    before, memory = count_resources(), process.memory_info().rss
    replace_challenger(rig, times)

    wait_for(lambda: count_resources() <= before)
    assert process.memory_info().rss - memory < 2**24


@pytest.mark.slow
def test_a_process_predicts_once_before_its_first_request(tmp_path: Path) -> None:
    """The first prediction of a network is slow and may fail."""
    with Isolation(loader_spec(tmp_path), settings()) as isolation:
        model = isolation.load(candidate("raises the first time"), threading.Event())

        assert model.predict(window(3.0), None).mean(axis=0).tolist() == [[6.0]]


@pytest.mark.slow
def test_restarts_are_bounded_and_the_last_error_is_reported(tmp_path: Path) -> None:
    serving_settings = settings().model_copy(update={"max_challenger_restarts": 1})
    with Isolation(loader_spec(tmp_path), serving_settings) as isolation:
        model = isolation.load(candidate("two"), threading.Event())
        for _ in range(2):
            wait_for(lambda: model.problem == "")
            with pytest.raises(NetworkFailed, match="process ended with status 3"):
                model.predict(window(challengers.EXIT), None)
            wait_for(lambda: model.problem != "")

        assert "does not restart (1 of 1 restarts so far)" in model.problem
        with pytest.raises(NetworkFailed, match="process ended with status 3"):
            model.predict(window(1.0), None)


def test_a_challenger_that_exceeds_its_load_timeout_is_refused(tmp_path: Path) -> None:
    short_timeout = settings(challenger_load_timeout_s=0.01)
    with (
        Isolation(loader_spec(tmp_path), short_timeout) as isolation,
        pytest.raises(ContractError, match="did not load within"),
    ):
        isolation.load(candidate("hangs while loading"), threading.Event())


def test_a_shadow_request_yields_between_networks_unless_a_request_waits(tmp_path: Path) -> None:
    """One process handles both, and a request of a user must not wait for a shadow request."""
    process = ArmProcess(loader_spec(tmp_path), candidate("two"), environment=os.environ)
    wait_for(lambda: process.wait_for_model(1.0) is not None)
    pauses: list[str] = []
    user_outputs: list[float] = []
    user = threading.Thread(
        target=lambda: user_outputs.append(process.predict(window(4.0), None)[1, 0, 0])
    )

    def pause_until_user_waits() -> None:
        pauses.append("waited")
        user.start()
        wait_for(lambda: process.is_user_waiting)

    try:
        assert process.predict(window(5.0), lambda: pauses.append("paused"))[1, 0, 0] == 15.0
        assert process.predict(window(6.0), pause_until_user_waits)[1, 0, 0] == 18.0
        user.join(20)
    finally:
        process.end("was stopped")

    assert pauses == ["paused", "paused", "waited"], (
        "one pause per network, and one for the waiting user"
    )
    assert user_outputs == [12.0]


@pytest.mark.parametrize("cut", [1, 3, 8, -1])
def test_an_incomplete_frame_is_refused(cut: int) -> None:
    frame = pack(OUTPUT, np.arange(6.0).reshape(3, 2))

    assert np.array_equal(unpack(frame, np.float64), np.arange(6.0).reshape(3, 2))
    with pytest.raises(InvalidFrame):
        unpack(frame[:cut], np.float64)
    with pytest.raises(InvalidFrame):
        unpack(OUTPUT + b"\x02" + b"\xff" * 8, np.float64)
    assert MAX_BYTES > 4096 * 1000 * 8, "the largest batch of a thousand outputs fits"
