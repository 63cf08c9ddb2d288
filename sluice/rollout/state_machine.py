"""State machine of a rollout: from its state and the observed traffic to the next transition.

Proven harm rolls back. A step advances once it lasted long enough, with enough requests and
without warnings. Otherwise the rollout waits, and pauses when the step times out. Missing
evidence never counts as health.
"""

from datetime import datetime

from sluice.base.digests import short
from sluice.rollout.assessment import Assessment, require_same_rollout
from sluice.rollout.evidence import update_evidence
from sluice.rollout.guards import read_guards
from sluice.rollout.observations import TrafficCounts
from sluice.rollout.state import PredictionDrift, Rollout, Transition, TransitionOutcome
from sluice.rollout.transitions import CONTROLLER, next_step, paused, roll_back, rolled_back
from sluice.verdicts.verdict import Verdict


def advance(
    rollout: Rollout,
    window: TrafficCounts,
    *,
    now: datetime,
    production: str | None,
    quality: Verdict | None = None,
    drift: PredictionDrift | None = None,
) -> Transition:
    """Return the transition that follows from one more check; pure, nothing is written.

    The settings are those the rollout was started with. A clock that went back adds no time to
    the step and ends no lease.

    Args:
        rollout: State of the rollout.
        window: Counts of both arms since the step began.
        now: Current time, from the same clock as at the last check.
        production: Digest of the version that the production pointer names now.
        quality: Newest verdict of the gate on labelled pairs of both arms; at most one per batch
            of labels, because its error rate holds per verdict.
        drift: Distance of the predictions on the same requests, when it was measured.

    Returns:
        A transition with outcome wait, advance, inconclusive or roll_back. After a wait the
        revision is the same; the rollout holds the updated evidence and the time of the check.

    Raises:
        ContractError: The window or the verdict is about another rollout or model.
    """
    require_same_rollout(rollout, window, quality)
    if rollout.is_over:
        said = f"It is {rollout.phase.replace('_', ' ')}, which is final."
        return Transition(outcome="wait", rollout=rollout, at=now, actor=CONTROLLER, reason=said)
    if production != rollout.production:
        return roll_back(
            rollout,
            now=now,
            reason=f"Production was {short(rollout.production)} when the rollout began, and is "
            f"{'nothing' if production is None else short(production)} now.",
            remedy="Evaluate the candidate against the present production version, then start "
            "again.",
        )
    if rollout.phase != "awaiting_promotion" and now >= rollout.lease_until:
        unchecked_s = (now - rollout.checked_at).total_seconds()
        return roll_back(
            rollout,
            now=now,
            reason=f"It was not checked for {unchecked_s:.0f} s, and its lease is "
            f"{rollout.settings.lease_s:g} s: the servers returned to production.",
            remedy="Find out why the rollout sensor did not run, then start the rollout again.",
        )
    observed = _observed(rollout, window, now)
    assessment = Assessment(
        rollout=observed,
        window=window,
        now=now,
        guards=read_guards(observed.evidence, observed.settings),
        quality=quality,
        drift=drift,
    )
    return _decide(assessment)


def _decide(assessment: Assessment) -> Transition:
    """Check for harm first, then whether the step can end, then whether it timed out."""
    rollout = assessment.rollout
    harm = assessment.harm()
    if harm:
        remedy = "Inspect the challenger's failed requests in the server's log and in the reports."
        return _transition("roll_back", assessment, rolled_back(rollout), harm, remedy)
    if rollout.phase == "awaiting_promotion":
        return _transition(
            "wait", assessment, rollout, "Every step passed; it waits to be promoted."
        )
    missing = assessment.missing()
    if rollout.phase == "paused":
        said = "It is paused: the share stays, the guards stay active, no step ends."
        return _transition("wait", assessment, rollout, said, "Resume or abort it.")
    if not missing:
        after = next_step(rollout)
        status = "waits to be promoted" if after.phase == "awaiting_promotion" else "continues"
        compared = assessment.window.comparable
        said = (
            f"Step {rollout.step + 1} of {len(rollout.settings.steps)} passed on "
            f"{compared.challenger.requests:,} requests of the challenger and "
            f"{compared.production.requests:,} of production; it {status}."
        )
        return _transition("advance", assessment, after, said)
    if assessment.now >= rollout.step_times_out_at:
        said = f"The step is inconclusive after {rollout.settings.max_step_s:g} s: {missing}"
        remedy = "Resume it once this is fixed, or abort it."
        return _transition("inconclusive", assessment, paused(rollout), said, remedy)
    return _transition("wait", assessment, rollout, missing)


def _observed(rollout: Rollout, window: TrafficCounts, now: datetime) -> Rollout:
    """Return the rollout updated with the evidence of the window, as of ``now``."""
    # If the clock went back, shift the step's start and its timeout: neither gains time.
    back = min(now - rollout.checked_at, now - now)
    evidence = rollout.evidence
    if window.epoch == rollout.epoch:
        evidence = update_evidence(evidence, window, rollout.settings)
    return rollout.model_copy(
        update={
            "checked_at": now,
            "step_since": rollout.step_since + back,
            "step_times_out_at": rollout.step_times_out_at + back,
            "evidence": evidence,
        }
    )


def _transition(
    outcome: TransitionOutcome,
    assessment: Assessment,
    after: Rollout,
    reason: str,
    remedy: str = "",
) -> Transition:
    return Transition(
        outcome=outcome,
        rollout=after,
        at=assessment.now,
        actor=CONTROLLER,
        reason=reason,
        remedy=remedy,
        window=assessment.window,
        guards=assessment.guards,
        quality=None if assessment.quality is None else assessment.quality.outcome,
        drift=assessment.drift,
    )
