"""What is deployed of a version: the mean of all its seeds, each fitted on the last fold.

The last fold's members have learned from the most data. All seeds together are one model, an
ensemble; one lucky seed never serves alone.

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
from sluice.registry.stored_code import CodeChoice
from sluice.serving.contract import LARGEST, InputContract
from sluice.training.members import Member
from sluice.workloads.windows import require_windows

_FAR_DEVIATIONS = 1e6
"""So many standard deviations of the train rows from their mean a value may be: drift is far below
that, nanoseconds where training saw seconds are beyond."""

Pause = Callable[[], object]
"""Called between two networks: whoever has time may wait there for whoever has not."""


class Served(Protocol):
    """A model as an arm sees it, wherever its networks are."""

    @property
    def version(self) -> int:
        """Number of the version."""

    @property
    def candidate(self) -> str:
        """Candidate digest."""

    @property
    def contract(self) -> InputContract:
        """What it takes."""

    @property
    def target(self) -> str:
        """Name of what is predicted."""

    @property
    def problem(self) -> str:
        """Why it does not answer, in a sentence; "" while it does."""

    def predict(self, x_NLD: NDArray[np.float32], pause: Pause | None) -> NDArray[np.float64]:
        """Return what each network says (M, N, O); ``pause`` is called between two of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Deployed:
    """One model as it serves, with its networks in this process."""

    version: int
    candidate: str
    contract: InputContract
    target: str
    """Name of what is predicted."""

    networks: tuple[nn.Module, ...]

    input_dtype: torch.dtype = torch.float32
    """Dtype of the workload's inputs, to which a client's windows are cast."""

    @property
    def problem(self) -> str:
        """Return "": what is in this process answers."""
        return ""

    def predict(self, x_NLD: NDArray[np.float32], pause: Pause | None) -> NDArray[np.float64]:
        """Return what each network says (M, N, O) in double precision, on the CPU."""
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
    """Return the members that serve: every seed of the last fold, by seed."""
    last = max(member.fold_id for member in members)
    return tuple(sorted((m for m in members if m.fold_id == last), key=lambda m: m.seed))


def load_deployed(
    version: Version, store: ArtifactStore, *, code: CodeChoice = "present"
) -> Deployed:
    """Load what serves of a version; every file is checked against its digest (REG-3).

    Args:
        version: What is to be served.
        store: Holds its weights.
        code: Whose network class gets the weights; see ``load_members``.

    Raises:
        OtherCode: The version was trained with other code than the present one.
        IntegrityError: Weights are missing, changed, no safetensors file, or do not fit; or they
            are not those that the version's candidate digest names.
        ContractError: The workload makes inputs that are no windows of its feature columns.
    """
    who = f"{version.model} version {version.number}"
    if version.lineage.candidate_of_parts() != version.candidate:
        raise IntegrityError(
            f"{who}: its weights are not those its candidate digest {version.candidate[:12]} "
            "was made of.",
            cause="The lineage was changed after it was registered.",
            fix="Run: sluice registry verify",
        )
    members = deployed_members(version.lineage.members)
    workload, networks = load_members(version, members, store, code=code)
    input_dtype = require_windows(workload, who)
    return Deployed(
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
    """Return what each column may hold, from the scales that the networks learned.

    A column that was constant in training has no scale, and keeps the bounds of single precision.
    """
    scaled = [n for n in networks if isinstance(n, Scaled) and n.scale_inputs]
    if len(scaled) < len(networks) or any(n.num_features != num_columns for n in scaled):
        return None
    mean_MD = torch.stack([n.x_mean for n in scaled]).double().cpu().numpy()
    std_MD = torch.stack([n.x_std for n in scaled]).double().cpu().numpy()
    reach_MD = np.where(std_MD == 1.0, np.inf, _FAR_DEVIATIONS * std_MD)  # 1: it was constant
    low_D = np.maximum((mean_MD - reach_MD).min(axis=0), -LARGEST)
    high_D = np.minimum((mean_MD + reach_MD).max(axis=0), LARGEST)
    return tuple(zip(low_D.tolist(), high_D.tolist(), strict=True))


def require_finite(deployed: Deployed) -> None:
    """Predict once from zeros: warms the networks up and finds weights that are not numbers.

    Raises:
        IntegrityError: The answer is not finite.
    """
    length, columns = deployed.contract.seq_len, deployed.contract.columns
    answer = deployed.predict(np.zeros((1, length, len(columns)), np.float32), None)
    if not np.isfinite(answer).all():
        raise IntegrityError(
            f"Version {deployed.version} must predict a finite number from zeros, got "
            f"{answer.ravel()[:4].tolist()}.",
            cause="Its weights or its normaliser hold NaN or infinity.",
            fix="Go back: sluice registry rollback",
        )
