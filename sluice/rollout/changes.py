"""The transitions of a rollout, each as a value; persons cause some, the machine the others."""

from datetime import datetime, timedelta
from typing import Any

from sluice.base.errors import ContractError
from sluice.rollout.evidence import next_step, no_evidence
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Outcome, Phase, Rollout, Transition

MACHINE = "rollout"
"""Who made a transition that no person asked for."""


def begin(
    *,
    identity: str,
    model: str,
    version: int,
    candidate: str,
    production: str,
    production_version: int,
    pointer_revision: int,
    epoch: int,
    settings: RolloutSettings,
    actor: str,
    reason: str,
    now: datetime,
) -> Transition:
    """Return the first transition: the rollout stands at its first step.

    Args:
        identity: Its id.
        model: Its name.
        version: The challenger's number.
        candidate: The challenger's digest.
        production: Digest of what is in production.
        production_version: Its number.
        pointer_revision: Of the production pointer.
        epoch: Higher than that of all weights of the model before.
        settings: Stay with the rollout; a later change of the pipeline's does not touch it.
        actor: Who, for the record.
        reason: Why, for the record.
        now: The present moment.
    """
    rollout = Rollout(
        id=identity,
        model=model,
        version=version,
        candidate=candidate,
        production=production,
        production_version=production_version,
        pointer_revision=pointer_revision,
        settings=settings,
        phase="rolling",
        step=0,
        epoch=epoch,
        revision=0,
        started_at=now,
        step_since=now,
        patience_until=_patience(settings, now),
        seen_at=now,
        evidence=no_evidence(settings),
    )
    return Transition(outcome="start", rollout=rollout, at=now, actor=actor, reason=reason)


def onward(rollout: Rollout) -> Rollout:
    """Return the rollout at its next step; held, with the weights as they are, after the last."""
    if rollout.at_last_step:
        return _changed(rollout, phase="held")
    return _changed(
        rollout,
        step=rollout.step + 1,
        epoch=rollout.epoch + 1,
        step_since=rollout.seen_at,
        patience_until=_patience(rollout.settings, rollout.seen_at),
        evidence=next_step(rollout.evidence),
    )


def paused(rollout: Rollout) -> Rollout:
    """Return the rollout paused: the share stays, the guards watch, no step ends."""
    return _changed(rollout, phase="paused")


def rolled_back(rollout: Rollout) -> Rollout:
    """Return the rollout at its bad end: production answers everything."""
    return _changed(rollout, phase="rolled_back", epoch=rollout.epoch + 1)


def pause(rollout: Rollout, *, now: datetime, actor: str, reason: str) -> Transition:
    """Pause on a person's word.

    Raises:
        ContractError: It does not roll.
    """
    _require(rollout, "pause", ("rolling",))
    return _by_hand("pause", paused(rollout), now, actor, reason)


def resume(rollout: Rollout, *, now: datetime, actor: str, reason: str) -> Transition:
    """Go on where it was paused, with the same share and new patience.

    Raises:
        ContractError: It is not paused.
    """
    _require(rollout, "resume", ("paused",))
    patience = _patience(rollout.settings, now)
    after = _changed(rollout, phase="rolling", patience_until=patience)
    return _by_hand("resume", after, now, actor, reason)


def abort(rollout: Rollout, *, now: datetime, actor: str, reason: str) -> Transition:
    """Send everything back to production on a person's word.

    Raises:
        ContractError: It is over.
    """
    _require(rollout, "abort", ("rolling", "paused", "held"))
    return _by_hand("abort", rolled_back(rollout), now, actor, reason)


def promote(rollout: Rollout, *, now: datetime, actor: str, reason: str) -> Transition:
    """Say that the pointer moved to the challenger.

    Raises:
        ContractError: Its last step has not held.
    """
    _require(rollout, "promote", ("held",))
    return _by_hand("promote", _changed(rollout, phase="promoted"), now, actor, reason)


def withdraw(rollout: Rollout, *, now: datetime, reason: str, remedy: str) -> Transition:
    """Roll back for a reason that was not seen in the traffic.

    Raises:
        ContractError: It is over.
    """
    _require(rollout, "roll back", ("rolling", "paused", "held"))
    return Transition(
        outcome="roll_back",
        rollout=rolled_back(rollout),
        at=now,
        actor=MACHINE,
        reason=reason,
        remedy=remedy,
    )


def _by_hand(
    outcome: Outcome, after: Rollout, now: datetime, actor: str, reason: str
) -> Transition:
    for name, text in (("an actor", actor), ("a reason", reason)):
        if not text.strip():
            raise ContractError(
                f"To {outcome} a rollout needs {name}, got an empty text.",
                fix="Say who does it, and why.",
            )
    return Transition(outcome=outcome, rollout=after, at=now, actor=actor, reason=reason)


def _require(rollout: Rollout, verb: str, phases: tuple[Phase, ...]) -> None:
    if rollout.phase not in phases:
        raise ContractError(
            f"Only a rollout that is {' or '.join(phases)} can {verb}; that of {rollout.model} "
            f"version {rollout.version} is {rollout.phase}.",
            fix=f"See where it stands: sluice rollout status {rollout.model}",
        )


def _changed(rollout: Rollout, **values: Any) -> Rollout:
    return rollout.model_copy(update={"revision": rollout.revision + 1, **values})


def _patience(settings: RolloutSettings, now: datetime) -> datetime:
    return now + timedelta(seconds=settings.max_step_s)
