"""The fitted state of a workload is stored with the weights of a fold run."""

from pathlib import Path

import pytest
import safetensors.torch
import torch

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import ContractError
from sluice.data.table import load_table, save_table
from sluice.models.input_encoder import ENCODER_TENSOR_PREFIX
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.fold_run import train_fold_run
from sluice.training.fold_run_events import FoldRunEvent
from sluice.training.fold_run_spec import FoldRunSpec
from sluice.training.loop import predict
from sluice.training.settings import TrainSettings
from sluice.training.weights import load_member, pack_model
from sluice.workloads.fitted_state import fit_workload
from sluice.workloads.workload import Workload
from tests.support.rents import Rents

MLP = ModelSettings(architecture="mlp", hidden=8)


def make_specs(home: Path) -> list[FoldRunSpec]:
    workload = Rents()
    frame = workload.compute_features(workload.load_rows())
    table = save_table(frame, ArtifactStore(home / "artifacts"))
    return [
        FoldRunSpec(
            workload="tests.support.rents:Rents",
            workload_settings={},
            model=MLP,
            training=TrainSettings(
                max_epochs=3, batch_rows=64, checkpoint_every_epochs=1, trace=False
            ),
            seed=0,
            fold=fold,
            table=table,
            artifacts=home / "artifacts",
            runs=home / "runs",
        )
        for fold in workload.plan_folds(frame)
    ]


def stop_after_first_epoch(event: FoldRunEvent) -> None:
    if event.kind == "epoch":
        raise KeyboardInterrupt


def ignore(_: FoldRunEvent) -> None:
    pass


@pytest.mark.slow
def test_each_fold_stores_its_fitted_state_and_a_loaded_network_uses_it(tmp_path: Path) -> None:
    states = []
    for spec in make_specs(tmp_path):
        member = train_fold_run(spec, ignore)
        store, workload = ArtifactStore(spec.artifacts), Rents()
        frame = load_table(spec.table, store)
        network = load_member(member, workload, MLP, store)

        assert network.encoder is not None
        states.append(network.encoder.state)
        fitted = fit_workload(workload, frame, spec.fold).fitted_state
        assert fitted is not None
        assert all(torch.equal(states[-1][name], array) for name, array in fitted.items())
        stored = safetensors.torch.load(store.get(member.weights))
        assert {f"{ENCODER_TENSOR_PREFIX}{name}" for name in fitted} < stored.keys()
        test = workload.examples(frame, spec.fold.test)
        loss = float(workload.losses(predict(network, test.x), test.targets).mean())
        assert loss == pytest.approx(member.test_metrics["loss"])

    first, second = states
    assert not torch.equal(first["rents"], second["rents"])


@pytest.mark.slow
def test_interrupted_fold_run_resumes_with_identical_bits(tmp_path: Path) -> None:
    whole = train_fold_run(make_specs(tmp_path / "whole")[0], ignore)
    spec = make_specs(tmp_path / "parts")[0]
    with pytest.raises(KeyboardInterrupt):
        train_fold_run(spec, stop_after_first_epoch)

    assert train_fold_run(spec, ignore).weights == whole.weights


@pytest.mark.slow
def test_weights_without_the_fitted_state_are_rejected(tmp_path: Path) -> None:
    """fit() was added to the workload after the version was trained."""
    spec = make_specs(tmp_path)[0]
    member, store = train_fold_run(spec, ignore), ArtifactStore(spec.artifacts)
    network = load_member(member, Rents(), MLP, store)
    bare = Scaled(
        network.network, num_features=2, num_outputs=1, scale_inputs=True, scale_target=True
    )
    other = member.model_copy(update={"weights": store.put(pack_model(bare))})

    with pytest.raises(
        ContractError, match=r"must contain the fitted state that fit\(\) of Rents returned"
    ):
        load_member(other, Rents(), MLP, store)

    class WithoutFit(Rents):
        fit = Workload.fit
        encode = Workload.encode

    with pytest.raises(ContractError, match=r"encoder.state_cities is absent in the network"):
        load_member(member, WithoutFit(), MLP, store)
