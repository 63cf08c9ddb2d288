"""Guards beside the gate: what a candidate that is proven better must not break.

A guard passes on proof only. What is missing or not finite ends as 'insufficient', never as a
pass.

Shape legend: S = seeds, N = rows, F = folds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sluice.base.digests import short
from sluice.base.errors import ContractError
from sluice.evaluation.clusters import by_cluster
from sluice.evaluation.estimate import Arm, Estimate, estimate_gain
from sluice.evaluation.guard_settings import GuardSettings, HardLimit, MetricMargin
from sluice.evaluation.losses import LossTable
from sluice.evaluation.metric_table import MetricTable, folds_part
from sluice.verdicts.guard_outcome import GuardOutcome, GuardResult


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GuardEvidence:
    """What the guards look at; None for what was not scored."""

    candidate: LossTable
    reference: LossTable
    candidate_metrics: MetricTable | None = None
    reference_metrics: MetricTable | None = None

    approved: LossTable | None = None
    """Losses of the version that ``GuardSettings.approved`` names, on the same rows."""

    deployed: LossTable | None = None
    """Losses of the very artifact that would serve, on the same rows; without seeds."""

    reference_deployed: LossTable | None = None
    """Losses of what serves in the reference's place; its rule itself when it has no seeds."""


def check_guards(
    evidence: GuardEvidence, settings: GuardSettings, *, alpha: float, block_length: int
) -> tuple[GuardOutcome, ...]:
    """Return the outcome of every guard that the settings ask for, in their order.

    Args:
        evidence: Losses and metrics, all of one window.
        settings: Which guards, and their margins.
        alpha: One-sided rate at which each guard may pass a candidate that breaks it.
        block_length: Rows of a block, the verdict's own [rows].

    Raises:
        ContractError: Something was scored on another window, or the approved losses are of
            another version than the settings name.
    """
    _require_same_window(evidence)
    outcomes = [_metric_margin(guard, evidence, alpha=alpha) for guard in settings.metrics]
    outcomes += [_hard_limit(limit, evidence.candidate_metrics) for limit in settings.limits]
    if settings.approved is not None:
        outcomes.append(_approved(evidence, settings, alpha=alpha, block_length=block_length))
    if settings.deployed_margin_share is not None:
        outcomes.append(
            _losses_hold(
                "what would be deployed against what is",
                evidence.deployed,
                evidence.reference_deployed,
                margin_share=settings.deployed_margin_share,
                alpha=alpha,
                block_length=block_length,
            )
        )
    return tuple(outcomes)


def _losses_hold(
    name: str,
    ours: LossTable | None,
    theirs: LossTable | None,
    *,
    margin_share: float,
    alpha: float,
    block_length: int,
) -> GuardOutcome:
    """Judge that one set of losses is not above another by a share of it (two-way bound)."""
    if ours is None or theirs is None:
        return _insufficient(name, "its losses on this window were not scored")
    theirs, ours = by_cluster(theirs.aligned_to(ours)), by_cluster(ours)
    reference = Arm.of(theirs)
    estimate = estimate_gain(Arm.of(ours), reference, ours.fold_N, block_length=block_length)
    margin = margin_share * abs(float(reference.loss_SN.mean()))
    return _judged(name, estimate, margin=margin, alpha=alpha)


def _approved(
    evidence: GuardEvidence, settings: GuardSettings, *, alpha: float, block_length: int
) -> GuardOutcome:
    name = f"against the approved version {short(settings.approved or '')}"
    if evidence.candidate.subject == settings.approved:
        return GuardOutcome(
            name=name,
            result="pass",
            observed=0.0,
            required=0.0,
            reason=f"The guard '{name}' holds: the candidate is that version.",
        )
    if evidence.approved is not None and evidence.approved.subject != settings.approved:
        raise ContractError(
            f"The approved version's losses must be those of {short(settings.approved or '')}, "
            f"got those of {short(evidence.approved.subject)}.",
            fix="Score the version that guards.approved names.",
        )
    return _losses_hold(
        name,
        evidence.candidate,
        evidence.approved,
        margin_share=settings.approved_margin_share,
        alpha=alpha,
        block_length=block_length,
    )


