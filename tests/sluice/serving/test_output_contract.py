"""A server describes its outputs, including the classes of a classifier."""

import threading
from pathlib import Path

import pytest
from torch import Tensor

from sluice.base.artifacts import ArtifactStore
from sluice.data.rows.protocol import ModelInput
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout.traffic_split import TrafficSplit
from sluice.serving.contract import OutputContract
from sluice.serving.isolation import Isolation
from sluice.serving.ledger_models import LedgerModels, ledger_loader_spec
from tests.sluice.registry.ledger_samples import MODEL, Clock
from tests.sluice.serving.codec_samples import codec_lineage, register
from tests.sluice.serving.serving_samples import quick_settings, run_server
from tests.support.codec_workloads import FolderSettings, TextWorkload, write_texts


class Moods(TextWorkload):
    task = "classification"
    classes = ("sad", 7, "glad")


class TopMood(Moods):
    def served_output(self, output: Tensor, x: ModelInput) -> Tensor:  # noqa: ARG002
        return output.softmax(1)


MOODS = OutputContract(kind="logits", classes=("sad", 7, "glad"))


@pytest.mark.parametrize(
    ("workload_type", "output"),
    [(Moods, MOODS), (TopMood, OutputContract()), (TextWorkload, OutputContract())],
)
def test_the_description_of_a_model_states_its_output(
    workload_type: type[TextWorkload], output: OutputContract, tmp_path: Path
) -> None:
    workload = workload_type(FolderSettings(folder=write_texts(tmp_path / "data")["folder"]))
    store, url = ArtifactStore(tmp_path / "artifacts"), f"sqlite:///{tmp_path / 'registry.db'}"
    with RolloutLedger.open(url, clock=Clock()) as ledger:
        lineage = codec_lineage(workload, store, salt=1)
        register(ledger, lineage)
        model = LedgerModels(ledger, MODEL, store).load(lineage.candidate)
        split = TrafficSplit(epoch=1, production=model.candidate)
        with run_server({model.candidate: model}, split, settings=quick_settings()) as server:
            described = server.client.get("/model").json()["output"]
    assert described == output.model_dump(mode="json")

    if workload_type is Moods:  # the process of a challenger reports the same contract
        loader = ledger_loader_spec(url, MODEL, store.root)
        with Isolation(loader, quick_settings()) as isolation:
            assert isolation.load(lineage.candidate, threading.Event()).output == output
