"""``sluice serve`` serves a registered model, reports errors at the start and drains on SIGTERM."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import httpx
import numpy as np
import psutil
import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError
from sluice.base.home import Home
from sluice.cli.app import run_command
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.settings import RolloutSettings
from sluice.serving.deployed import deployed_members, load_deployed
from sluice.serving.ledger_models import LedgerModels
from sluice.serving.ledger_traffic_split import LedgerTrafficSplit
from sluice.serving.settings import ServingSettings
from tests.sluice.registry.ledger_samples import (
    MODEL,
    Clock,
    artifact_path,
    promote_chain,
    register_sample,
)
from tests.sluice.serving.serving_samples import SECRET

Start = Callable[[Home], tuple["subprocess.Popen[str]", str]]

WINDOW = {"columns": ["slope", "value"], "windows": [[[0.0, 1.0]] * 8]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.delenv("SLUICE_REGISTRY_URL", raising=False)
    return Home.from_environment(os.environ, cwd=tmp_path)


@pytest.fixture
def ledger(home: Home) -> Iterator[RolloutLedger]:
    with RolloutLedger.open(home.registry_url, clock=Clock()) as opened:
        yield opened


def test_the_mean_of_all_seeds_of_the_last_fold_is_deployed(
    ledger: RolloutLedger, home: Home
) -> None:
    """For ones, a network with all weights v predicts 4 v + v; the two have v = 1 and v = 1.5."""
    store = ArtifactStore(home.artifacts)
    promote_chain(ledger, store, 1)
    split = LedgerTrafficSplit(ledger, MODEL).read()
    model = LedgerModels(ledger, MODEL, store).load(split.production)

    assert split.epoch == 1
    assert model.contract.columns == ("value", "slope")
    assert model.contract.seq_len == 8
    assert model.predict(np.ones((1, 8, 2), np.float32), None).mean() == pytest.approx(
        1.25 * 4 + 1.25
    )


def test_members_of_earlier_folds_are_not_deployed(ledger: RolloutLedger, home: Home) -> None:
    store = ArtifactStore(home.artifacts)
    promote_chain(ledger, store, 1)
    member = ledger.version(MODEL, 1).lineage.members[0]
    both = [
        member.model_copy(update={"seed": seed, "fold_id": fold})
        for seed, fold in ((1, 0), (1, 2), (0, 2), (0, 1))
    ]

    assert [(m.seed, m.fold_id) for m in deployed_members(both)] == [(0, 2), (1, 2)]


def test_network_weights_of_another_candidate_are_refused(
    ledger: RolloutLedger, home: Home
) -> None:
    store = ArtifactStore(home.artifacts)
    promote_chain(ledger, store, 2)
    one, two = ledger.version(MODEL, 1), ledger.version(MODEL, 2)
    forged = two.model_copy(
        update={"lineage": two.lineage.model_copy(update={"members": one.lineage.members})}
    )

    with pytest.raises(IntegrityError, match=r"lineage of .* does not match its candidate digest"):
        load_deployed(forged, store)


def test_a_missing_production_version_is_reported_at_the_start(
    ledger: RolloutLedger, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    register_sample(ledger, ArtifactStore(home.artifacts), salt=1)

    assert run_command(["serve", MODEL]) == 2
    assert f"sluice run {MODEL}" in capsys.readouterr().err


def test_missing_network_weights_are_reported_at_the_start(
    ledger: RolloutLedger, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    promote_chain(ledger, ArtifactStore(home.artifacts), 1)
    weights = ledger.version(MODEL, 1).lineage.members[0].weights
    artifact_path(home.artifacts, weights).unlink()

    assert run_command(["serve", MODEL, "--port", "0"]) == 2
    assert f"Artifact {weights} is required and missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "need a token"),
        (["--token-file", "/nowhere/token"], "cannot be read"),
    ],
)
def test_a_server_on_the_network_needs_a_token(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["serve", MODEL, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_replicas_need_ray(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["serve", MODEL, "--replicas", "3"]) == 2
    assert "Add --ray" in capsys.readouterr().err


def test_an_unreachable_cluster_is_reported_at_the_start(
    ledger: RolloutLedger, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    promote_chain(ledger, ArtifactStore(home.artifacts), 1)

    assert run_command(["serve", MODEL, "--ray", "--address", "127.0.0.1:1"]) == 2
    assert "The Ray cluster at '127.0.0.1:1' cannot be reached" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_promotion_and_a_drain_fail_no_request(
    ledger: RolloutLedger, home: Home, start: Start
) -> None:
    """Under load, version 2 is promoted; then SIGTERM makes /readyz fail before the server ends."""
    store = ArtifactStore(home.artifacts)
    promote_chain(ledger, store, 1)
    process, url = start(home)
    responses: list[tuple[int, int]] = []
    stop = threading.Event()

    def load() -> None:
        headers = {"authorization": f"Bearer {SECRET}"}
        with httpx.Client(base_url=url, headers=headers) as client:
            while not stop.is_set():
                response = client.post("/predict", json=WINDOW)
                responses.append((response.status_code, response.json()["version"]))

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    _promote_second(ledger, store)
    _wait_until(lambda: bool(responses) and responses[-1][1] == 2)
    process.send_signal(signal.SIGTERM)
    _wait_until(lambda: httpx.get(f"{url}/readyz").status_code == 503)
    before = len(responses)
    _wait_until(lambda: len(responses) > before + 10)  # requests during the drain are still served
    stop.set()
    for thread in threads:
        thread.join(10)

    assert process.wait(10) == 0
    assert {status for status, _ in responses} == {200}
    assert {version for _, version in responses} == {1, 2}
    log = [json.loads(line) for line in (home.root / "log").read_text().splitlines()]
    # The versions of this test have no stored code, which the server reports.
    assert {line["event"] for line in log if line["level"] != "info"} == {"code"}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_process_of_a_challenger_ends_with_a_killed_server(
    ledger: RolloutLedger, home: Home, start: Start
) -> None:
    """The server is killed during a rollout and cannot clean up."""
    store = ArtifactStore(home.artifacts)
    promote_chain(ledger, store, 1)
    number = register_sample(ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate)
    with RolloutLedger.open(home.registry_url, clock=lambda: datetime.now(UTC)) as now:
        now.start_rollout(MODEL, number, RolloutSettings(strategy="ab"), actor="ada", reason="try")
    process, url = start(home)
    headers = {"authorization": f"Bearer {SECRET}"}
    payloads: dict[str, dict[str, Any]] = {}

    def have_both_responded() -> bool:
        for user in range(8):
            request = WINDOW | {"user": f"user {user}"}
            response = httpx.post(f"{url}/predict", json=request, headers=headers)
            assert response.status_code == 200
            payloads[response.json()["arm"]] = response.json()
        return set(payloads) == {"production", "challenger"}

    _wait_until(have_both_responded, seconds=30)
    (child,) = psutil.Process(process.pid).children(recursive=True)
    child.suspend()  # a suspended process does not notice that the pipe is closed
    process.kill()
    process.wait(10)

    assert {arm: message["version"] for arm, message in payloads.items()} == {
        "production": 1,
        "challenger": 2,
    }
    expected = LedgerModels(ledger, MODEL, store).load(payloads["challenger"]["candidate"])
    x = np.array([[[1.0, 0.0]] * 8], np.float32)  # in the network's order of columns
    assert payloads["challenger"]["outputs"] == expected.predict(x, None).mean(axis=0).tolist()
    try:
        child.wait(5)  # the system reaps it, since its parent has ended
    except psutil.TimeoutExpired:
        child.kill()
        raise


@pytest.fixture
def start() -> Iterator[Start]:
    """Function that starts a server, which is killed after the test."""
    with contextlib.ExitStack() as stack:

        def start_server(home: Home) -> tuple["subprocess.Popen[str]", str]:
            log = stack.enter_context((home.root / "log").open("w"))
            process = stack.enter_context(_open_process(home, log))
            stack.callback(process.kill)
            assert process.stdout is not None
            ready: dict[str, Any] = json.loads(process.stdout.readline())
            assert ready["version"] == 1
            return process, str(ready["url"])

        yield start_server


def _open_process(home: Home, log: TextIO) -> "subprocess.Popen[str]":
    token = home.root / "token"
    token.touch(mode=0o600)
    token.write_text(SECRET + "\n")
    return subprocess.Popen(
        [sys.executable, "-m", "sluice", "serve", MODEL, "--port", "0", "--token-file", str(token)],
        stdout=subprocess.PIPE,
        stderr=log,  # an unread pipe would fill up and block the server
        text=True,
    )


def _promote_second(ledger: RolloutLedger, store: ArtifactStore) -> None:
    number = register_sample(ledger, store, salt=2, reference=ledger.version(MODEL, 1).candidate)
    ledger.promote(MODEL, number, expected=1, actor="ada", reason="better", store=store)


def _wait_until(condition: Any, *, seconds: float = 5.0) -> None:
    pause, deadline = threading.Event(), time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {seconds:g} s"
        pause.wait(0.01)


def test_the_challenger_deadline_must_be_below_the_deadline() -> None:
    with pytest.raises(ValueError, match="below deadline_s"):
        ServingSettings(deadline_s=0.3, challenger_deadline_s=0.3)


def test_a_rollout_in_the_ledger_splits_the_traffic(ledger: RolloutLedger, home: Home) -> None:
    store = ArtifactStore(home.artifacts)
    promote_chain(ledger, store, 1)
    before = LedgerTrafficSplit(ledger, MODEL).read()
    number = register_sample(ledger, store, salt=2, reference=before.production)
    started = ledger.start_rollout(MODEL, number, RolloutSettings(), actor="ada", reason="try it")
    during = LedgerTrafficSplit(ledger, MODEL).read()

    assert during.epoch > before.epoch
    assert (during.production, during.rollout) == (before.production, started.rollout.id)
    assert during.challenger == ledger.version(MODEL, number).candidate
    assert during.share == 0.05
    assert during.expires_at == started.rollout.lease_until