def _metric_margin(guard: MetricMargin, evidence: GuardEvidence, *, alpha: float) -> GuardOutcome:
    """Judge a metric by its number per seed and fold: variance over seeds and over folds."""
    name = f"metric {guard.metric}"
    ours, theirs = evidence.candidate_metrics, evidence.reference_metrics
    if ours is None or theirs is None:
        return _insufficient(name, "the metrics of both arms were not handed over")
    our_SF, their_SF = ours.numbers(guard.metric), theirs.numbers(guard.metric)
    if our_SF is None or their_SF is None:
        known = sorted(ours.values.keys() & theirs.values.keys())
        return _insufficient(name, f"an arm lacks it; both have {', '.join(known) or 'none'}")
    sign = 1.0 if guard.better == "higher" else -1.0
    gain_F = sign * (our_SF.mean(axis=0) - their_SF.mean(axis=0))
    estimate = Estimate(
        gain=float(gain_F @ ours.share_F),
        candidate_seeds=ours.seeds_part(guard.metric),
        reference_seeds=theirs.seeds_part(guard.metric),
        rows=folds_part(gain_F, ours.share_F),
    )
    return _judged(name, estimate, margin=guard.margin, alpha=alpha)


def _judged(name: str, estimate: Estimate, *, margin: float, alpha: float) -> GuardOutcome:
    """Turn bounds into an outcome; every comparison is false for NaN, which ends at the last."""
    lower, upper = estimate.bounds(alpha)
    seen = f"the gain lies between {lower:.4g} and {upper:.4g}"
    result: GuardResult
    if lower > -margin:
        result, reason = "pass", f"The guard '{name}' holds: {seen}, above {-margin:.4g}."
    elif upper < -margin:
        result, reason = "fail", f"The guard '{name}' is broken: {seen}, below {-margin:.4g}."
    elif math.isnan(lower):
        return _insufficient(
            name, "its bounds cannot be computed: a number is not finite, or there are too few"
        )
    else:
        result = "insufficient"
        reason = f"The guard '{name}' is not proven: {seen}, on both sides of {-margin:.4g}."
    return GuardOutcome(name=name, result=result, observed=lower, required=-margin, reason=reason)


def _hard_limit(limit: HardLimit, metrics: MetricTable | None) -> GuardOutcome:
    """Judge the mean over seeds and folds; a limit is on what is seen, so no bound is taken."""
    low = -math.inf if limit.minimum is None else limit.minimum
    high = math.inf if limit.maximum is None else limit.maximum
    name = f"limit of {limit.metric}"
    value = math.nan if metrics is None else metrics.means.get(limit.metric, math.nan)
    if not math.isfinite(value):
        return _insufficient(name, "the candidate has no such metric, or it is not finite")
    holds = low <= value <= high
    return GuardOutcome(
        name=name,
        result="pass" if holds else "fail",
        observed=value,
        required=math.nan,
        reason=f"The guard '{name}' {'holds' if holds else 'is broken'}: {value:.4g}, allowed "
        f"{low:.4g} to {high:.4g}.",
    )


def _insufficient(name: str, why: str) -> GuardOutcome:
    return GuardOutcome(
        name=name,
        result="insufficient",
        observed=math.nan,
        required=math.nan,
        reason=f"The guard '{name}' has no evidence: {why}.",
    )


def _require_same_window(evidence: GuardEvidence) -> None:
    candidate = evidence.candidate
    about: Sequence[tuple[str, LossTable | MetricTable | None, str | None]] = (
        ("reference's losses", evidence.reference, None),
        ("candidate's metrics", evidence.candidate_metrics, candidate.subject),
        ("reference's metrics", evidence.reference_metrics, evidence.reference.subject),
        ("approved version's losses", evidence.approved, None),
        ("deployed artifact's losses", evidence.deployed, candidate.subject),
        ("reference's deployed losses", evidence.reference_deployed, evidence.reference.subject),
    )
    for what, given, subject in about:
        if given is None:
            continue
        if given.window != candidate.window or (subject and given.subject != subject):
            raise ContractError(
                f"The {what} must be of the window and model judged ({short(candidate.window)}), "
                f"got window {short(given.window)}, model {short(given.subject)}.",
                fix="Score everything again on the same data and folds.",
            )
