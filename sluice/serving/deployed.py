"""The deployed form of a version: an ensemble of the networks of all seeds, from the last fold.

The networks of the last fold were trained on the most data. All seeds serve together, because a
single seed may be good only by chance.

Shape legend: M = networks, N = elements of a request, such as windows, D = features, O = outputs,
E = width of an embedding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import IntegrityError
from sluice.data.rows.protocol import RowSource, gather
from sluice.models.embedding import REFERENCE_ROLE, embed
from sluice.models.scaled import Scaled
from sluice.models.served import ServedNetwork
from sluice.registry.loading import load_members
from sluice.registry.records import Version
from sluice.registry.stored_code import CodeSource
from sluice.serving.contract import CodecContract, InputContract, ModelContract, OutputContract
from sluice.serving.model_arrays import (
    ModelArrays,
    as_arrays,
    as_input,
    count_elements,
    split_elements,
)
from sluice.serving.warm_up import warm_up_inputs
from sluice.training.members import Member
from sluice.workloads.codecs.codec import Codec
from sluice.workloads.codecs.window_requests import MAX_MAGNITUDE
from sluice.workloads.codecs.windows import WindowsCodec
from sluice.workloads.windows import require_windows
from sluice.workloads.workload import Workload

_MAX_DEVIATIONS = 1e6
"""Maximum accepted distance of a value from the training mean [standard deviations]. Drift stays
far below this distance, but a value in a wrong unit, such as ns instead of s, exceeds it."""

Pause = Callable[[], object]
"""Function that is called before each network, so that background requests can wait for requests of
users."""


class ServedModel(Protocol):
    """Interface of a model for an arm; its networks may be in another process."""

    @property
    def version(self) -> int:
        """Version number."""

    @property
    def candidate(self) -> str:
        """Candidate digest."""

    @property
    def contract(self) -> ModelContract:
        """Input contract."""

    @property
    def codec(self) -> Codec | None:
        """Codec that decodes requests; None for windows, and for a model in another process."""

    @property
    def target(self) -> str:
        """Name of the predicted column."""

    @property
    def output(self) -> OutputContract:
        """Meaning of the output values."""

    @property
    def problem(self) -> str:
        """Reason why the model cannot predict, in a sentence; empty while it can."""

    @property
    def embedder(self) -> "Embedder | None":
        """Embeds sampled requests; None if embeddings are not stored."""

    def predict(self, x: ModelArrays, pause: Pause | None) -> NDArray[np.float64]:
        """Return the output of each network (M, N, O); calls ``pause`` before each network."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedder:
    """Computes the embeddings of requests, with which drift is detected."""

    weights_digest: str
    """Digest of the weights of the network."""

    network: nn.Module

    def embed(self, x: ModelArrays) -> NDArray[np.float64]:
        """Return the embeddings of the elements (1, N, E)."""
        return embed(self.network, as_input(x)).values[None].astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeployedModel:
    """A deployed model whose networks are in this process."""

    version: int
    candidate: str
    contract: ModelContract
    target: str
    """Name of the predicted column."""

    networks: tuple[nn.Module, ...]

    output: OutputContract = field(default_factory=OutputContract)
    """Meaning of the output values."""

    input_dtype: torch.dtype = torch.float32
    """Dtype of the workload's inputs, to which a client's windows are cast."""

    codec: Codec | None = None
    """Codec that decodes requests; None for windows."""

    embedder: Embedder | None = None
    """Embeds sampled requests with the first network; None if embeddings are not stored."""

    @property
    def problem(self) -> str:
        """Return "", because a model in this process can always predict."""
        return ""

    def predict(self, x: ModelArrays, pause: Pause | None) -> NDArray[np.float64]:
        """Return the output of each network (M, N, O) in double precision, on the CPU."""
        if self.codec is not None and count_elements(x) > self.codec.max_elements:
            # The batch contains several requests. It is split, so that its outputs need no more
            # memory than the outputs of one request.
            chunks = split_elements(x, self.codec.max_elements)
            return np.concatenate([self.predict(chunk, pause) for chunk in chunks], axis=1)
        inputs = as_input(x)
        if self.codec is None and isinstance(inputs, torch.Tensor):
            inputs = inputs.to(self.input_dtype)
        outputs = []
        with torch.inference_mode():
            for network in self.networks:
                if pause is not None:
                    pause()
                outputs.append(network(inputs))
            output: NDArray[np.float64] = torch.stack(outputs).double().numpy()
        return output.reshape(*output.shape[:2], -1)


def deployed_members(members: Sequence[Member]) -> tuple[Member, ...]:
    """Return the members that serve: the members of the last fold, ordered by seed."""
    last_fold = max(member.fold_id for member in members)
    return tuple(sorted((m for m in members if m.fold_id == last_fold), key=lambda m: m.seed))


