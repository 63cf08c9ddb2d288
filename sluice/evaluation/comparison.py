"""The promotion gate: a two-way paired comparison of losses.

Two things are random: the seeds of the trainings, and the test rows, which depend on each other in
time and are shared by all seeds. A test that treats all seeds x rows as independent replicates, or
that ignores the randomness of seeds or of rows, gives a false promotion in a third of cases. The
variance of the mean gain is therefore the sum of a component over seeds and a component over
blocks of rows.

Shape legend: N = test rows.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sluice.base.errors import SettingsError
from sluice.evaluation.clusters import aggregate_clusters, fold_scale
from sluice.evaluation.estimate import ArmLosses, Estimate, estimate_gain, mean_gain
from sluice.evaluation.losses import LossTable
from sluice.evaluation.power_advice import PowerInputs, advise_sample_size
from sluice.evaluation.serial_correlation import is_autocorrelated
from sluice.evaluation.settings import GateSettings
from sluice.evaluation.sufficiency import find_missing_evidence
from sluice.evaluation.variance import choose_block_length, shortest_block
from sluice.verdicts.row_sketch import RowSketch
from sluice.verdicts.verdict import FoldGain, Outcome, Verdict


def compare(
    candidate: LossTable,
    reference: LossTable,
    settings: GateSettings,
    *,
    horizon_rows: int,
    unit: str = "loss units",
) -> Verdict:
    """Decide whether the candidate's mean loss is lower by more than ``settings.min_gain``.

    The estimand is the mean gain on the rows of these folds for newly drawn seeds. The bounds are
    one-sided Student bounds at ``alpha``; the point estimate alone never decides. The outcome is
    the first of these that applies:

    - INCONCLUSIVE: evidence is missing (see ``find_missing_evidence``).
    - PROMOTE: the lower bound is above ``min_gain``.
    - REJECT (significantly worse): the upper bound is below 0.
    - EQUIVALENT: both bounds are between -margin and margin (two one-sided tests). The margin is
      ``equivalence_margin_share`` of the reference's mean loss.
    - REJECT (gain significantly too small): the upper bound is below ``min_gain``.
    - INCONCLUSIVE: all other cases.

    The arms are unpaired in seeds, because equal seeds of two trainings have nothing in common.
    They are paired in rows.

    Args:
        candidate: Losses of the candidate [unit].
        reference: Losses of the reference, on the same rows in any order [unit].
        settings: Settings of the gate.
        horizon_rows: Forecast horizon of the target [rows, or clusters for clustered rows]. 0
            declares that the rows are independent. Each row is then a separate block, unless
            ``settings.block_length`` is set.
        unit: Unit of the losses, for messages.

    Raises:
        ContractError: The arms were scored on different windows or rows.
        SettingsError: ``horizon_rows`` is negative, or exceeds ``settings.block_length``.

    Cost:
        O(seeds x N); about 3 ms for 2 x 8 seeds and 3,000 rows.

    Assumes:
        The dependence between rows vanishes within a few blocks, and folds are independent. The
        seeds are a random sample of all seeds. If one seed in ten diverges and the sample contains
        no such seed, no statistic can detect the divergence.
    """
    reference = reference.aligned_to(candidate)
    row_losses, is_clustered = candidate, candidate.cluster_N is not None
    row_noun = "cluster" if is_clustered else "test row"
    candidate, reference = aggregate_clusters(candidate), aggregate_clusters(reference)
    candidate_arm, reference_arm = ArmLosses.of(candidate), ArmLosses.of(reference)
    fold_N = candidate.fold_N
    gain_N = mean_gain(candidate_arm, reference_arm)
    centred_N = _centred_by_fold(gain_N, fold_N)
    # Gains count as constant if they differ by no more than their rounding error. A gain is the
    # difference of two losses, so this error is proportional to the losses.
    rounding_error = 8 * np.finfo(np.float64).eps * float(np.abs(reference_arm.loss_SN).max())
    is_constant = bool(np.abs(centred_N).max() <= rounding_error)
    block_length = _determine_block_length(
        centred_N, settings, horizon_rows, is_constant=is_constant
    )

    estimate = estimate_gain(candidate_arm, reference_arm, fold_N, block_length=block_length)
    lower_bound, upper_bound = estimate.bounds(settings.alpha)
    margin = settings.equivalence_margin_share * abs(float(reference_arm.loss_SN.mean()))
    missing_evidence = find_missing_evidence(
        candidate,
        reference,
        settings,
        block_length,
        is_constant=is_constant,
        is_dependent=block_length == 1 and is_autocorrelated(centred_N),
        row_noun=row_noun,
    )
    if missing_evidence:
        outcome: Outcome = "INCONCLUSIVE"
        reason = "No decision: " + "; ".join(item.what for item in missing_evidence) + "."
        remedy = " ".join(item.fix for item in missing_evidence)
    else:
        outcome, reason = _decide(
            lower_bound, upper_bound, required_gain=settings.min_gain, margin=margin, unit=unit
        )
        remedy = _remedy(outcome, estimate, candidate, reference, margin, settings, row_noun, unit)
    return Verdict(
        outcome=outcome,
        candidate=candidate.subject,
        reference=reference.subject,
        window=candidate.window,
        unit=unit,
        candidate_loss=float(candidate_arm.loss_SN.mean()),
        reference_loss=float(reference_arm.loss_SN.mean()),
        gain=estimate.gain,
        standard_error=estimate.standard_error,
        seed_se=estimate.seed_se,
        row_se=math.sqrt(estimate.row_component.variance),
        degrees_of_freedom=estimate.total_component.degrees_of_freedom,
        lower_bound=lower_bound,
        upper_bound=upper_bound,
        required=settings.min_gain,
        margin=margin,
        p_value=estimate.p_value(settings.min_gain),
        alpha=settings.alpha,
        alpha_of_all=settings.alpha,
        rows=RowSketch.of(row_losses.label_N),
        effect_size=_effect_size(gain_N, is_constant=is_constant),
        num_seeds=len(candidate.seeds),
        num_reference_seeds=len(reference.seeds),
        diverged_seeds=candidate.diverged_seeds,
        diverged_reference_seeds=reference.diverged_seeds,
        num_rows=row_losses.num_rows,
        num_clusters=candidate.num_rows if is_clustered else None,
        block_length=block_length,
        folds=_fold_gains(
            row_losses, candidate_arm, reference_arm, fold_N, block_length, settings.alpha
        ),
        lacking=tuple(item.what for item in missing_evidence),
        reason=reason,
        remedy=remedy,
    )


def _centred_by_fold(gain_N: NDArray[np.float64], fold_N: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the gains, minus the mean gain of their fold."""
    centred_N = gain_N.copy()
    for fold in np.unique(fold_N):
        centred_N[fold_N == fold] -= gain_N[fold_N == fold].mean()
    return centred_N


