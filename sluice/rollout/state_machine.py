"""State machine of a rollout: from its state and the observed traffic to the next transition.

Proven harm rolls back. A step ends once it has lasted long enough, with enough requests and without
warnings. Otherwise the rollout waits, and pauses when the step times out. Missing evidence never
counts as evidence that the challenger is healthy.
"""

from datetime import datetime, timedelta

from sluice.base.digests import short
from sluice.rollout.assessment import Assessment, require_same_rollout
from sluice.rollout.evidence import update_evidence
from sluice.rollout.guards import read_guards
from sluice.rollout.observations import TrafficCounts
from sluice.rollout.state import PredictionDrift, Rollout, Transition, TransitionOutcome
from sluice.rollout.transitions import CONTROLLER, as_paused, as_rolled_back, next_step, roll_back
from sluice.verdicts.verdict import Verdict


def advance(
    rollout: Rollout,
    traffic: TrafficCounts,
    *,
    now: datetime,
    production: str | None,
    quality: Verdict | None = None,
    drift: PredictionDrift | None = None,
) -> Transition:
    """Return the transition that follows from one more check, without writing anything.

    The settings with which the rollout was started apply. A clock that was set back adds no time to
    the step and ends no lease.

    Args:
        rollout: State of the rollout.
        traffic: Counts of both arms since the step began.
        now: Current time, from the same clock as at the last check.
        production: Candidate digest of the current production version; None without one.
        quality: Newest verdict of the promotion gate on labelled pairs. The gate must decide at
            most once per batch of labels, because each decision may be wrong.
        drift: Distance between the predictions of both arms; None if it was not measured.

    Returns:
        A transition with outcome wait, advance, inconclusive or roll_back. With the outcome wait,
        the rollout has the same revision, and only its evidence and its times are updated.

    Raises:
        ContractError: The counts or the verdict are about another rollout or model.
    """
    require_same_rollout(rollout, traffic, quality)
    if rollout.is_over:
        reason = f"The rollout is {rollout.phase.replace('_', ' ')}, which is final."
        return Transition(outcome="wait", rollout=rollout, at=now, actor=CONTROLLER, reason=reason)
    if production != rollout.production:
        return roll_back(
            rollout,
            now=now,
            reason=f"Production was {short(rollout.production)} when the rollout began, and is now "
            f"{'nothing' if production is None else short(production)}.",
            remedy="Evaluate the candidate against the current production version, then start "
            "another rollout.",
        )
    if rollout.phase != "awaiting_promotion" and now >= rollout.lease_until:
        unchecked_s = (now - rollout.checked_at).total_seconds()
        return roll_back(
            rollout,
            now=now,
            reason=f"The rollout was not checked for {unchecked_s:.0f} s. Its lease of "
            f"{rollout.settings.lease_s:g} s has ended, so the servers returned to production.",
            remedy="Find out why the rollout sensor did not run, then start the rollout again.",
        )
    observed_rollout = _with_observations(rollout, traffic, now)
    assessment = Assessment(
        rollout=observed_rollout,
        traffic=traffic,
        now=now,
        guards=read_guards(observed_rollout.evidence, observed_rollout.settings),
        quality=quality,
        drift=drift,
    )
    return _decide(assessment)


def _decide(assessment: Assessment) -> Transition:
    """Check for harm first, then whether the step can end, then whether it timed out."""
    rollout = assessment.rollout
    harm = assessment.describe_harm()
    if harm:
        is_guard_breached = any(reading.verdict == "breach" for reading in assessment.guards)
        remedy = (
            "Inspect the challenger's failed requests in the server's log and in the reports."
            if is_guard_breached
            else "Compare the inputs and the predictions of both versions on the same rows."
        )
        return _transition("roll_back", assessment, as_rolled_back(rollout), harm, remedy)
    if rollout.phase == "awaiting_promotion":
        return _transition(
            "wait", assessment, rollout, "Every step passed. The challenger waits to be promoted."
        )
    obstacles = assessment.describe_obstacles()
    if rollout.phase == "paused":
        reason = (
            "The rollout is paused: its share does not change and its guards are active, but no "
            "step ends."
        )
        return _transition("wait", assessment, rollout, reason, "Resume or abort the rollout.")
    if not obstacles:
        next_rollout = next_step(rollout)
        is_complete = next_rollout.phase == "awaiting_promotion"
        status = "The challenger waits to be promoted" if is_complete else "The rollout continues"
        comparable_counts = assessment.traffic.comparable_counts
        reason = (
            f"Step {rollout.step + 1} of {len(rollout.settings.steps)} passed on "
            f"{comparable_counts.challenger.requests:,} requests of the challenger and "
            f"{comparable_counts.production.requests:,} of production. {status}."
        )
        return _transition("advance", assessment, next_rollout, reason)
    if assessment.now >= rollout.step_times_out_at:
        reason = f"The step is inconclusive after {rollout.settings.max_step_s:g} s: {obstacles}"
        remedy = "Resume the rollout once the problem is fixed, or abort it."
        return _transition("inconclusive", assessment, as_paused(rollout), reason, remedy)
    return _transition("wait", assessment, rollout, obstacles)


def _with_observations(rollout: Rollout, traffic: TrafficCounts, now: datetime) -> Rollout:
    """Return the rollout updated with the evidence of the counts, as of ``now``."""
    # Negative if the clock was set back. The start and the timeout of the step are then moved back
    # equally.
    clock_setback = min(now - rollout.checked_at, timedelta(0))
    evidence = rollout.evidence
    if traffic.epoch == rollout.epoch:
        evidence = update_evidence(evidence, traffic, rollout.settings)
    return rollout.model_copy(
        update={
            "checked_at": now,
            "step_since": rollout.step_since + clock_setback,
            "step_times_out_at": rollout.step_times_out_at + clock_setback,
            "evidence": evidence,
        }
    )


def _transition(
    outcome: TransitionOutcome,
    assessment: Assessment,
    rollout_after: Rollout,
    reason: str,
    remedy: str = "",
) -> Transition:
    return Transition(
        outcome=outcome,
        rollout=rollout_after,
        at=assessment.now,
        actor=CONTROLLER,
        reason=reason,
        remedy=remedy,
        window=assessment.traffic,
        guards=assessment.guards,
        quality=None if assessment.quality is None else assessment.quality.outcome,
        drift=assessment.drift,
    )
