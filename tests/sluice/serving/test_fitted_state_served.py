"""Two versions with different fitted states serve the same requests in a rollout."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from sluice.base.artifacts import ArtifactStore
from sluice.data.folds import RowRange
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.deployed import DeployedModel
from sluice.serving.ledger_models import LedgerModels
from sluice.workloads.fitted_state import fit_workload
from sluice.workloads.prepare_model import prepare_model
from tests.sluice.registry.ledger_samples import MODEL, Clock
from tests.sluice.serving.codec_samples import codec_lineage, register
from tests.sluice.serving.serving_samples import quick_settings, run_server
from tests.support.rents import Rents

ROWS = np.array([3, 599])  # the city of the last row is in no train row


def train_networks(workload: Rents, frame: pd.DataFrame, fold: int) -> list[Scaled]:
    fold_rows = workload.plan_folds(frame)[fold]
    fitted = fit_workload(workload, frame, fold_rows)
    train = fitted.examples(frame, fold_rows.train)
    settings = ModelSettings(architecture="linear")
    return [prepare_model(fitted, settings, train, seed=seed).eval() for seed in (0, 1)]


def expected_outputs(networks: list[Scaled], workload: Rents, frame: pd.DataFrame) -> Any:
    x = workload.examples(frame, RowRange(start=0, stop=len(frame))).take(ROWS).inputs
    with torch.inference_mode():
        return torch.stack([network(x) for network in networks]).double().mean(dim=0).numpy()


@pytest.mark.slow
def test_production_and_challenger_use_their_own_state(tmp_path: Path) -> None:
    workload = Rents()
    raw = workload.load_rows()
    frame = workload.compute_features(raw)
    store, url = ArtifactStore(tmp_path / "artifacts"), f"sqlite:///{tmp_path / 'registry.db'}"
    networks = [train_networks(workload, frame, fold) for fold in (0, 1)]
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        first, second = (
            codec_lineage(workload, store, salt=number, trained=networks[number])
            for number in (0, 1)
        )
        number = register(ledger, first)
        ledger.promote(MODEL, number, expected=None, actor="a", reason="b", store=store)
        register(ledger, second, reference=first.candidate)
        models = LedgerModels(ledger, MODEL, store)
        one, two = models.load(first.candidate), models.load(second.candidate)
    assert one.contract.has_same_input(two.contract)
    body = workload.request_of(raw, frame, ROWS)
    outputs = {}
    for share, name in ((0.0, "production"), (1.0, "challenger")):
        split = TrafficSplit(
            epoch=1,
            production=one.candidate,
            challenger=two.candidate,
            rollout="r",
            share=share,
            shadow=share == 0.0,
        )
        loaded: dict[str, DeployedModel] = {one.candidate: one, two.candidate: two}
        settings = quick_settings(deadline_s=20.0, challenger_deadline_s=15.0)
        with run_server(loaded, split, settings=settings, name=MODEL) as server:
            response = server.client.post("/predict", json=body)
            assert response.status_code == 200, response.text
            assert response.json()["arm"] == name
            outputs[name] = np.array(response.json()["outputs"])

    np.testing.assert_allclose(
        outputs["production"], expected_outputs(networks[0], workload, frame), rtol=1e-6
    )
    np.testing.assert_allclose(
        outputs["challenger"], expected_outputs(networks[1], workload, frame), rtol=1e-6
    )
    assert not np.allclose(outputs["production"], outputs["challenger"])
