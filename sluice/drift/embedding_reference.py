"""Drift reference of a network's embedding: embeddings of held-out rows, or why they are missing.

It is stored with the version, as a Parquet file under its digest. Shape legend: N = rows,
E = width of an embedding.
"""

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import nn

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_bytes
from sluice.base.errors import ContractError, IntegrityError
from sluice.base.strict_json import parse_strict_json
from sluice.config.drift_settings import DriftSettings
from sluice.data.folds import Fold
from sluice.data.rows.protocol import ModelInput, gather, spread_rows
from sluice.data.table_bytes import require_bounded_table
from sluice.drift.reference import OnProgress
from sluice.evaluation.outputs import (
    LoadMember,
    own_member_selector,
    require_complete_seeds,
    select_members,
)
from sluice.models.embedding import MAX_WIDTH, embed
from sluice.serving.model_arrays import as_arrays, element_digests
from sluice.training.members import Member
from sluice.workloads.codecs.raw_rows import RawRowsCodec
from sluice.workloads.codecs.windows import WindowsCodec
from sluice.workloads.workload import Workload

_FORMAT = 1
"""Format number of the file; a file of another format is rejected."""
_HEADER_KEY = b"sluice.drift_embedding"
"""Key of the header in the metadata of the Parquet file."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbeddingReference:
    """Embeddings of held-out rows by one network of a version."""

    network: str
    """Digest of the weights of the network."""

    layer: str
    """Name of the layer that receives the embedding; empty without rows."""

    rows_NE: NDArray[np.float32]
    """Embeddings of different rows in row order; no rows if there is a problem."""

    problem: str = ""
    """Reason why the reference has no embeddings, in sentences; empty if it has embeddings."""


def compares_embeddings(workload: Workload, settings: DriftSettings) -> bool:
    """Return whether the drift of a workload's requests is detected on their embeddings.

    The result is False if ``settings.embedding`` is None or the workload is not served. Otherwise
    the codec decides. It is False for windows and raw rows, whose columns are compared, and True
    for all other codecs, such as images and texts.
    """
    if settings.embedding is None or not workload.is_served:
        return False
    return not isinstance(workload.codec(), WindowsCodec | RawRowsCodec)


def build_embedding_reference(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    members: Sequence[Member],
    load: LoadMember,
    settings: DriftSettings,
    *,
    max_rows: int,
    on_progress: OnProgress,
) -> EmbeddingReference:
    """Return the embeddings of at most ``max_rows`` held-out rows by the first deployed network.

    This is the network of the lowest seed and the last fold. The rows are evenly spaced test rows
    of this fold, because a network separates its training rows better than other rows. Repeated
    rows count once, like repeated requests. Rows are embedded one by one, as in serving.

    Args:
        workload: Workload of the version.
        frame: Feature frame of the training.
        folds: Folds of the training.
        members: One member for each seed and fold.
        load: Returns the network of a member.
        settings: Drift settings.
        max_rows: Maximum number of rows.
        on_progress: Receives one line for each progress step.

    Raises:
        ContractError: A seed lacks a fold, or has a fold that is not planned.

    Cost:
        500 images of 32 x 32 pixels and a small network: 1 s.
    """
    last_fold = max(folds, key=lambda fold: fold.fold_id)
    seed = min(require_complete_seeds(folds, members))
    select_member = own_member_selector(workload, frame, members)
    (member,) = select_members([last_fold], [seed], select_member).values()
    network = load(member)
    source = workload.examples(frame, last_fold.test).x
    positions = spread_rows(len(source), max_rows)
    on_progress(f"embedding {len(positions)} held-out rows")
    inputs = (gather(source, positions[i : i + 1]) for i in range(len(positions)))
    threads_before = torch.get_num_threads()
    # A small image takes 1.3 ms with one thread, and 40 ms with two threads on a busy machine.
    torch.set_num_threads(1)
    try:
        layer, rows_NE = _embed_rows(network, inputs)
    except ContractError as error:
        return _without_rows(member, f"{error.what} {error.fix}")
    finally:
        torch.set_num_threads(threads_before)
    if len(rows_NE) < settings.min_rows:
        return _without_rows(
            member,
            f"The embedding needs at least {settings.min_rows} different held-out rows "
            f"(drift.min_rows), got {len(rows_NE)}.",
        )
    return EmbeddingReference(network=member.weights, layer=layer, rows_NE=rows_NE)


def _embed_rows(
    network: nn.Module, inputs: Iterable[ModelInput]
) -> tuple[str, NDArray[np.float32]]:
    """Return the layer, and the embeddings of different inputs (N, E).

    Raises:
        ContractError: The network has no embedding, or an embedding is not finite.
    """
    layer, rows = "", []
    embedded_digests: set[bytes] = set()
    for x in inputs:
        (digest,) = element_digests(as_arrays(x))
        if digest in embedded_digests:
            continue
        embedded_digests.add(digest)
        embedding = embed(network, x)
        layer = embedding.layer
        rows.append(embedding.values[0])
    rows_NE = np.stack(rows)
    num_nonfinite = int((~np.isfinite(rows_NE).all(axis=1)).sum())
    if num_nonfinite:
        raise ContractError(
            f"{num_nonfinite} of {len(rows_NE)} embeddings of held-out rows are not finite.",
            fix="Find out why the network is not finite on these rows.",
        )
    return layer, rows_NE


def _without_rows(member: Member, problem: str) -> EmbeddingReference:
    no_rows_NE = np.empty((0, 0), np.float32)
    return EmbeddingReference(network=member.weights, layer="", rows_NE=no_rows_NE, problem=problem)


def save_embedding_reference(reference: EmbeddingReference, store: ArtifactStore) -> str:
    """Store the reference and return its digest; saving it again has no effect.

    Raises:
        StorageError: The store is not writable.
    """
    header = {
        "format": _FORMAT,
        "network": reference.network,
        "layer": reference.layer,
        "problem": reference.problem,
        "digest": _content_digest(reference),
    }
    names = [str(i) for i in range(reference.rows_NE.shape[1])]
    table = pa.table({name: reference.rows_NE[:, int(name)] for name in names})
    with_header = table.replace_schema_metadata({_HEADER_KEY: json.dumps(header, sort_keys=True)})
    buffer = io.BytesIO()
    pq.write_table(with_header, buffer, compression="zstd")
    return store.put(buffer.getvalue())


def load_embedding_reference(digest: str, store: ArtifactStore) -> EmbeddingReference:
    """Return the reference with this digest.

    Raises:
        IntegrityError: The artifact is missing, damaged, or not a reference of an embedding.
        StorageError: The artifact cannot be read.
    """
    content = store.get(digest)
    try:
        require_bounded_table(content, what="The drift reference of the embedding")
        table = pq.read_table(io.BytesIO(content))
        header = parse_strict_json((table.schema.metadata or {})[_HEADER_KEY], require_finite=False)
        columns = [column.to_numpy() for column in table.columns]
        rows_NE = np.stack(columns, axis=1) if columns else np.empty((0, 0), np.float32)
        reference = EmbeddingReference(
            network=str(header["network"]),
            layer=str(header["layer"]),
            rows_NE=rows_NE.astype(np.float32, casting="safe"),
            problem=str(header["problem"]),
        )
        if header["format"] != _FORMAT or header["digest"] != _content_digest(reference):
            raise _damaged_error("its content does not match its header")
        if not np.isfinite(rows_NE).all():
            raise _damaged_error("an embedding is not finite")
        if rows_NE.shape[1] > MAX_WIDTH or bool(rows_NE.size) == bool(reference.problem):
            raise _damaged_error(
                f"it has {rows_NE.shape} numbers and the problem '{reference.problem}'"
            )
        return reference
    except (pa.ArrowInvalid, OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise _damaged_error(f"{type(error).__name__}: {error}") from None


def _content_digest(reference: EmbeddingReference) -> str:
    """Return the digest of the content, independent of the Parquet encoding."""
    texts = [reference.network, reference.layer, reference.problem, str(reference.rows_NE.shape)]
    return digest_bytes(json.dumps(texts).encode() + reference.rows_NE.tobytes())


def _damaged_error(why: str) -> IntegrityError:
    return IntegrityError(
        f"The file does not contain a valid drift reference of an embedding ({why}).",
        cause="The file was modified or truncated after it was written, or has another format.",
        fix="Train the version again, or restore the file from a backup.",
    )
