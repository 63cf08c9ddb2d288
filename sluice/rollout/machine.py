"""The state machine of a rollout: from where it stands and what was seen to what happens now.

Proven harm rolls back; a step that was long enough, busy enough and calm advances; everything else
holds, until patience ends and it pauses. Silence is never health (ROLL-1, ROLL-2).
"""

from datetime import datetime

from sluice.base.digests import short
from sluice.rollout.changes import MACHINE, onward, paused, rolled_back, withdraw
from sluice.rollout.evidence import fold
from sluice.rollout.guards import read_guards
from sluice.rollout.look import Look, require_subject
from sluice.rollout.observations import Window
from sluice.rollout.state import Outcome, PredictionDrift, Rollout, Transition
from sluice.verdicts.verdict import Verdict


def advance(
    rollout: Rollout,
    window: Window,
    *,
    now: datetime,
    production: str | None,
    quality: Verdict | None = None,
    drift: PredictionDrift | None = None,
) -> Transition:
    """Return what happens to the rollout after one more look. Pure: nothing is written.

    The settings are those the rollout was started with. A clock that went back adds no time to
    the step and ends no lease.

    Args:
        rollout: Where it stands.
        window: Counts of both arms since the step began.
        now: The present moment, of the clock that called last time too.
        production: Digest of what the pointer names now.
        quality: The gate's newest verdict on labelled pairs of both arms; one for each window of
            labels, as its error rate is per verdict.
        drift: Of predictions on the same requests, when it was measured.

    Returns:
        Outcome hold, advance, inconclusive or roll_back. A hold keeps the revision; its rollout
        has what was learnt, and when it was last looked at.

    Raises:
        ContractError: The window or the verdict is about something else.
    """
    require_subject(rollout, window, quality)
    if rollout.is_over:
        said = f"It is {rollout.phase.replace('_', ' ')}, and nothing can change that."
        return Transition(outcome="hold", rollout=rollout, at=now, actor=MACHINE, reason=said)
    if production != rollout.production:
        return withdraw(
            rollout,
            now=now,
            reason=f"Production was {short(rollout.production)} when it began, and is "
            f"{'nothing' if production is None else short(production)} now.",
            remedy="Evaluate the candidate against what is in production, then start again.",
        )
    if rollout.phase != "held" and now >= rollout.lease_until:
        unseen_s = (now - rollout.seen_at).total_seconds()
        return withdraw(
            rollout,
            now=now,
            reason=f"Nobody looked at it for {unseen_s:.0f} s, and its lease is "
            f"{rollout.settings.lease_s:g} s: the servers went back to production.",
            remedy="See why the rollout sensor stood still, then start it again.",
        )
    looked_at = _looked_at(rollout, window, now)
    look = Look(
        rollout=looked_at,
        window=window,
        now=now,
        guards=read_guards(looked_at.evidence, looked_at.settings),
        quality=quality,
        drift=drift,
    )
    return _decide(look)


def _decide(look: Look) -> Transition:
    """Harm first; then whether anything may end here; then whether patience has."""
    rollout = look.rollout
    harm = look.harm()
    if harm:
        remedy = "See the challenger's failed requests in the server's log and in the reports."
        return _transition("roll_back", look, rolled_back(rollout), harm, remedy)
    if rollout.phase == "held":
        return _transition("hold", look, rollout, "Every step held; it waits to be promoted.")
    lacking = look.lacking()
    if rollout.phase == "paused":
        said = "It is paused: the share stays, the guards watch, no step ends."
        return _transition("hold", look, rollout, said, "Resume or abort it.")
    if not lacking:
        after = onward(rollout)
        goes = "waits to be promoted" if after.phase == "held" else "goes on"
        seen = look.window.compared
        said = (
            f"Step {rollout.step + 1} of {len(rollout.settings.steps)} held on "
            f"{seen.challenger.requests:,} requests of the challenger and "
            f"{seen.production.requests:,} of production; it {goes}."
        )
        return _transition("advance", look, after, said)
    if look.now >= rollout.patience_until:
        said = f"{rollout.settings.max_step_s:g} s did not settle the step: {lacking}"
        remedy = "Resume it when that is mended, or abort it."
        return _transition("inconclusive", look, paused(rollout), said, remedy)
    return _transition("hold", look, rollout, lacking)


def _looked_at(rollout: Rollout, window: Window, now: datetime) -> Rollout:
    """Return the rollout with what the window teaches, as of ``now``."""
    # A clock that went back: the step has lasted as long as at the last look, and its patience.
    back = min(now - rollout.seen_at, now - now)
    evidence = rollout.evidence
    if window.epoch == rollout.epoch:
        evidence = fold(evidence, window, rollout.settings)
    return rollout.model_copy(
        update={
            "seen_at": now,
            "step_since": rollout.step_since + back,
            "patience_until": rollout.patience_until + back,
            "evidence": evidence,
        }
    )


def _transition(
    outcome: Outcome, look: Look, after: Rollout, reason: str, remedy: str = ""
) -> Transition:
    return Transition(
        outcome=outcome,
        rollout=after,
        at=look.now,
        actor=MACHINE,
        reason=reason,
        remedy=remedy,
        window=look.window,
        guards=look.guards,
        quality=None if look.quality is None else look.quality.outcome,
        drift=look.drift,
    )
