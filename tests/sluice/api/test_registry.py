"""``sluice.Registry`` on a real registry, and a model from its training to serving."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime

import httpx
import numpy as np
import pandas as pd
import pytest
import torch

import sluice
from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked, SettingsError, UnknownVersion
from sluice.base.home import Home
from sluice.registry.rollouts import RolloutLedger
from tests.sluice.registry.ledger_samples import MODEL, Clock, promote_chain

LINEAR = sluice.ModelSettings(architecture="linear")
SERVE = "import sluice; sluice.serve('prices', port=0)"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.delenv("SLUICE_REGISTRY_URL", raising=False)
    return Home.from_environment(os.environ, cwd=tmp_path)


def test_registry_reads_versions_and_moves_production(home):
    with RolloutLedger.open(home.registry_url, clock=Clock()) as ledger:
        promote_chain(ledger, ArtifactStore(home.artifacts), 2)
    registry = sluice.Registry(home.root)

    loaded = registry.load_production(MODEL)
    restored = registry.rollback(MODEL, reason="errors since noon", actor="ada")

    assert registry.models() == [MODEL]
    assert [version.number for version in registry.versions(MODEL)] == [1, 2]
    assert (loaded.version.number, restored.version) == (2, 1)
    assert registry.production(MODEL).number == 1
    last = registry.history(MODEL)[-1]
    assert (last.action, last.actor, last.reason) == ("rollback", "ada", "errors since noon")
    with pytest.raises(GateBlocked, match="rolled back"):
        registry.promote(MODEL, 2, reason="again")
    shown = registry._repr_html_()
    assert "2 versions" in shown
    assert "production" in shown


def test_reading_a_missing_registry_does_not_create_it(home):
    registry = sluice.Registry()

    assert (registry.models(), registry.versions("prices"), registry.history("prices")) == ([],) * 3
    assert registry.production("prices") is None
    assert "0 versions" in registry._repr_html_()
    assert list(home.root.iterdir()) == []
    for call in (registry.load_production, lambda m: registry.rollback(m, reason="none")):
        with pytest.raises(UnknownVersion, match="There is no registry at"):
            call("prices")


def test_empty_registry_cannot_load_or_roll_back(home):
    RolloutLedger.open(home.registry_url, clock=Clock()).close()
    registry = sluice.Registry()

    assert registry.models() == []
    for call in (registry.load_production, lambda m: registry.rollback(m, reason="none")):
        with pytest.raises(UnknownVersion, match="prices has no version in production"):
            call("prices")


def test_token_and_token_file_cannot_be_combined(tmp_path):
    with pytest.raises(SettingsError, match="token and token_file cannot be combined"):
        sluice.serve("prices", token="t" * 32, token_file=tmp_path / "tokens.json")


def test_workload_class_of_a_script_is_refused(monkeypatch, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)

    class Mine(sluice.Workload):
        def __init__(self):
            self.settings = sluice.WorkloadSettings()

        def load_rows(self): ...
        def compute_features(self, raw): ...

    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"

    with pytest.raises(SettingsError, match=r"defined in the script train\.py"):
        sluice.fit(Mine)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    noise = np.random.default_rng(0)
    x_N2 = noise.normal(size=(1_200, 2))
    # The simple rules cannot represent abs(a), and the network can.
    price = x_N2.sum(axis=1) + 3 * np.abs(x_N2[:, 0]) + noise.normal(scale=0.1, size=1_200)
    return pd.DataFrame({"a": x_N2[:, 0], "b": x_N2[:, 1], "price": price})


@pytest.mark.slow
def test_data_frame_is_trained_evaluated_promoted_and_served(rows, home, capfd):
    workload = sluice.workload_of_frame(rows, "price")
    options = {
        "training": sluice.TrainSettings(max_epochs=12, learning_rate=0.02),
        "compute": sluice.ComputeSettings(workers=1),
    }

    fitted = sluice.fit(workload, **options)
    repeated_fit = sluice.fit(workload, **options)
    evaluated = sluice.evaluate(fitted)
    registry = sluice.Registry()
    registered = registry.register("prices", fitted, actor="ada")
    repeated = registry.register("prices", fitted)

    assert fitted.inputs.model.architecture == "mlp"
    assert "10/10 seed" in capfd.readouterr().err
    assert (fitted.trained.reused, repeated_fit.trained.reused) == (0, 10)
    assert fitted.trained.candidate == repeated_fit.trained.candidate
    assert evaluated.compare().outcome == registered.verdict.outcome == "PROMOTE"
    assert evaluated.metrics["loss"] < evaluated.reference_metrics["loss"]
    assert (registered.created, repeated.created) == (True, False)
    assert repeated.verdict == registered.verdict
    receipts = {linked.receipt.gate for linked in _receipts(home, registered.version.number)}
    assert receipts == {"poc", "promotion"}
    for shown in (fitted, evaluated, registered):
        assert "sluice-result" in shown._repr_html_()

    registry.promote("prices", 1, reason="agreed in review", actor="ada")

    model = registry.load_production("prices")
    test = fitted.workload.examples(fitted.frame, fitted.folds[-1].test)
    predicted = model.ensemble.predict(test.x)
    assert torch.equal(predicted, fitted.ensemble().predict(test.x))
    assert _serve_predictions(test.x[:3]) == pytest.approx(predicted[:3, 0].tolist(), rel=1e-6)
    with pytest.raises(SettingsError, match="same SLUICE_HOME"):
        sluice.Registry(home.root / "other").register("prices", fitted)


def _receipts(home, number):
    with RolloutLedger.open(home.registry_url, clock=lambda: datetime.now(UTC)) as ledger:
        return ledger.receipts("prices", number)


def _serve_predictions(windows: torch.Tensor) -> list[float]:
    """Return the predictions of a server that ``sluice.serve`` starts."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True, env=os.environ
    ) as server:
        try:
            assert server.stdout is not None
            ready = json.loads(server.stdout.readline())
            body = {"columns": ["a", "b"], "rows": windows.tolist()}
            answer = httpx.post(f"{ready['url']}/predict", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            return [float(np.ravel(value)[0]) for value in answer.json()["outputs"]]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
