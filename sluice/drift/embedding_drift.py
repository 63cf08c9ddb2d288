"""Drift of images and texts: compares embeddings of requests with embeddings of held-out rows.

Shape legend: N = rows, E = width of an embedding.
"""

import math

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.settings import Record
from sluice.config.drift_settings import DriftSettings, EmbeddingDriftSettings
from sluice.data.rows.protocol import spread_rows
from sluice.drift.embedding_reference import EmbeddingReference
from sluice.drift.mmd import MmdTest, mmd_test
from sluice.drift.report import DriftVerdict
from sluice.evaluation.variance import choose_block_length, shortest_block

_DEPENDENCE_COMPONENTS = 4
"""Number of principal components from which the block length is estimated."""


class EmbeddingReport(Record):
    """Test result for the embeddings of one window of requests."""

    verdict: DriftVerdict
    reason: str
    remedy: str
    window: str
    network: str = Field(description="Digest of the weights of the network.")
    layer: str = Field(description="Name of the layer that receives the embedding.")
    mmd_squared: float = Field(
        description="Unbiased estimate of the squared maximum mean discrepancy; NaN if not tested."
    )
    threshold: float = Field(
        description="Squared discrepancy that windows without drift exceed at rate alpha."
    )
    min_discrepancy: float = Field(
        description="Maximum squared discrepancy that is ignored although it is significant."
    )
    p_value: float = Field(description="P-value of the permutation test; NaN if not tested.")
    bandwidth: float = Field(
        description="Bandwidth of the kernel: the median distance of two embeddings."
    )
    num_permutations: int
    alpha: float
    num_rows: int
    reference_rows: int
    block_length: int = Field(
        description="Number of consecutive requests that are treated as dependent [requests]."
    )


def evaluate_embeddings(
    reference: EmbeddingReference,
    window_NE: NDArray[np.float64],
    settings: DriftSettings,
    embedding_settings: EmbeddingDriftSettings,
    *,
    window: str,
    seed: int,
) -> EmbeddingReport:
    """Test whether the embeddings of requests differ from the embeddings of held-out rows.

    This signal has a single test, so its p-value is compared with ``alpha`` itself. Every signal of
    the monitor has this rate of false alarms per window. DRIFT also requires that the squared
    discrepancy exceeds ``min_discrepancy``.

    Args:
        reference: Reference with at least two different rows.
        window_NE: Embeddings of requests by the same network, in time order.
        settings: False alarm rate and minimum size of a window.
        embedding_settings: Sample size, permutations and allowed discrepancy.
        window: Identifier of the window in the report.
        seed: Seed of the permutations.

    Raises:
        ContractError: The embeddings have another width than the reference, or are not finite.

    Cost:
        Two samples of 500 rows: 0.2 s, mostly to estimate the block length.
    """
    reference_NE = _subsample(reference.rows_NE.astype(np.float64), embedding_settings.max_rows)
    window_NE = _subsample(window_NE, embedding_settings.max_rows)
    length = max(_block_length(reference_NE), _block_length(window_NE))
    required_rows = max(settings.min_rows, settings.min_blocks * length)
    shortages = [
        f"{len(sample)} different rows of {name} are compared, required {required_rows}"
        for name, sample in (("the reference", reference_NE), ("the window", window_NE))
        if len(sample) < required_rows
    ]
    if not shortages and not _has_enough_permutations(
        settings.alpha, length, reference_NE, window_NE
    ):
        shortages = [f"with blocks of {length} rows, no p-value is as small as {settings.alpha:g}"]
    test = None
    if not shortages:
        test = mmd_test(
            reference_NE,
            window_NE,
            block_length=length,
            num_permutations=_num_permutations(settings, embedding_settings),
            alpha=settings.alpha,
            seed=seed,
        )
    verdict, reason, remedy = _decide(test, shortages, settings, embedding_settings)
    return EmbeddingReport(
        verdict=verdict,
        reason=reason,
        remedy=remedy,
        window=window,
        network=reference.network,
        layer=reference.layer,
        mmd_squared=test.mmd_squared if test else math.nan,
        threshold=test.threshold if test else math.nan,
        min_discrepancy=embedding_settings.min_discrepancy,
        p_value=test.p_value if test else math.nan,
        bandwidth=test.bandwidth if test else math.nan,
        num_permutations=test.num_permutations if test else 0,
        alpha=settings.alpha,
        num_rows=len(window_NE),
        reference_rows=len(reference_NE),
        block_length=length,
    )


