"""What other tests say of the same comparison: shown beside a verdict, never deciding (STAT-1)."""

import math

import numpy as np
from pydantic import Field

from sluice.base.errors import ContractError
from sluice.base.settings import Record, Settings
from sluice.evaluation.clusters import by_cluster
from sluice.evaluation.diebold_mariano import diebold_mariano
from sluice.evaluation.estimate import Arm, mean_gain
from sluice.evaluation.improvement import probability_of_improvement
from sluice.evaluation.losses import LossTable
from sluice.evaluation.resampling import two_way_interval
from sluice.evaluation.sign_flip import sign_flip_p
from sluice.verdicts.verdict import Verdict


class CompanionSettings(Settings):
    """How the companions that draw at random draw."""

    resamples: int = Field(
        2000, ge=100, le=100_000, description="Of the percentile interval and the sign flips."
    )
    seed: int = Field(0, ge=0, description="Seeds both; it decides nothing.")


class Companions(Record):
    """Numbers to read a verdict with. A number that could not be computed is NaN."""

    percentile_low: float = Field(description="Two-way bootstrap, one-sided at alpha [unit].")
    percentile_high: float = Field(description="Two-way bootstrap, one-sided at alpha [unit].")
    sign_flip_p: float = Field(description="One-sided, over seeds and blocks.")
    diebold_mariano: float = Field(description="Statistic, corrected for small samples.")
    diebold_mariano_p: float = Field(description="One-sided; leaves out the seeds.")
    seed_effect_size: float = Field(
        description="Cohen's d over seeds: the gain divided by the pooled standard deviation of "
        "the seeds' mean losses. The verdict's own is over rows."
    )
    improvement: float = Field(description="Chance that the candidate is the better on a row.")
    improvement_low: float = Field(description="One-sided, at alpha.")
    improvement_high: float = Field(description="One-sided, at alpha.")
    resamples: int
    seed: int


def accompany(
    verdict: Verdict,
    candidate: LossTable,
    reference: LossTable,
    settings: CompanionSettings,
    *,
    horizon_rows: int,
) -> Companions:
    """Return the companions of a verdict, with its own alpha and block length.

    Args:
        verdict: What the gate said of these losses.
        candidate: The losses that were judged.
        reference: Those of the other arm, in any order.
        settings: How to draw.
        horizon_rows: As given to the gate [rows].

    Raises:
        ContractError: The verdict is about other losses.

    Cost:
        About 0.2 s for 2 x 8 seeds and 3,000 rows.
    """
    judged = (verdict.candidate, verdict.reference, verdict.window)
    if judged != (candidate.subject, reference.subject, candidate.window):
        raise ContractError(
            "Companions must be computed from the losses that were judged, and the verdict names "
            "another candidate, reference or window.",
            fix="Hand over the tables the verdict was made from.",
        )
    reference, candidate = by_cluster(reference.aligned_to(candidate)), by_cluster(candidate)
    ours, theirs = Arm.of(candidate), Arm.of(reference)
    fold_N, block_length = candidate.fold_N, verdict.block_length
    of_interval, of_signs = np.random.default_rng(settings.seed).spawn(2)
    low, high = two_way_interval(
        ours,
        theirs,
        fold_N,
        block_length=block_length,
        alpha=verdict.alpha,
        resamples=settings.resamples,
        rng=of_interval,
    )
    tested = diebold_mariano(mean_gain(ours, theirs), fold_N, horizon_rows=horizon_rows)
    chance = probability_of_improvement(
        ours, theirs, fold_N, block_length=block_length, alpha=verdict.alpha
    )
    return Companions(
        percentile_low=low,
        percentile_high=high,
        sign_flip_p=sign_flip_p(
            ours,
            theirs,
            fold_N,
            block_length=block_length,
            resamples=settings.resamples,
            rng=of_signs,
        ),
        diebold_mariano=tested.statistic,
        diebold_mariano_p=tested.p_value,
        seed_effect_size=_seed_effect_size(ours, theirs, verdict.gain),
        improvement=chance.probability,
        improvement_low=chance.low,
        improvement_high=chance.high,
        resamples=settings.resamples,
        seed=settings.seed,
    )


def _seed_effect_size(candidate: Arm, reference: Arm, gain: float) -> float:
    """Cohen's d over the arms that have seeds; NaN when none has two or they do not differ."""
    spreads = [
        arm.loss_SN.mean(axis=1) for arm in (candidate, reference) if not arm.is_deterministic
    ]
    freedom = sum(mean_S.size - 1 for mean_S in spreads)
    square = math.fsum(float(((mean_S - mean_S.mean()) ** 2).sum()) for mean_S in spreads)
    if freedom < 1 or not square > 0:
        return math.nan
    return gain / float(np.sqrt(square / freedom))
