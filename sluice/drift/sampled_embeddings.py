"""Embeddings of the sampled requests that can be compared with the reference of a version.

Shape legend: N = requests, E = width of an embedding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sluice.base.digests import short
from sluice.drift import serving_samples
from sluice.drift.embedding_reference import EmbeddingReference, load_embedding_reference
from sluice.drift.monitor_inputs import MonitorInputs
from sluice.rollout.samples import Sample
from sluice.serving.deployed import deployed_members


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledEmbeddings:
    """Embeddings of requests in time order, and the reference of the same network."""

    times: pd.DatetimeIndex
    rows_NE: NDArray[np.float64]
    reference: EmbeddingReference


def sampled_embeddings(inputs: MonitorInputs, samples: Sequence[Sample]) -> SampledEmbeddings | str:
    """Return the embeddings of production's samples, or why there is nothing to compare.

    A text is the reason of the verdict INCONCLUSIVE: the version has no reference, its reference
    belongs to another network, or the requests were embedded by another network or not at all.

    Args:
        inputs: Inputs of the monitor run.
        samples: Samples that production answered and that no window contains yet.

    Raises:
        IntegrityError: The reference is missing or damaged.
    """
    if isinstance(inputs.references, str):
        return inputs.references
    version = inputs.version
    if inputs.references.embedding is None:
        return (
            f"Version {version.number} was created without a reference of its embedding; the next "
            "training stores one."
        )
    reference = load_embedding_reference(inputs.references.embedding, inputs.store)
    deployed_weights = deployed_members(version.lineage.members)[0].weights
    if reference.network != deployed_weights:
        return (
            f"The reference of the embedding belongs to the network {short(reference.network)}, "
            f"but version {version.number} serves the network {short(deployed_weights)}. Train "
            "the pipeline again; embeddings of different networks cannot be compared."
        )
    if reference.problem:
        return f"Requests cannot be compared by their embedding. {reference.problem}"
    width = reference.rows_NE.shape[1]
    times, rows_NE = serving_samples.embedding_rows(samples, reference.network, width)
    if not len(times) and len(samples) >= inputs.settings.min_rows:
        return _explain_missing_embeddings(samples, reference.network, version.number)
    return SampledEmbeddings(times=times, rows_NE=rows_NE, reference=reference)


def _explain_missing_embeddings(samples: Sequence[Sample], network: str, version: int) -> str:
    """Return why no sample can be compared with the reference."""
    networks = [s.embedding.network for s in samples if s.embedding is not None]
    if networks:
        return (
            f"{len(networks)} of {len(samples)} requests were embedded by another network "
            f"({short(networks[-1])}) than the network of version {version} ({short(network)}). "
            "Restart servers that still serve another version."
        )
    return (
        f"None of {len(samples)} requests has an embedding. Restart servers that run an older "
        "release."
    )
