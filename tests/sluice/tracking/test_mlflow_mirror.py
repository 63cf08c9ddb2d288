"""The registry's history on a real MLflow server."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from sluice.base.artifacts import ArtifactStore
from sluice.registry.ledger import Ledger
from sluice.registry.outbox import Publication
from sluice.registry.records import HistoryEntry
from sluice.tracking import mlflow_mirror
from sluice.tracking.client_process import ClientFailed
from sluice.tracking.mlflow_mirror import MlflowChange, mirror_to_mlflow
from sluice.tracking.registry_mirror import mirror_history
from sluice.tracking.settings import MlflowSettings, TrackingSettings
from tests.sluice.registry.ledger_samples import MODEL, Clock, promote_chain

pytest.importorskip("mlflow")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"),
            *("--port", str(port), "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"),
            *("--artifacts-destination", str(folder / "artifacts")),
        ],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 180
        while not is_up(url):
            assert process.poll() is None, "the server ended by itself"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.3)
        yield url
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def ask(server: str, path: str, **parameters: str) -> dict:
    url = f"{server}/api/2.0/mlflow/{path}?{urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=30) as reply:
        return json.load(reply)


def versions(server: str) -> dict[str, dict]:
    """Return MLflow's versions by the ledger's number, with their tags as a dict."""
    found = ask(server, "model-versions/search", filter=f"name = '{MODEL}'")["model_versions"]
    return {
        tags["sluice.version"]: {**version, "tags": tags}
        for version in found
        for tags in [{tag["key"]: tag["value"] for tag in version["tags"]}]
    }


def aliases(server: str) -> dict[str, str]:
    model = ask(server, "registered-models/get", name=MODEL)["registered_model"]
    return {alias["alias"]: alias["version"] for alias in model.get("aliases", [])}


def publish(ledger: Ledger, store: ArtifactStore, folder: Path, uri: str) -> Publication:
    settings = TrackingSettings(mode="off", mlflow=MlflowSettings(uri=uri))
    _, to_mlflow = mirror_history(
        ledger, MODEL, settings, store=store, folder=folder, environ=os.environ
    )
    return to_mlflow


@pytest.mark.slow
def test_a_server_shows_versions_metrics_receipts_and_moves(server: str, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        promote_chain(ledger, store, 2)
        ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)
        nowhere = f"http://127.0.0.1:{free_port()}"
        down = publish(ledger, store, tmp_path, nowhere)
        up = publish(ledger, store, tmp_path, server)
        again = publish(ledger, store, tmp_path, server)
        linked = ledger.receipts(MODEL, 1)
        candidates = [ledger.version(MODEL, number).candidate for number in (1, 2)]

    assert (down.delivered, down.waiting) == (0, 7)
    assert "Not mirrored to MLflow" in down.reasons[-1]
    assert (up.delivered, up.waiting) == (7, 0), up.reasons
    assert (again.delivered, again.waiting) == (0, 0)

    found = versions(server)
    assert sorted(found) == ["1", "2"]
    assert [found[n]["tags"]["sluice.candidate"] for n in ("1", "2")] == candidates
    assert [found[n]["tags"]["sluice.stage"] for n in ("1", "2")] == ["production", "archived"]
    assert found["1"]["tags"]["sluice.verdict"] == "PROMOTE"
    assert aliases(server) == {"production": found["1"]["version"]}

    run = ask(server, "runs/get", run_id=found["1"]["run_id"])["run"]
    assert run["info"]["status"] == "FINISHED"
    assert {"key": "training.learning_rate", "value": "0.002"} in run["data"]["params"]
    assert {m["key"]: m["value"] for m in run["data"]["metrics"]}["test/mse"] == 0.643
    url = f"{server}/get-artifact?path=receipts.json&run_uuid={run['info']['run_id']}"
    with urllib.request.urlopen(url, timeout=30) as reply:
        receipts = json.load(reply)["receipts"]
    assert [r["gate"] for r in receipts] == [link.receipt.gate for link in linked]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_an_entry_that_is_mirrored_twice_is_there_once(server: str, tmp_path: Path) -> None:
    change = MlflowChange(
        version=7,
        candidate="c" * 64,
        action="stage",
        from_version=None,
        stage="staging",
        verdict="PROMOTE",
        registered_ms=1_700_000_000_000,
        config={"training": {"betas": [0.9, 0.99]}, "many": {f"p{n}": n for n in range(150)}},
        lineage={},
        receipts=[],
    )
    settings = MlflowSettings(uri=server, experiment="twice", registered_model="other")
    said = [
        mirror_to_mlflow(
            change, [], settings, model=MODEL, folder=tmp_path / "new", environ=os.environ
        )
        for _ in range(2)
    ]

    assert said[0] == said[1]
    found = ask(server, "model-versions/search", filter="name = 'other'")["model_versions"]
    assert len(found) == 1
    run = ask(server, "runs/get", run_id=found[0]["run_id"])["run"]
    assert len(run["data"]["params"]) == 151
    model = ask(server, "registered-models/get", name="other")["registered_model"]
    assert model["aliases"] == [{"alias": "staging", "version": "1"}]


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_mirror, "find_spec", lambda _: None)
    entry = HistoryEntry.model_construct(action="register")
    change = MlflowChange.model_construct(action=entry.action)

    with pytest.raises(ClientFailed, match=r"mlflow is not installed\. Install .*\[mlflow\]"):
        mirror_to_mlflow(
            change,
            [],
            MlflowSettings(uri="http://127.0.0.1:1"),
            model=MODEL,
            folder=tmp_path,
            environ={},
        )
