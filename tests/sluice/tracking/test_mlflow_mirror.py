"""Mirroring of the registry's history to a real MLflow server."""

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


def find_free_port() -> int:
    with socket.socket() as unbound_socket:
        unbound_socket.bind(("127.0.0.1", 0))
        return int(unbound_socket.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("mlflow"), find_free_port()
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
            assert process.poll() is None, "the server exited"
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


def call_api(server: str, path: str, **parameters: str) -> dict:
    url = f"{server}/api/2.0/mlflow/{path}?{urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=30) as reply:
        return json.load(reply)


def list_versions(server: str) -> dict[str, dict]:
    """Return MLflow's model versions by the ledger's version number, with their tags as a dict."""
    model_versions = call_api(server, "model-versions/search", filter=f"name = '{MODEL}'")[
        "model_versions"
    ]
    return {
        tags["sluice.version"]: {**version, "tags": tags}
        for version in model_versions
        for tags in [{tag["key"]: tag["value"] for tag in version["tags"]}]
    }


def get_aliases(server: str) -> dict[str, str]:
    model = call_api(server, "registered-models/get", name=MODEL)["registered_model"]
    return {alias["alias"]: alias["version"] for alias in model.get("aliases", [])}


def publish_history(ledger: Ledger, store: ArtifactStore, folder: Path, uri: str) -> Publication:
    settings = TrackingSettings(mode="off", mlflow=MlflowSettings(uri=uri))
    _, to_mlflow = mirror_history(
        ledger, MODEL, settings, store=store, folder=folder, environ=os.environ
    )
    return to_mlflow


@pytest.mark.exhaustive
@pytest.mark.slow
def test_history_is_mirrored_with_versions_metrics_receipts_and_aliases(
    server: str, tmp_path: Path
) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    with Ledger.open(f"sqlite:///{tmp_path / 'r.db'}", clock=Clock()) as ledger:
        promote_chain(ledger, store, 2)
        ledger.rollback(MODEL, expected=2, actor="a", reason="r", store=store)
        unreachable_url = f"http://127.0.0.1:{find_free_port()}"
        unreachable_result = publish_history(ledger, store, tmp_path, unreachable_url)
        result = publish_history(ledger, store, tmp_path, server)
        repeated_result = publish_history(ledger, store, tmp_path, server)
        linked_receipts = ledger.receipts(MODEL, 1)
        candidates = [ledger.version(MODEL, number).candidate for number in (1, 2)]

    assert (unreachable_result.delivered, unreachable_result.waiting) == (0, 7)
    assert "Not mirrored to MLflow" in unreachable_result.reasons[-1]
    assert (result.delivered, result.waiting) == (7, 0), result.reasons
    assert (repeated_result.delivered, repeated_result.waiting) == (0, 0)

    mirrored = list_versions(server)
    assert sorted(mirrored) == ["1", "2"]
    assert [mirrored[n]["tags"]["sluice.candidate"] for n in ("1", "2")] == candidates
    assert [mirrored[n]["tags"]["sluice.stage"] for n in ("1", "2")] == ["production", "archived"]
    assert mirrored["1"]["tags"]["sluice.verdict"] == "PROMOTE"
    assert get_aliases(server) == {"production": mirrored["1"]["version"]}

    run = call_api(server, "runs/get", run_id=mirrored["1"]["run_id"])["run"]
    assert run["info"]["status"] == "FINISHED"
    assert {"key": "training.learning_rate", "value": "0.002"} in run["data"]["params"]
    assert {m["key"]: m["value"] for m in run["data"]["metrics"]}["test/mse"] == 0.643
    url = f"{server}/get-artifact?path=receipts.json&run_uuid={run['info']['run_id']}"
    with urllib.request.urlopen(url, timeout=30) as reply:
        receipts = json.load(reply)["receipts"]
    assert [r["gate"] for r in receipts] == [link.receipt.gate for link in linked_receipts]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_entry_mirrored_twice_is_stored_once(server: str, tmp_path: Path) -> None:
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
    messages = [
        mirror_to_mlflow(
            change, [], settings, model=MODEL, folder=tmp_path / "new", environ=os.environ
        )
        for _ in range(2)
    ]

    assert messages[0] == messages[1]
    mirrored = call_api(server, "model-versions/search", filter="name = 'other'")["model_versions"]
    assert len(mirrored) == 1
    run = call_api(server, "runs/get", run_id=mirrored[0]["run_id"])["run"]
    assert len(run["data"]["params"]) == 151
    model = call_api(server, "registered-models/get", name="other")["registered_model"]
    assert model["aliases"] == [{"alias": "staging", "version": "1"}]


def test_missing_mlflow_package_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