def _determine_block_length(
    centred_N: NDArray[np.float64], settings: GateSettings, horizon_rows: int, *, is_constant: bool
) -> int:
    """Return the block length [rows], or raise an error for contradictory settings."""
    if horizon_rows < 0:
        raise SettingsError(
            f"The horizon must be at least 0 rows, got {horizon_rows}.",
            fix="Pass the forecast horizon of the target in rows; 0 for independent rows.",
        )
    if settings.block_length is not None and settings.block_length < horizon_rows:
        raise SettingsError(
            f"A block must be at least as long as the horizon of {horizon_rows} rows, got "
            f"block_length {settings.block_length}.",
            cause="Overlapping targets are dependent; blocks shorter than the horizon would treat "
            "them as independent.",
            fix="Raise block_length, or remove it so that it is estimated.",
        )
    min_length = settings.block_length or 1
    if horizon_rows == 0:
        return min_length
    if is_constant or not np.isfinite(centred_N).all():
        return max(min_length, shortest_block(centred_N.size, horizon_rows))
    return max(min_length, choose_block_length(centred_N, horizon_rows))


def _decide(
    lower_bound: float, upper_bound: float, *, required_gain: float, margin: float, unit: str
) -> tuple[Outcome, str]:
    """Return the outcome for the bounds; NaN fails every comparison and gives INCONCLUSIVE."""
    interval = f"the gain is between {lower_bound:.4g} and {upper_bound:.4g} {unit}"
    if lower_bound > required_gain:
        return (
            "PROMOTE",
            f"Significantly better: {interval}, above the required {required_gain:.4g}.",
        )
    if upper_bound < 0:
        return "REJECT", f"Significantly worse: {interval}, below zero."
    if lower_bound > -margin and upper_bound < margin:
        return "EQUIVALENT", f"No relevant difference: {interval}, within +-{margin:.4g}."
    if upper_bound < required_gain:
        return (
            "REJECT",
            f"Significantly too small a gain: {interval}, below the required {required_gain:.4g}.",
        )
    summary = "The gain may be too small" if lower_bound > 0 else "No significant difference"
    return (
        "INCONCLUSIVE",
        f"{summary}: {interval}, on both sides of the required {required_gain:.4g}.",
    )


