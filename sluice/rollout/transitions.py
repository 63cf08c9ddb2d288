"""The transitions of a rollout as values; people cause some, the controller the others."""

from datetime import datetime, timedelta
from typing import Any

from sluice.base.errors import ContractError
from sluice.rollout.evidence import begin_step, initial_evidence
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout, RolloutPhase, Transition, TransitionOutcome

CONTROLLER = "rollout"
"""Actor of the transitions that no person requested."""


def first_transition(
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
    """Return the first transition: the rollout is at its first step.

    Args:
        identity: Id of the rollout.
        model: Name of the model.
        version: Version number of the challenger.
        candidate: Digest of the challenger.
        production: Digest of the version in production.
        production_version: Version number of that version.
        pointer_revision: Revision of the production pointer.
        epoch: Must be higher than the epoch of every earlier traffic split of the model.
        settings: Fixed for the whole rollout; later changes of the pipeline do not apply.
        actor: Person or service that starts it, for the record.
        reason: Why it is started, for the record.
        now: Current time.
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
        step_times_out_at=_step_timeout_at(settings, now),
        checked_at=now,
        evidence=initial_evidence(settings),
    )
    return Transition(outcome="start", rollout=rollout, at=now, actor=actor, reason=reason)


def next_step(rollout: Rollout) -> Rollout:
    """Return the rollout at its next step.

    After the last step it awaits promotion, with the same traffic split.
    """
    if rollout.at_last_step:
        return _changed(rollout, phase="awaiting_promotion")
    return _changed(
        rollout,
        step=rollout.step + 1,
        epoch=rollout.epoch + 1,
        step_since=rollout.checked_at,
        step_times_out_at=_step_timeout_at(rollout.settings, rollout.checked_at),
        evidence=begin_step(rollout.evidence),
    )


def paused(rollout: Rollout) -> Rollout:
    """Return the rollout paused: the share stays, the guards stay active, no step ends."""
    return _changed(rollout, phase="paused")


def rolled_back(rollout: Rollout) -> Rollout:
    """Return the rollout rolled back: production answers every request."""
    return _changed(rollout, phase="rolled_back", epoch=rollout.epoch + 1)


def pause(rollout: Rollout, *, now: datetime, actor: str, reason: str) -> Transition:
    """Pause on a person's request.

    Raises:
        ContractError: The rollout is not rolling.
    """
    _require(rollout, "paused", ("rolling",))
    return _manual("pause", paused(rollout), now, actor, reason)


def resume(rollout: Rollout, *, now: datetime, actor: str, reason: str) -> Transition:
    """Continue a paused rollout with the same share and a new step timeout.

    Raises:
        ContractError: The rollout is not paused.
    """
    _require(rollout, "resumed", ("paused",))
    times_out_at = _step_timeout_at(rollout.settings, now)
    after = _changed(rollout, phase="rolling", step_times_out_at=times_out_at)
    return _manual("resume", after, now, actor, reason)


def abort(rollout: Rollout, *, now: datetime, actor: str, reason: str) -> Transition:
    """Route everything back to production on a person's request.

    Raises:
        ContractError: The rollout is over.
    """
    _require(rollout, "aborted", ("rolling", "paused", "awaiting_promotion"))
    return _manual("abort", rolled_back(rollout), now, actor, reason)


def promote(rollout: Rollout, *, now: datetime, actor: str, reason: str) -> Transition:
    """Record that the production pointer moved to the challenger.

    Raises:
        ContractError: The rollout does not await promotion.
    """
    _require(rollout, "promote", ("awaiting_promotion",))
    return _manual("promote", _changed(rollout, phase="promoted"), now, actor, reason)


def roll_back(rollout: Rollout, *, now: datetime, reason: str, remedy: str) -> Transition:
    """Roll back for a reason other than the observed traffic.

    Raises:
        ContractError: The rollout is over.
    """
    _require(rollout, "roll back", ("rolling", "paused", "awaiting_promotion"))
    return Transition(
        outcome="roll_back",
        rollout=rolled_back(rollout),
        at=now,
        actor=CONTROLLER,
        reason=reason,
        remedy=remedy,
    )


def _manual(
    outcome: TransitionOutcome, after: Rollout, now: datetime, actor: str, reason: str
) -> Transition:
    for name, text in (("an actor", actor), ("a reason", reason)):
        if not text.strip():
            raise ContractError(
                f"{outcome} needs {name}, got an empty text.",
                fix="Give both who acts and why.",
            )
    return Transition(outcome=outcome, rollout=after, at=now, actor=actor, reason=reason)


def _require(rollout: Rollout, participle: str, phases: tuple[RolloutPhase, ...]) -> None:
    if rollout.phase not in phases:
        raise ContractError(
            f"Only a rollout in phase {' or '.join(phases)} can be {participle}; that of "
            f"{rollout.model} version {rollout.version} is in phase {rollout.phase}.",
            fix=f"See its state: sluice rollout status {rollout.model}",
        )


def _changed(rollout: Rollout, **values: Any) -> Rollout:
    return rollout.model_copy(update={"revision": rollout.revision + 1, **values})


def _step_timeout_at(settings: RolloutSettings, now: datetime) -> datetime:
    return now + timedelta(seconds=settings.max_step_s)
