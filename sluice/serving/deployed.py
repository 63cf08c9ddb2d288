"""The deployed form of a version: an ensemble of all its seeds, each trained on the last fold.

The last fold's members were trained on the most data. All seeds together are one model; a single
lucky seed never serves alone.

Shape legend: M = networks, N = windows, L = rows of a window, D = features, O = outputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError
from sluice.models.scaled import Scaled
from sluice.registry.loading import load_members
from sluice.registry.records import Version
from sluice.registry.stored_code import CodeSource
from sluice.serving.contract import MAX_MAGNITUDE, InputContract
from sluice.training.members import Member
from sluice.workloads.windows import require_windows

_MAX_DEVIATIONS = 1e6
"""Largest accepted distance of a value from the training mean, in standard deviations. Drift is far
below it; nanoseconds in place of seconds are beyond it."""

Pause = Callable[[], object]
"""Called between two networks, where low-priority work can yield to other requests."""


class ServedModel(Protocol):
    """A model as an arm uses it, wherever its networks are."""

    @property
    def version(self) -> int:
        """Version number."""

    @property
    def candidate(self) -> str:
        """Candidate digest."""

    @property
    def contract(self) -> InputContract:
        """Input contract."""

    @property
    def target(self) -> str:
        """Name of the predicted column."""

    @property
    def problem(self) -> str:
        """Why it cannot predict, in a sentence; empty while it can."""

    def predict(self, x_NLD: NDArray[np.float32], pause: Pause | None) -> NDArray[np.float64]:
        """Return the output of each network (M, N, O); calls ``pause`` between networks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeployedModel:
    """A deployed model with its networks in this process."""

    version: int
    candidate: str
    contract: InputContract
    target: str
    """Name of the predicted column."""

    networks: tuple[nn.Module, ...]

    input_dtype: torch.dtype = torch.float32
    """Dtype of the workload's inputs, to which a client's windows are cast."""

    @property
    def problem(self) -> str:
        """Return an empty text: a model in this process can always predict."""
        return ""

    def predict(self, x_NLD: NDArray[np.float32], pause: Pause | None) -> NDArray[np.float64]:
        """Return the output of each network (M, N, O) in double precision, on the CPU."""
        x = torch.from_numpy(x_NLD).to(self.input_dtype)
        outputs = []
        with torch.inference_mode():
            for network in self.networks:
                if pause is not None:
                    pause()
                outputs.append(network(x))
            each: NDArray[np.float64] = torch.stack(outputs).double().numpy()
        return each.reshape(len(self.networks), len(x_NLD), -1)


def deployed_members(members: Sequence[Member]) -> tuple[Member, ...]:
    """Return the members that serve: every seed of the last fold, ordered by seed."""
    last = max(member.fold_id for member in members)
    return tuple(sorted((m for m in members if m.fold_id == last), key=lambda m: m.seed))


def load_deployed(
    version: Version, store: ArtifactStore, *, code: CodeSource = "current"
) -> DeployedModel:
    """Load the deployed model of a version; every file is checked against its digest.

    Args:
        version: Version to serve.
        store: Stores its network weights.
        code: Code of the network class: current or stored; see ``load_members``.

    Raises:
        CodeMismatch: The version was trained with other code than the present one.
        IntegrityError: Weights are missing, changed, not in safetensors format, or do not fit;
            or they are not those of the version's candidate digest.
        ContractError: The workload's inputs are not windows of its feature columns.
    """
    who = f"{version.model} version {version.number}"
    if version.lineage.compute_candidate() != version.candidate:
        raise IntegrityError(
            f"{who}: its network weights do not match its candidate digest "
            f"{version.candidate[:12]}.",
            cause="The lineage was changed after it was registered.",
            fix="Run: sluice registry verify",
        )
    members = deployed_members(version.lineage.members)
    workload, networks = load_members(version, members, store, code=code)
    input_dtype = require_windows(workload, who)
    return DeployedModel(
        version=version.number,
        candidate=version.candidate,
        contract=InputContract(
            columns=workload.feature_columns,
            seq_len=workload.settings.seq_len,
            bounds=_bounds(networks, num_columns=len(workload.feature_columns)),
        ),
        target=workload.target_column,
        networks=tuple(networks),
        input_dtype=input_dtype,
    )


def _bounds(
    networks: Sequence[nn.Module], *, num_columns: int
) -> tuple[tuple[float, float], ...] | None:
    """Return the accepted range of each column, from the networks' input scales.

    A column that was constant in training has no scale, and keeps the bounds of single
    precision.
    """
    scaled = [n for n in networks if isinstance(n, Scaled) and n.scale_inputs]
    if len(scaled) < len(networks) or any(n.num_features != num_columns for n in scaled):
        return None
    mean_MD = torch.stack([n.x_mean for n in scaled]).double().cpu().numpy()
    std_MD = torch.stack([n.x_std for n in scaled]).double().cpu().numpy()
    reach_MD = np.where(std_MD == 1.0, np.inf, _MAX_DEVIATIONS * std_MD)  # 1: constant in training
    low_D = np.maximum((mean_MD - reach_MD).min(axis=0), -MAX_MAGNITUDE)
    high_D = np.minimum((mean_MD + reach_MD).max(axis=0), MAX_MAGNITUDE)
    return tuple(zip(low_D.tolist(), high_D.tolist(), strict=True))


def require_finite(deployed: DeployedModel) -> None:
    """Predict once from zeros: warms up the networks and detects non-finite weights.

    Raises:
        IntegrityError: The prediction is not finite.
    """
    length, columns = deployed.contract.seq_len, deployed.contract.columns
    answer = deployed.predict(np.zeros((1, length, len(columns)), np.float32), None)
    if not np.isfinite(answer).all():
        raise IntegrityError(
            f"Version {deployed.version} must give finite predictions for zeros, got "
            f"{answer.ravel()[:4].tolist()}.",
            cause="Its weights or its normaliser contain NaN or infinity.",
            fix="Roll back: sluice registry rollback",
        )