def load_deployed(
    version: Version, store: ArtifactStore, *, code: CodeSource = "current"
) -> DeployedModel:
    """Load the deployed model of a version, and check every file against its digest.

    Args:
        version: Version to serve.
        store: Artifact store with the weights of the networks.
        code: Whether to use the current or the stored code of the network class; see
            ``load_members``.

    Raises:
        CodeMismatch, UntrustedCode: See ``load_members``.
        IntegrityError: Weights are missing, changed, not in safetensors format, or do not fit
            the network; or the lineage does not match the version's candidate digest.
        ContractError: The workload has the codec of windows, but its inputs are not windows of its
            feature columns.
        CodecMismatch: Requests would be decoded in another way than the inputs of the training.
    """
    version_name = f"{version.model} version {version.number}"
    if version.lineage.compute_candidate() != version.candidate:
        raise IntegrityError(
            f"The lineage of {version_name} does not match its candidate digest "
            f"{version.candidate[:12]}.",
            cause="The lineage was changed after it was registered.",
            fix="Run: sluice registry verify",
        )
    members = deployed_members(version.lineage.members)
    workload, networks = load_members(version, members, store, code=code)
    codec = workload.codec()
    if isinstance(codec, WindowsCodec):
        return DeployedModel(
            version=version.number,
            candidate=version.candidate,
            contract=_windows_contract(workload, networks),
            target=workload.target_column,
            networks=_served_networks(workload, networks),
            output=_output_contract(workload),
            input_dtype=require_windows(workload, version_name),
        )
    return DeployedModel(
        version=version.number,
        candidate=version.candidate,
        contract=CodecContract(
            kind=codec.kind,
            digest=codec.identity().digest,
            max_elements=codec.max_elements,
            body=codec.schema(),
        ),
        target=workload.target_column,
        networks=_served_networks(workload, networks),
        output=_output_contract(workload),
        codec=codec,
        embedder=Embedder(weights_digest=members[0].weights, network=networks[0])
        if REFERENCE_ROLE in version.lineage.artifacts and _can_embed(networks[0], codec)
        else None,
    )


def _served_networks(workload: Workload, networks: Sequence[nn.Module]) -> tuple[nn.Module, ...]:
    if workload.serves_whole_output:
        return tuple(networks)
    return tuple(ServedNetwork(network, workload.served_output) for network in networks)


def _output_contract(workload: Workload) -> OutputContract:
    if workload.task != "classification" or not workload.serves_whole_output:
        return OutputContract()
    class_labels = tuple(c if isinstance(c, int) else str(c) for c in workload.classes)
    return OutputContract(kind="logits", classes=class_labels)


def _can_embed(network: nn.Module, codec: Codec) -> bool:
    """Return whether an embedding can be computed with a network.

    If it cannot, no error is raised here: the drift reference, which was written at training time,
    states the reason.
    """
    try:
        embed(network, codec.example())
    except Exception:  # user code may raise anything, and predictions need no embedding
        return False
    return True


def _windows_contract(workload: Workload, networks: Sequence[nn.Module]) -> InputContract:
    return InputContract(
        columns=workload.feature_columns,
        seq_len=workload.settings.seq_len,
        bounds=_column_bounds(networks, num_columns=len(workload.feature_columns)),
    )


def _column_bounds(
    networks: Sequence[nn.Module], *, num_columns: int
) -> tuple[tuple[float, float], ...] | None:
    """Return the accepted range of each column, computed from the input scales of the networks.

    A column that was constant in training has no scale; magnitudes up to ``MAX_MAGNITUDE`` are
    accepted. Returns None if a network has no input scales, or another number of columns.
    """
    # A network with an encoder scales encoded inputs, and not the columns that clients send.
    scalers = [
        n for n in networks if isinstance(n, Scaled) and n.scale_inputs and n.encoder is None
    ]
    if len(scalers) < len(networks) or any(n.num_features != num_columns for n in scalers):
        return None
    mean_MD = torch.stack([n.x_mean for n in scalers]).double().cpu().numpy()
    std_MD = torch.stack([n.x_std for n in scalers]).double().cpu().numpy()
    # The normaliser stores a standard deviation of 1 for a column that is constant in training.
    radius_MD = np.where(std_MD == 1.0, np.inf, _MAX_DEVIATIONS * std_MD)
    low_D = np.maximum((mean_MD - radius_MD).min(axis=0), -MAX_MAGNITUDE)
    high_D = np.minimum((mean_MD + radius_MD).max(axis=0), MAX_MAGNITUDE)
    return tuple(zip(low_D.tolist(), high_D.tolist(), strict=True))


def predict_rows(
    deployed: DeployedModel, x: torch.Tensor | RowSource, rows: range, *, batch_rows: int
) -> NDArray[np.float64]:
    """Return the prediction (N, O) for chosen rows of examples: the mean of the networks' outputs.

    Args:
        deployed: The model.
        x: Inputs of examples of the model's workload.
        rows: Positions of the examples.
        batch_rows: Number of rows that are read and predicted at once.
    """
    batches = []
    for start in range(rows.start, rows.stop, batch_rows):
        inputs = gather(x, torch.arange(start, min(start + batch_rows, rows.stop)))
        arrays = as_arrays(inputs)
        if deployed.codec is None and isinstance(arrays, np.ndarray):
            arrays = arrays.astype(np.float32)  # dtype of the windows of clients
        batches.append(deployed.predict(arrays, None).mean(axis=0))
    return np.concatenate(batches)


def require_finite(deployed: DeployedModel) -> None:
    """Predict once, which warms up the networks and detects non-finite weights.

    Raises:
        IntegrityError: The prediction is not finite.
    """
    output = deployed.predict(warm_up_inputs(deployed.contract, deployed.codec), None)
    if not np.isfinite(output).all():
        raise IntegrityError(
            f"The predictions of version {deployed.version} for a made-up input must be finite, "
            f"got {output.ravel()[:4].tolist()}.",
            cause="Its weights or its normaliser contain NaN or infinity.",
            fix="Roll back: sluice registry rollback",
        )
