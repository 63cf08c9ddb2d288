"""Creates the transitions of a rollout that a person requests or the controller makes."""

from datetime import datetime, timedelta
from typing import Any

from sluice.base.errors import ContractError
from sluice.rollout.evidence import begin_step, initial_evidence
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout, RolloutPhase, Transition, TransitionOutcome

CONTROLLER = "rollout"
"""Actor of the transitions that the controller makes without a person's request."""


def first_transition(
    *,
    rollout_id: str,
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
        rollout_id: Id of the rollout.
        model: Name of the model.
        version: Version number of the challenger.
        candidate: Digest of the challenger.
        production: Digest of the version in production.
        production_version: Version number of that version.
        pointer_revision: Revision of the production pointer.
        epoch: Epoch of the traffic split, higher than all earlier epochs of the model.
        settings: Settings of the whole rollout; later changes of the pipeline do not apply.
        actor: Person or service that starts the rollout, for the record.
        reason: Reason of the start, for the record.
        now: Current time.
    """
    rollout = Rollout(
        id=rollout_id,
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

    After the last step, the rollout awaits promotion with the same traffic split.
    """
    if rollout.is_at_last_step:
        return _with_changes(rollout, phase="awaiting_promotion")
    return _with_changes(
        rollout,
        step=rollout.step + 1,
        epoch=rollout.epoch + 1,
        step_since=rollout.checked_at,
        step_times_out_at=_step_timeout_at(rollout.settings, rollout.checked_at),
        evidence=begin_step(rollout.evidence),
    )


def as_paused(rollout: Rollout) -> Rollout:
    """Return the rollout in phase paused: the share does not change, and no step ends."""
    return _with_changes(rollout, phase="paused")


def as_rolled_back(rollout: Rollout) -> Rollout:
    """Return the rollout in phase rolled_back: production answers every request."""
    return _with_changes(rollout, phase="rolled_back", epoch=rollout.epoch + 1)


def pause(rollout: Rollout, *, now: datetime, actor: str, reason: str) -> Transition:
    """Return the transition with which a person pauses a rollout.

    Raises:
        ContractError: The rollout is not rolling.
    """
    _require_phase(rollout, "paused", ("rolling",))
    return _manual_transition("pause", as_paused(rollout), now, actor, reason)


def resume(rollout: Rollout, *, now: datetime, actor: str, reason: str) -> Transition:
    """Return the transition with which a person resumes a paused rollout.

    The share is the same, and the timeout of the step begins again.

    Raises:
        ContractError: The rollout is not paused.
    """
    _require_phase(rollout, "resumed", ("paused",))
    times_out_at = _step_timeout_at(rollout.settings, now)
    resumed_rollout = _with_changes(rollout, phase="rolling", step_times_out_at=times_out_at)
    return _manual_transition("resume", resumed_rollout, now, actor, reason)


def abort(rollout: Rollout, *, now: datetime, actor: str, reason: str) -> Transition:
    """Return the transition with which a person aborts a rollout.

    Production answers every request again.

    Raises:
        ContractError: The rollout is over.
    """
    _require_phase(rollout, "aborted", ("rolling", "paused", "awaiting_promotion"))
    return _manual_transition("abort", as_rolled_back(rollout), now, actor, reason)


def promote(rollout: Rollout, *, now: datetime, actor: str, reason: str) -> Transition:
    """Return the transition that records the move of the production pointer to the challenger.

    Raises:
        ContractError: The rollout does not await promotion.
    """
    _require_phase(rollout, "promoted", ("awaiting_promotion",))
    promoted_rollout = _with_changes(rollout, phase="promoted")
    return _manual_transition("promote", promoted_rollout, now, actor, reason)


def roll_back(rollout: Rollout, *, now: datetime, reason: str, remedy: str) -> Transition:
    """Return the transition of a rollback for a reason other than the observed traffic.

    Raises:
        ContractError: The rollout is over.
    """
    _require_phase(rollout, "rolled back", ("rolling", "paused", "awaiting_promotion"))
    return Transition(
        outcome="roll_back",
        rollout=as_rolled_back(rollout),
        at=now,
        actor=CONTROLLER,
        reason=reason,
        remedy=remedy,
    )


def _manual_transition(
    outcome: TransitionOutcome, rollout: Rollout, now: datetime, actor: str, reason: str
) -> Transition:
    for name, text in (("an actor", actor), ("a reason", reason)):
        if not text.strip():
            raise ContractError(
                f"The transition {outcome} requires {name}, got an empty text.",
                fix="Give both the actor and the reason.",
            )
    return Transition(outcome=outcome, rollout=rollout, at=now, actor=actor, reason=reason)


def _require_phase(rollout: Rollout, participle: str, phases: tuple[RolloutPhase, ...]) -> None:
    if rollout.phase not in phases:
        raise ContractError(
            f"Only a rollout in phase {' or '.join(phases)} can be {participle}, but the rollout "
            f"of {rollout.model} version {rollout.version} is in phase {rollout.phase}.",
            fix=f"See the state of the rollout: sluice rollout status {rollout.model}",
        )


def _with_changes(rollout: Rollout, **changes: Any) -> Rollout:
    return rollout.model_copy(update={"revision": rollout.revision + 1, **changes})


def _step_timeout_at(settings: RolloutSettings, now: datetime) -> datetime:
    return now + timedelta(seconds=settings.max_step_s)