def _remedy(
    outcome: Outcome,
    estimate: Estimate,
    candidate: LossTable,
    reference: LossTable,
    margin: float,
    settings: GateSettings,
    row_noun: str,
    unit: str,
) -> str:
    """Return the recommended next step, such as the sample size of a conclusive comparison."""
    if outcome == "PROMOTE":
        return "Promote the candidate."
    if outcome != "INCONCLUSIVE":
        return "Leave production unchanged."
    gain, required_gain = estimate.gain, settings.min_gain
    if gain < -margin:
        # No sample size is advised: a larger sample would only reject the candidate.
        return (
            "Leave production unchanged. The mean loss of the candidate is higher than the mean "
            f"loss of the reference, by {-gain:.4g} {unit}. With more seeds or rows, the candidate "
            "would probably be rejected. Improve its inputs, model or training first. If a simple "
            "rule is already nearly perfect, use that rule: a network can hardly be better."
        )
    # Distance of the gain to the threshold of the likely outcome. A gain above the required gain
    # has the threshold of PROMOTE. Any other gain has the thresholds of REJECT and EQUIVALENT; the
    # farther threshold is chosen, because a longer distance requires a smaller sample.
    distance = (
        gain - required_gain
        if gain > required_gain
        else max(required_gain - gain, margin - abs(gain))
    )
    evidence = PowerInputs(
        num_seeds=len(candidate.seeds),
        num_reference_seeds=len(reference.seeds),
        num_rows=candidate.num_rows,
        seed_variance=estimate.candidate_component.variance,
        reference_variance=estimate.reference_component.variance,
        row_variance=estimate.row_component.variance,
        row_noun=row_noun,
    )
    # Distance of the gain to a threshold, in standard errors, at which a comparison decides with
    # the advised power.
    decisive_distance_se = estimate.quantile(settings.alpha) + float(ndtri(settings.advised_power))
    return "Leave production unchanged. " + advise_sample_size(
        evidence, distance=distance, decisive_distance_se=decisive_distance_se
    )


def _effect_size(gain_N: NDArray[np.float64], *, is_constant: bool) -> float:
    """Return Cohen's d over rows; NaN if it is undefined."""
    if is_constant or gain_N.size < 2:
        return math.nan
    return float(gain_N.mean() / gain_N.std(ddof=1))


def _fold_gains(
    row_losses: LossTable,
    candidate: ArmLosses,
    reference: ArmLosses,
    fold_N: NDArray[np.int64],
    block_length: int,
    alpha: float,
) -> tuple[FoldGain, ...]:
    """Return the gain of each fold with its bounds, as means over rows instead of clusters."""
    gains = []
    for fold in np.unique(fold_N):
        mask_N = fold_N == fold
        estimate = estimate_gain(
            candidate.select_rows(mask_N),
            reference.select_rows(mask_N),
            fold_N[mask_N],
            block_length=block_length,
        )
        low, high = estimate.bounds(alpha)
        scale = fold_scale(row_losses, int(fold))
        gains.append(
            FoldGain(
                fold_id=int(fold),
                gain=scale * estimate.gain,
                low=scale * low,
                high=scale * high,
                num_rows=int((row_losses.fold_N == fold).sum()),
            )
        )
    return tuple(gains)
