"""Guards of the promotion gate: further conditions that a better candidate must satisfy.

A guard passes only with sufficient evidence. Missing or non-finite numbers give 'insufficient',
never 'pass'.

Shape legend: S = seeds, N = rows, F = folds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.base.digests import short
from sluice.base.errors import ContractError
from sluice.evaluation.clusters import aggregate_clusters
from sluice.evaluation.estimate import ArmLosses, Estimate, estimate_gain
from sluice.evaluation.guard_settings import GuardSettings, HardLimit, MetricMargin
from sluice.evaluation.losses import LossTable
from sluice.evaluation.metric_table import MetricTable, folds_component
from sluice.verdicts.guard_outcome import GuardOutcome, GuardResult


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GuardEvidence:
    """Losses and metrics that the guards are computed from; None for a model without scores."""

    candidate: LossTable
    reference: LossTable
    candidate_metrics: MetricTable | None = None
    reference_metrics: MetricTable | None = None

    approved_losses: LossTable | None = None
    """Losses of the version that ``GuardSettings.approved`` names, on the same rows."""

    deployed_losses: LossTable | None = None
    """Losses of the ensemble that a promotion would deploy, on the same rows; without seeds."""

    reference_deployed_losses: LossTable | None = None
    """Losses of the reference's deployed ensemble, on the same rows.

    A baseline without seeds has no ensemble; its own losses are used instead.
    """


def check_guards(
    evidence: GuardEvidence, settings: GuardSettings, *, alpha: float, block_length: int
) -> tuple[GuardOutcome, ...]:
    """Return the outcomes of all guards in the settings, in their order.

    Args:
        evidence: Losses and metrics, all of the same window.
        settings: Guards and their margins.
        alpha: One-sided error rate: maximum probability that a guard with a margin passes a
            candidate that violates the margin.
        block_length: Block length of the verdict [rows].

    Raises:
        ContractError: Some evidence belongs to another window, or the approved losses do not
            belong to the version ``settings.approved``.
    """
    _require_same_window(evidence)
    outcomes = [_check_metric_margin(guard, evidence, alpha=alpha) for guard in settings.metrics]
    outcomes += [_check_hard_limit(limit, evidence.candidate_metrics) for limit in settings.limits]
    if settings.approved is not None:
        outcomes.append(
            _check_approved_margin(evidence, settings, alpha=alpha, block_length=block_length)
        )
    if settings.deployed_margin_share is not None:
        outcomes.append(
            _check_loss_margin(
                "deployed ensemble against the deployed reference",
                evidence.deployed_losses,
                evidence.reference_deployed_losses,
                margin_share=settings.deployed_margin_share,
                alpha=alpha,
                block_length=block_length,
            )
        )
    return tuple(outcomes)


def _check_loss_margin(
    name: str,
    candidate: LossTable | None,
    reference: LossTable | None,
    *,
    margin_share: float,
    alpha: float,
    block_length: int,
) -> GuardOutcome:
    """Test that the mean loss increases by less than a margin, from reference to candidate.

    The margin is ``margin_share`` of the reference's mean loss. The confidence bounds include the
    variance over seeds and over rows.
    """
    if candidate is None or reference is None:
        return _insufficient(name, "the losses on this window were not computed")
    reference = aggregate_clusters(reference.aligned_to(candidate))
    candidate = aggregate_clusters(candidate)
    reference_arm = ArmLosses.of(reference)
    estimate = estimate_gain(
        ArmLosses.of(candidate), reference_arm, candidate.fold_N, block_length=block_length
    )
    margin = margin_share * abs(float(reference_arm.loss_SN.mean()))
    return _outcome_of_bounds(name, estimate, margin=margin, alpha=alpha)


def _check_approved_margin(
    evidence: GuardEvidence, settings: GuardSettings, *, alpha: float, block_length: int
) -> GuardOutcome:
    name = f"against the approved version {short(settings.approved or '')}"
    if evidence.candidate.subject == settings.approved:
        return GuardOutcome(
            name=name,
            result="pass",
            observed=0.0,
            required=0.0,
            reason=f"The guard '{name}' passes: the candidate is the approved version.",
        )
    if (
        evidence.approved_losses is not None
        and evidence.approved_losses.subject != settings.approved
    ):
        raise ContractError(
            f"The losses of the approved version must belong to {short(settings.approved or '')}, "
            f"got losses of {short(evidence.approved_losses.subject)}.",
            fix="Score the version of guards.approved.",
        )
    return _check_loss_margin(
        name,
        evidence.candidate,
        evidence.approved_losses,
        margin_share=settings.approved_margin_share,
        alpha=alpha,
        block_length=block_length,
    )


def _check_metric_margin(
    guard: MetricMargin, evidence: GuardEvidence, *, alpha: float
) -> GuardOutcome:
    """Test a metric from its values per seed and fold, with the variance over seeds and folds."""
    name = f"metric {guard.metric}"
    candidate, reference = evidence.candidate_metrics, evidence.reference_metrics
    if candidate is None or reference is None:
        return _insufficient(name, "the metrics of an arm were not computed")
    candidate_SF, reference_SF = (
        candidate.values_of(guard.metric),
        reference.values_of(guard.metric),
    )
    if candidate_SF is None or reference_SF is None:
        common_metrics = sorted(candidate.values.keys() & reference.values.keys())
        return _insufficient(
            name,
            f"an arm does not have this metric; both have {', '.join(common_metrics) or 'none'}",
        )
    sign = 1.0 if guard.better == "higher" else -1.0
    gain_F = sign * (candidate_SF.mean(axis=0) - reference_SF.mean(axis=0))
    estimate = Estimate(
        gain=float(gain_F @ candidate.share_F),
        candidate_component=candidate.seeds_component(guard.metric),
        reference_component=reference.seeds_component(guard.metric),
        row_component=folds_component(gain_F, candidate.share_F),
    )
    return _outcome_of_bounds(name, estimate, margin=guard.margin, alpha=alpha)


def _outcome_of_bounds(
    name: str, estimate: Estimate, *, margin: float, alpha: float
) -> GuardOutcome:
    """Return the outcome for the bounds; NaN fails every comparison and gives 'insufficient'."""
    lower_bound, upper_bound = estimate.bounds(alpha)
    threshold = 0.0 - margin  # -margin would be displayed as "-0" for a margin of 0
    interval = f"the gain is between {lower_bound:.4g} and {upper_bound:.4g}"
    result: GuardResult
    if lower_bound > threshold:
        result, reason = "pass", f"The guard '{name}' passes: {interval}, above {threshold:.4g}."
    elif upper_bound < threshold:
        result, reason = "fail", f"The guard '{name}' fails: {interval}, below {threshold:.4g}."
    elif math.isnan(lower_bound):
        return _insufficient(
            name,
            "its bounds cannot be computed, because a value is non-finite, the variance is 0, or "
            "there are too few seeds, folds or blocks of rows",
        )
    else:
        result = "insufficient"
        reason = (
            f"The guard '{name}' is inconclusive: {interval}, on both sides of {threshold:.4g}."
        )
    return GuardOutcome(
        name=name, result=result, observed=lower_bound, required=threshold, reason=reason
    )


def _check_hard_limit(limit: HardLimit, metrics: MetricTable | None) -> GuardOutcome:
    """Compare the mean over seeds and folds with the limits, without a confidence bound."""
    low = -math.inf if limit.minimum is None else limit.minimum
    high = math.inf if limit.maximum is None else limit.maximum
    name = f"limit of {limit.metric}"
    value = math.nan if metrics is None else metrics.means.get(limit.metric, math.nan)
    if not math.isfinite(value):
        return _insufficient(
            name, "the candidate does not have this metric, or its value is non-finite"
        )
    is_within_limits = low <= value <= high
    return GuardOutcome(
        name=name,
        result="pass" if is_within_limits else "fail",
        observed=value,
        required=math.nan,
        reason=f"The guard '{name}' {'passes' if is_within_limits else 'fails'}: {value:.4g}, "
        f"allowed is {_describe_limits(limit)}.",
    )


def _describe_limits(limit: HardLimit) -> str:
    if limit.minimum is None:
        return f"at most {limit.maximum:.4g}"
    if limit.maximum is None:
        return f"at least {limit.minimum:.4g}"
    return f"{limit.minimum:.4g} to {limit.maximum:.4g}"


def _insufficient(name: str, reason: str) -> GuardOutcome:
    return GuardOutcome(
        name=name,
        result="insufficient",
        observed=math.nan,
        required=math.nan,
        reason=f"The guard '{name}' has insufficient evidence: {reason}.",
    )


def _require_same_window(evidence: GuardEvidence) -> None:
    candidate = evidence.candidate
    entries: Sequence[tuple[str, LossTable | MetricTable | None, str | None]] = (
        ("reference's losses", evidence.reference, None),
        ("candidate's metrics", evidence.candidate_metrics, candidate.subject),
        ("reference's metrics", evidence.reference_metrics, evidence.reference.subject),
        ("approved version's losses", evidence.approved_losses, None),
        ("deployed ensemble's losses", evidence.deployed_losses, candidate.subject),
        (
            "reference's deployed losses",
            evidence.reference_deployed_losses,
            evidence.reference.subject,
        ),
    )
    for name, table, subject in entries:
        if table is None:
            continue
        if table.window != candidate.window or (subject and table.subject != subject):
            expected_model = f" and model {short(subject)}" if subject else ""
            raise ContractError(
                f"The {name} belong to window {short(table.window)} and model "
                f"{short(table.subject)}, but the verdict is about window "
                f"{short(candidate.window)}{expected_model}.",
                fix="Score all models again on the same data and folds.",
            )
