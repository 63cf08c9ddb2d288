"""Faults of a rehearsal, injected into the networks of a loaded challenger.

Only rehearsals inject these faults; other packages import only the names. Which elements a fault
affects depends only on their bytes and the seed, and not on their batch, as with most real faults.

Shape legend: N = elements of a request, such as windows, O = outputs.
"""

import ctypes
import dataclasses
import time
from collections.abc import Mapping
from statistics import NormalDist
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from sluice.base.settings import Record
from sluice.data.rows.protocol import ModelInput
from sluice.findings.catalogue import FaultName
from sluice.registry.stored_code import CodeSource
from sluice.rehearsal.settings import FAULTY_SHARE
from sluice.serving.deployed import DeployedModel
from sluice.serving.ledger_models import load_from_ledger
from sluice.serving.model_arrays import ModelArrays, as_arrays, element_digests

InjectedFault = Literal[
    "none", "errors", "latency", "nan", "drift", "quality", "crash", "no_traffic"
]
FAULT_NAMES: Mapping[InjectedFault, FaultName] = {
    "errors": "prediction errors",
    "latency": "slow predictions",
    "nan": "non-finite output",
    "drift": "prediction drift",
    "quality": "lower prediction quality",
    "crash": "process crashed",
    "no_traffic": "no traffic",
}
"""Name of each injected fault in the catalogue; "none" injects no fault."""

_CRASH_SHARE = 0.05
"""Share of the elements that crash the challenger's process with the fault ``crash``."""
_ADDED_LATENCY_S = 0.1
"""Delay of each batch by the fault ``latency`` [s]."""
_DRIFT_SHIFT_STDS = 2.0
"""Shift of outputs by the fault ``drift`` [standard deviations of production's predictions]."""
_NOISE_STDS = 1.0
"""Standard deviation of the noise that the fault ``quality`` adds to outputs [standard deviations
of production's predictions]."""
_DIGEST_BYTES = 8
"""Length of the digest from which an element's random number is derived [bytes]."""


class FaultPlan(Record):
    """Fault to inject, and the version that gets it."""

    fault: InjectedFault
    challenger: str = Field(
        description="Candidate digest of the challenger; every other version stays unchanged."
    )
    seed: int
    spread: tuple[float, ...] = Field(
        description="Standard deviation of production's predictions on held-out rows (O,)."
    )


def inject_fault(deployed: DeployedModel, plan: FaultPlan) -> DeployedModel:
    """Return the challenger with the planned fault; return any other model unchanged."""
    if deployed.candidate != plan.challenger or plan.fault in ("none", "no_traffic"):
        return deployed
    # A prediction is the mean over the networks. A shift or noise in one network would therefore be
    # too small. With the other faults, one faulty network suffices.
    affects_all = plan.fault in ("drift", "quality")
    networks = tuple(
        _FaultyNetwork(network, plan) if affects_all or index == 0 else network
        for index, network in enumerate(deployed.networks)
    )
    return dataclasses.replace(deployed, networks=networks)


class _FaultyNetwork(nn.Module):
    """Wraps a network and adds the fault."""

    def __init__(self, network: nn.Module, plan: FaultPlan) -> None:
        super().__init__()
        self.network = network
        self._plan = plan
        self._spread = torch.tensor(plan.spread)

    def forward(self, x: ModelInput) -> Tensor:
        plan = self._plan
        uniform_N = _uniform_from_bytes(as_arrays(x), seed=plan.seed)
        if plan.fault == "errors" and (uniform_N < FAULTY_SHARE).any():
            raise RuntimeError("injected by the rehearsal")
        if plan.fault == "crash" and (uniform_N < _CRASH_SHARE).any():
            ctypes.string_at(0)  # reads address 0: a segmentation fault
        if plan.fault == "latency":
            time.sleep(_ADDED_LATENCY_S)
        output: Tensor = self.network(x)
        if plan.fault == "nan":
            output = output.clone()
            output[torch.from_numpy(uniform_N < FAULTY_SHARE)] = torch.nan
        elif plan.fault == "drift":
            output = output + _DRIFT_SHIFT_STDS * self._spread
        elif plan.fault == "quality":
            noise_N = [NormalDist().inv_cdf(value) for value in uniform_N]
            output = output + _NOISE_STDS * self._spread * torch.tensor(noise_N).unsqueeze(-1)
        return output


def _uniform_from_bytes(x: ModelArrays, *, seed: int) -> NDArray[np.float64]:
    """Return a uniform number in (0, 1) for each element (N,), derived from its bytes."""
    key = seed.to_bytes(_DIGEST_BYTES, "big", signed=True)
    digests = element_digests(x, key=key, size=_DIGEST_BYTES)
    number_N = np.array([int.from_bytes(digest, "big") for digest in digests], dtype=np.float64)
    return (number_N + 0.5) / 2.0 ** (8 * _DIGEST_BYTES)


def load_with_fault(
    candidate: str,
    *,
    registry_url: str,
    model: str,
    artifacts: str,
    plan: str,
    code: CodeSource = "current",
) -> DeployedModel:
    """Load the model of a candidate digest with the planned fault, in the challenger's process.

    Args:
        candidate: Candidate digest.
        registry_url: Registry of the sandbox.
        model: Name of the model.
        artifacts: Folder of the sandbox's artifact store.
        plan: ``FaultPlan`` as JSON.
        code: Code of the network class: current or stored.
    """
    deployed = load_from_ledger(
        candidate, registry_url=registry_url, model=model, artifacts=artifacts, code=code
    )
    return inject_fault(deployed, FaultPlan.model_validate_json(plan))
