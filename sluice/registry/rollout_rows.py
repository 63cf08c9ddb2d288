"""Rollouts, transitions and heads: rows read and written in the caller's transaction."""

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy import Connection

from sluice.base.errors import IntegrityError, RolloutConflict
from sluice.registry import log
from sluice.registry.tables import rollout_heads, rollout_transitions, rollouts
from sluice.rollout.state import Rollout, Transition


def load_last(connection: Connection, model: str) -> Rollout | None:
    """Return the model's last rollout as it was last looked at, or None when it never had one.

    Raises:
        IntegrityError: It cannot be read, or is not where its last transition left it.
    """
    query = sa.select(rollout_heads).where(rollout_heads.c.model == model)
    head = connection.execute(query).first()
    if head is None:
        return None
    last = load_transitions(connection, head.rollout)[-1:]
    rollout = _parse_rollout(head.state, model)
    if not last or _place(last[0].rollout) != _place(rollout) or rollout.id != head.rollout:
        raise IntegrityError(
            f"The rollout of {model} is not where its last transition left it.",
            cause="The ledger's database was edited by hand or damaged.",
            fix="Run sluice registry verify, and restore the database from a backup.",
        )
    return rollout


def load_transitions(connection: Connection, rollout_id: str) -> list[Transition]:
    """Return what happened to a rollout, oldest first; looks that changed nothing left no line.

    Raises:
        IntegrityError: A line cannot be read.
    """
    query = sa.select(rollout_transitions.c.payload).where(
        rollout_transitions.c.rollout == rollout_id
    )
    rows = connection.execute(query.order_by(rollout_transitions.c.revision)).scalars().all()
    try:
        return [Transition.model_validate_json(text) for text in rows]
    except ValidationError as error:
        raise _unreadable(f"A transition of rollout {rollout_id}", error) from None


def model_rollouts(connection: Connection, model: str) -> list[str]:
    """Return the ids of all rollouts of a model, oldest first, whatever the clock said."""
    query = sa.select(rollouts.c.id).where(rollouts.c.model == model)
    return list(connection.execute(query.order_by(log.line_number(rollouts))).scalars())


def insert(connection: Connection, transition: Transition, *, receipt: str) -> None:
    """Write a new rollout with its first transition, and make it the model's last."""
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
    _append(connection, transition)
    head = {"rollout": rollout.id, "revision": 0, "state": rollout.model_dump_json()}
    of_model = rollout_heads.c.model == rollout.model
    moved = connection.execute(sa.update(rollout_heads).where(of_model).values(head))
    if moved.rowcount == 0:
        connection.execute(sa.insert(rollout_heads).values(model=rollout.model, **head))


def move(connection: Connection, transition: Transition, *, revision: int) -> None:
    """Write what came of a look, if the rollout's revision is still ``revision``.

    Raises:
        RolloutConflict: It was changed since, or is the model's last rollout no longer.
    """
    after = transition.rollout
    moved = connection.execute(
        sa.update(rollout_heads)
        .where(
            rollout_heads.c.model == after.model,
            rollout_heads.c.rollout == after.id,
            rollout_heads.c.revision == revision,
        )
        .values(revision=after.revision, state=after.model_dump_json())
    )
    if moved.rowcount != 1:
        raise _conflict(connection, after, revision)
    if after.revision != revision:
        _append(connection, transition)


def _append(connection: Connection, transition: Transition) -> None:
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


def _conflict(connection: Connection, rollout: Rollout, revision: int) -> RolloutConflict:
    told = load_transitions(connection, rollout.id)
    cause = ""
    if told:
        last = told[-1]
        cause = f"{last.actor} made it {last.outcome} at {last.at:%Y-%m-%d %H:%M:%S} UTC."
    return RolloutConflict(
        f"The rollout of {rollout.model} version {rollout.version} was expected at its transition "
        f"{revision}, and is at {told[-1].rollout.revision if told else 'none'}.",
        cause=cause,
        fix="Read it again, and decide on what is there now.",
    )


def _parse_rollout(text: str, model: str) -> Rollout:
    try:
        return Rollout.model_validate_json(text)
    except ValidationError as error:
        raise _unreadable(f"The rollout of {model}", error) from None


def _unreadable(what: str, error: ValidationError) -> IntegrityError:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return IntegrityError(
        f"{what} cannot be read: {place}: {first['msg']}.",
        cause="The ledger's database was edited by hand or damaged.",
        fix="Restore the database from a backup.",
    )


def _place(rollout: Rollout) -> dict[str, object]:
    """Return everything of a rollout but what a look that changes nothing may change."""
    looked = {"evidence", "seen_at", "step_since", "patience_until"}
    return rollout.model_dump(mode="json", exclude=looked)