def _decide(
    test: MmdTest | None,
    shortages: list[str],
    settings: DriftSettings,
    embedding_settings: EmbeddingDriftSettings,
) -> tuple[DriftVerdict, str, str]:
    """Return verdict, reason and remedy."""
    if test is None:
        reason = f"Too few rows for their dependence: {'; '.join(shortages)}."
        return (
            "INCONCLUSIVE",
            reason,
            ("Collect larger windows, use more held-out rows, or raise drift.embedding.max_rows."),
        )
    if test.bandwidth == 0:
        return (
            "INCONCLUSIVE",
            "All embeddings of the requests and of the held-out rows are equal.",
            "Find out why the layer is constant, or name another layer in embedding_layer of the "
            "network.",
        )
    details = (
        f"squared discrepancy {test.mmd_squared:.3g} (maximum mean discrepancy), at most "
        f"{test.threshold:.3g} expected; p {test.p_value:.2g}"
    )
    if not test.p_value <= settings.alpha:
        return "STABLE", f"No drift in the embedding of the network: {details}.", "Nothing to do."
    allowed_discrepancy = embedding_settings.min_discrepancy
    if not test.mmd_squared > allowed_discrepancy:
        return (
            "STABLE",
            f"The drift in the embedding of the network is not larger than allowed: {details}; "
            f"{allowed_discrepancy:g} allowed (drift.embedding.min_discrepancy).",
            "Nothing to do.",
        )
    return (
        "DRIFT",
        f"The embedding of the network drifted: {details}.",
        "Compare recent inputs with the training rows. If the data have really changed, retrain on "
        "newer rows; a fault of the source, such as a wrong decoder, must be repaired.",
    )


def _has_enough_permutations(alpha: float, length: int, *samples: NDArray[np.float64]) -> bool:
    """Return whether the blocks of both samples have enough permutations for a p-value of alpha."""
    num_first_blocks, num_second_blocks = (len(sample) // length for sample in samples)
    return math.comb(num_first_blocks + num_second_blocks, num_first_blocks) * alpha >= 1


def _num_permutations(settings: DriftSettings, embedding_settings: EmbeddingDriftSettings) -> int:
    """Return the number of permutations: at least the setting, and at least 4 / alpha."""
    return max(embedding_settings.min_permutations, math.ceil(4 / settings.alpha))


def _subsample(row_NE: NDArray[np.float64], max_rows: int) -> NDArray[np.float64]:
    rows_NE: NDArray[np.float64] = row_NE[spread_rows(len(row_NE), max_rows).numpy()]
    return rows_NE


def _block_length(row_NE: NDArray[np.float64]) -> int:
    """Return the largest block length of the first principal components."""
    shortest = shortest_block(max(len(row_NE), 1), 1)
    if len(row_NE) < 10 or not np.isfinite(row_NE).all():  # rejected later, with a reason
        return shortest
    centred_NE = row_NE - row_NE.mean(axis=0)
    _, _, axis_EE = np.linalg.svd(centred_NE, full_matrices=False)
    score_NC = centred_NE @ axis_EE[:_DEPENDENCE_COMPONENTS].T
    is_varied_C = score_NC.std(axis=0) > 1e-9 * max(float(score_NC.std()), 1e-30)
    lengths = [choose_block_length(x_N, 1) for x_N in score_NC[:, is_varied_C].T.copy()]
    return max([shortest, *lengths])
