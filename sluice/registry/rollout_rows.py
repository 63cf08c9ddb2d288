"""Reads and writes rollouts, their transitions and their current state (the head).

All functions run in the caller's transaction.
"""

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy import Connection

from sluice.base.errors import IntegrityError, RolloutConflict
from sluice.registry import log
from sluice.registry.queries import unreadable_error
from sluice.registry.stored_rollouts import parse_rollout, parse_transition
from sluice.registry.tables import rollout_heads, rollout_transitions, rollouts
from sluice.rollout.state import Rollout, Transition


def load_last(connection: Connection, model: str) -> Rollout | None:
    """Return the last rollout of a model, in its state after the last check; None without one.

    Raises:
        IntegrityError: The rollout cannot be read, or does not match its last transition.
    """
    query = sa.select(rollout_heads).where(rollout_heads.c.model == model)
    head = connection.execute(query).first()
    if head is None:
        return None
    transitions = load_transitions(connection, head.rollout)
    rollout = _parse_rollout(head.state, model)
    if (
        not transitions
        or _transition_fields(transitions[-1].rollout) != _transition_fields(rollout)
        or rollout.id != head.rollout
    ):
        raise IntegrityError(
            f"The rollout of {model} does not match its last transition.",
            cause="The registry's database was edited manually or damaged.",
            fix="Run sluice registry verify, and restore the database from a backup.",
        )
    return rollout


def load_transitions(connection: Connection, rollout_id: str) -> list[Transition]:
    """Return the transitions of a rollout, oldest first.

    Raises:
        IntegrityError: A row cannot be read.
    """
    query = sa.select(rollout_transitions.c.payload).where(
        rollout_transitions.c.rollout == rollout_id
    )
    rows = connection.execute(query.order_by(rollout_transitions.c.revision)).scalars().all()
    try:
        return [parse_transition(text) for text in rows]
    except ValidationError as error:
        raise unreadable_error(f"A transition of rollout {rollout_id}", error) from None


def load_rollout_ids(connection: Connection, model: str) -> list[str]:
    """Return the ids of all rollouts of a model in write order, independent of the clock."""
    query = sa.select(rollouts.c.id).where(rollouts.c.model == model)
    return list(connection.execute(query.order_by(log.select_line_number(rollouts))).scalars())


def insert_rollout(connection: Connection, transition: Transition, *, receipt: str) -> None:
    """Insert a new rollout with its first transition, as the model's last rollout."""
    rollout = transition.rollout
    log.append(
        connection,
        rollouts,
        id=rollout.id,
        model=rollout.model,
        version=rollout.version,
        receipt=receipt,
        settings=rollout.settings.model_dump_json(),
        started_at=rollout.started_at,
    )
    _append_transition(connection, transition)
    head = {"rollout": rollout.id, "revision": 0, "state": rollout.model_dump_json()}
    is_of_model = rollout_heads.c.model == rollout.model
    result = connection.execute(sa.update(rollout_heads).where(is_of_model).values(head))
    if result.rowcount == 0:
        connection.execute(sa.insert(rollout_heads).values(model=rollout.model, **head))


def store_transition(
    connection: Connection, transition: Transition, *, expected_revision: int
) -> None:
    """Store the result of a check if the stored rollout still has ``expected_revision``.

    Raises:
        RolloutConflict: The rollout was changed meanwhile, or a newer rollout was started.
    """
    rollout = transition.rollout
    result = connection.execute(
        sa.update(rollout_heads)
        .where(
            rollout_heads.c.model == rollout.model,
            rollout_heads.c.rollout == rollout.id,
            rollout_heads.c.revision == expected_revision,
        )
        .values(revision=rollout.revision, state=rollout.model_dump_json())
    )
    if result.rowcount != 1:
        raise _conflict_error(connection, rollout, expected_revision)
    if rollout.revision != expected_revision:
        _append_transition(connection, transition)


def _append_transition(connection: Connection, transition: Transition) -> None:
    log.append(
        connection,
        rollout_transitions,
        rollout=transition.rollout.id,
        revision=transition.rollout.revision,
        at=transition.at,
        outcome=transition.outcome,
        actor=transition.actor,
        payload=transition.model_dump_json(),
    )


def _conflict_error(
    connection: Connection, rollout: Rollout, expected_revision: int
) -> RolloutConflict:
    newest_ids = load_rollout_ids(connection, rollout.model)[-1:]
    if newest_ids != [rollout.id]:
        return RolloutConflict(
            f"The rollout of {rollout.model} version {rollout.version} is not the newest rollout "
            "of this model.",
            cause="A newer rollout was started.",
            fix="Read the newest rollout and decide on its current state.",
        )
    transitions = load_transitions(connection, rollout.id)
    cause = ""
    if transitions:
        last_transition = transitions[-1]
        cause = (
            f"{last_transition.actor} recorded the transition {last_transition.outcome} at "
            f"{last_transition.at:%Y-%m-%d %H:%M:%S} UTC."
        )
    return RolloutConflict(
        f"The rollout of {rollout.model} version {rollout.version} was expected at transition "
        f"{expected_revision}, but is at "
        f"{transitions[-1].rollout.revision if transitions else 'none'}.",
        cause=cause,
        fix="Read the rollout again and decide on its current state.",
    )


def _parse_rollout(text: str, model: str) -> Rollout:
    try:
        return parse_rollout(text)
    except ValidationError as error:
        raise unreadable_error(f"The rollout of {model}", error) from None


def _transition_fields(rollout: Rollout) -> dict[str, object]:
    """Return the fields of a rollout that only a transition may change."""
    fields_changed_by_checks = {"evidence", "checked_at", "step_since", "step_times_out_at"}
    return rollout.model_dump(mode="json", exclude=fields_changed_by_checks)
