"""The faults of a rehearsal, planted in a loaded challenger's networks; nothing else imports this.

Which windows a fault hits follows from their bytes and the seed: the same ones every time, in
whatever batch they come, as with most real faults.

Shape legend: N = windows, L = rows of a window, D = features, O = outputs.
"""

import ctypes
import dataclasses
import hashlib
import time
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from sluice.base.settings import Record
from sluice.registry.stored_code import CodeChoice
from sluice.serving.deployed import Deployed
from sluice.serving.ledger_models import load_from_ledger

Fault = Literal["none", "errors", "latency", "nan", "drift", "quality", "crash", "silence"]
FAULTS: tuple[Fault, ...] = get_args(Fault)

_HIT = 0.2
"""Share of the windows that errors and NaN hit."""
_CRASH = 0.05
_SLEEP_S = 0.1
_SHIFT = 2.0
"""Spreads of production's predictions by which drift shifts the challenger's."""
_NOISE = 1.0
"""The same, for the deviation of what a worse model adds."""
_NAMES_SIZE = 8


class Plan(Record):
    """Which fault is planted in which version."""

    fault: Fault
    challenger: str = Field(description="Candidate digest; every other version stays as it is.")
    seed: int
    spread: tuple[float, ...] = Field(
        description="Standard deviation of production's predictions on held-out rows (O,)."
    )


def plant(deployed: Deployed, plan: Plan) -> Deployed:
    """Return the model with the plan's fault, when it is the challenger; else as it is."""
    if deployed.candidate != plan.challenger or plan.fault in ("none", "silence"):
        return deployed
    # All networks are wrong in the same way, so that their mean is; one that fails is enough.
    everywhere = plan.fault in ("drift", "quality")
    networks = tuple(
        _Faulty(network, plan) if everywhere or place == 0 else network
        for place, network in enumerate(deployed.networks)
    )
    return dataclasses.replace(deployed, networks=networks)


class _Faulty(nn.Module):
    """A network with a fault."""

    def __init__(self, network: nn.Module, plan: Plan) -> None:
        super().__init__()
        self.network = network
        self._plan = plan
        self._spread = torch.tensor(plan.spread)

    def forward(self, x: Tensor) -> Tensor:
        plan = self._plan
        lot_N = _lots(x.numpy(), seed=plan.seed)
        if plan.fault == "errors" and (lot_N < _HIT).any():
            raise RuntimeError("planted by the rehearsal")
        if plan.fault == "crash" and (lot_N < _CRASH).any():
            ctypes.string_at(0)
        if plan.fault == "latency":
            time.sleep(_SLEEP_S)
        out: Tensor = self.network(x)
        if plan.fault == "nan":
            out = out.clone()
            out[torch.from_numpy(lot_N < _HIT)] = torch.nan
        elif plan.fault == "drift":
            out = out + _SHIFT * self._spread
        elif plan.fault == "quality":
            noise_N = [NormalDist().inv_cdf(lot) for lot in lot_N]
            out = out + _NOISE * self._spread * torch.tensor(noise_N).unsqueeze(-1)
        return out


def _lots(x_NLD: NDArray[np.float32], *, seed: int) -> NDArray[np.float64]:
    """Return a number in (0, 1) for each window (N,)."""
    key = seed.to_bytes(_NAMES_SIZE, "big", signed=True)
    digests = [
        hashlib.blake2b(window.tobytes(), digest_size=_NAMES_SIZE, key=key).digest()
        for window in np.ascontiguousarray(x_NLD)
    ]
    drawn = np.array([int.from_bytes(digest, "big") for digest in digests], dtype=np.float64)
    return (drawn + 0.5) / 2.0 ** (8 * _NAMES_SIZE)


def load_planted(
    candidate: str,
    *,
    registry_url: str,
    model: str,
    artifacts: str,
    plan: str,
    code: CodeChoice = "present",
) -> Deployed:
    """Return the model of a candidate digest with the plan's fault; called in its own process.

    Args:
        candidate: Digest.
        registry_url: Of the sandbox.
        model: Its name.
        artifacts: Folder of the sandbox's store.
        plan: As JSON.
        code: Whose network class gets the weights.
    """
    found = load_from_ledger(
        candidate, registry_url=registry_url, model=model, artifacts=artifacts, code=code
    )
    return plant(found, Plan.model_validate_json(plan))
