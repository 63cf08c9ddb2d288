"""ROLL-2: each injected fault affects the challenger alone, as described."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sluice.rehearsal.faults import FaultPlan, InjectedFault, inject_fault
from sluice.serving.contract import InputContract
from sluice.serving.deployed import DeployedModel

WINDOWS = np.random.default_rng(0).normal(size=(400, 3, 2)).astype(np.float32)


class LastSum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1].sum(dim=1, keepdim=True)


MODEL = DeployedModel(
    version=2,
    candidate="c" * 64,
    contract=InputContract(columns=("a", "b"), seq_len=3),
    target="y",
    networks=(LastSum(), LastSum()),
)
CLEAN = MODEL.predict(WINDOWS, None)


def plant_fault(
    fault: InjectedFault, *, challenger: str = MODEL.candidate, seed: int = 0
) -> DeployedModel:
    return inject_fault(
        MODEL, FaultPlan(fault=fault, challenger=challenger, seed=seed, spread=(1.5,))
    )


@pytest.mark.parametrize("fault", ["none", "no_traffic"])
def test_the_model_without_a_planted_fault_is_unchanged(fault: InjectedFault) -> None:
    assert plant_fault(fault) is MODEL


def test_only_the_challenger_gets_a_fault() -> None:
    assert plant_fault("nan", challenger="p" * 64) is MODEL


def test_nan_and_errors_affect_the_same_fifth_of_the_windows_in_every_batch() -> None:
    whole = plant_fault("nan").predict(WINDOWS, None)
    is_affected = np.isnan(whole).any(axis=(0, 2))
    assert 0.15 < is_affected.mean() < 0.25
    assert np.array_equal(whole[:, ~is_affected], CLEAN[:, ~is_affected])
    model = plant_fault("errors")
    for n in range(40):
        if is_affected[n]:
            with pytest.raises(RuntimeError, match="injected by the rehearsal"):
                model.predict(WINDOWS[n : n + 1], None)
        else:
            assert np.array_equal(model.predict(WINDOWS[n : n + 1], None), CLEAN[:, n : n + 1])
    assert not np.array_equal(
        is_affected, np.isnan(plant_fault("nan", seed=1).predict(WINDOWS, None)).any(axis=(0, 2))
    )


def test_drift_shifts_every_prediction_by_two_spreads() -> None:
    assert plant_fault("drift").predict(WINDOWS, None) - CLEAN == pytest.approx(3.0, abs=1e-5)


def test_quality_adds_noise_of_one_spread_that_is_the_same_for_all_networks() -> None:
    noise = plant_fault("quality").predict(WINDOWS, None) - CLEAN
    assert np.allclose(noise[0], noise[1])
    assert abs(noise.mean()) < 0.25
    assert 1.3 < noise.std() < 1.7


def test_latency_delays_a_batch_by_100_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    delays_s: list[float] = []
    monkeypatch.setattr("sluice.rehearsal.faults.time.sleep", delays_s.append)
    output = plant_fault("latency").predict(WINDOWS, None)
    assert delays_s == [0.1]
    assert torch.equal(torch.from_numpy(output), torch.from_numpy(CLEAN))
