"""What servers saw, kept where all of them and the rollout can reach it: the registry's database.

So it does not matter how many servers there are, where, or behind which balancer. These rows are
no evidence by themselves and are not chained: a transition carries what it rests on.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeVar

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy import Connection, Table
from sqlalchemy.exc import DataError

from sluice.base.errors import IntegrityError, SamplesRefused
from sluice.base.settings import Record
from sluice.registry.database import Database
from sluice.registry.sample_removal import expire
from sluice.registry.tables import (
    arm_counts,
    rollout_heads,
    rollout_notes,
    samples,
    server_states,
)
from sluice.rollout.agreement import Agreement
from sluice.rollout.observations import Window, merge
from sluice.rollout.samples import Report, Sample, ServerState
from sluice.rollout.state import Rollout
from sluice.verdicts.verdict import Verdict

R = TypeVar("R", bound=Record)

KEPT_SAMPLES = 20_000
"""Newest samples of a model that are kept."""


class Observations:
    """The observations of one database."""

    def __init__(self, database: Database, *, keep: timedelta | None = None) -> None:
        """Prepare; nothing is read yet.

        Args:
            database: Of the registry.
            keep: Samples older than that go when this writes; None deletes none for their age.
        """
        self._database = database
        self._keep = keep

    def keeping(self, *, days: float) -> "Observations":
        """Return the same observations, which deletes samples older than so many days."""
        return Observations(self._database, keep=timedelta(days=days))

    def write(self, report: Report) -> None:
        """Keep what a server reports: state and counts together, then the samples or none of them.

        Raises:
            StorageError: The database cannot be written.
            SamplesRefused: State and counts are kept; the samples never will be.
        """
        state, window = report.state, report.window
        with self._database.write() as connection:
            _put(
                connection,
                server_states,
                {"model": state.model, "server": state.server},
                {"at": state.at, "payload": state.model_dump_json()},
            )
            if window is not None:
                key = {"rollout": window.rollout, "epoch": window.epoch, "server": state.server}
                _put(connection, arm_counts, key, {"payload": window.model_dump_json()})
            if self._keep is not None:
                expire(connection, state.model, before=state.at - self._keep)
        if report.samples:  # by themselves: no counts wait for what a client calls its rows
            self._add(state.model, report.samples)

    def servers(self, model: str, *, since: datetime) -> list[ServerState]:
        """Return the servers of a model that were heard of since a moment, the latest first."""
        query = (
            sa.select(server_states.c.payload)
            .where(server_states.c.model == model, server_states.c.at >= since)
            .order_by(server_states.c.at.desc())
        )
        with self._database.read() as connection:
            return [_parse(ServerState, text) for text in connection.execute(query).scalars()]

    def window(self, rollout: Rollout) -> Window:
        """Return what all servers counted at the step that a rollout stands at."""
        query = sa.select(arm_counts.c.server, arm_counts.c.payload).where(
            arm_counts.c.rollout == rollout.id, arm_counts.c.epoch == rollout.epoch
        )
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(arm_counts.c.server)).all()
        found = {row.server: _parse(Window, row.payload) for row in rows}
        return merge(found, rollout=rollout.id, epoch=rollout.epoch, since=rollout.step_since)

    def samples(
        self, model: str, *, rollout: str | None = None, newest: int, answered: bool = False
    ) -> list[Sample]:
        """Return samples, oldest first.

        Args:
            model: Its name.
            rollout: Only those of this rollout; None for all.
            newest: How many, counted from the end.
            answered: Only requests without a fault: failures are kept more often, and one client
                can push everything else out of the newest.
        """
        query = sa.select(samples.c.payload).where(samples.c.model == model)
        if rollout is not None:
            query = query.where(samples.c.rollout == rollout)
        if answered:  # quotes within a text are escaped: only the field matches
            query = query.where(samples.c.payload.contains('"fault":null'))
        query = query.order_by(samples.c.id.desc()).limit(newest)
        with self._database.read() as connection:
            found = [_parse(Sample, text) for text in connection.execute(query).scalars()]
        return found[::-1]

    def pairs(self, rollout: str) -> list[Sample]:
        """Return the first pair of answers for each row of a rollout that a key names."""
        query = (
            sa.select(samples.c.payload)
            .where(samples.c.rollout == rollout, samples.c.row_key.is_not(None))
            .order_by(samples.c.id)
        )
        with self._database.read() as connection:
            return [_parse(Sample, text) for text in connection.execute(query).scalars()]

    def has_keys(self, rollout: str) -> bool:
        """Say whether clients name the rows of a rollout, so that labels may reach them."""
        query = sa.select(samples.c.id).where(
            samples.c.rollout == rollout, samples.c.row_key.is_not(None)
        )
        with self._database.read() as connection:
            return connection.execute(query.limit(1)).first() is not None

    def agreement(self, rollout: str) -> Agreement | None:
        """Return how far apart both arms were on the held-out rows; None when not measured."""
        found = self._notes(rollout, "agreement")
        return _parse(Agreement, found[-1]) if found else None

    def note_quality(self, rollout: str, verdict: Verdict, *, at: datetime) -> None:
        """Keep what the gate said of labelled pairs."""
        with self._database.write() as connection:
            insert_note(connection, rollout, "quality", verdict, at=at)

    def quality(self, rollout: str) -> list[Verdict]:
        """Return every verdict on labelled pairs of a rollout, oldest first."""
        return [_parse(Verdict, text) for text in self._notes(rollout, "quality")]

    def _add(self, model: str, new: Sequence[Sample]) -> None:
        with self._database.write() as connection:
            try:
                _insert(connection, model, new)
            except (DataError, ValueError) as error:  # UnicodeError is a ValueError
                seen = str(getattr(error, "orig", error)).splitlines()[0]
                raise SamplesRefused(
                    f"The registry does not take {len(new)} samples ({seen}); they are dropped.",
                    cause="One of them holds text that its database cannot store.",
                    fix="See what clients send as keys; state and counts are kept.",
                ) from error
            _prune(connection, model)

    def _notes(self, rollout: str, kind: str) -> Sequence[str]:
        query = (
            sa.select(rollout_notes.c.payload)
            .where(rollout_notes.c.rollout == rollout, rollout_notes.c.kind == kind)
            .order_by(rollout_notes.c.id)
        )
        with self._database.read() as connection:
            return connection.execute(query).scalars().all()


def insert_note(
    connection: Connection,
    rollout: str,
    kind: Literal["agreement", "quality"],
    value: Record,
    *,
    at: datetime,
) -> None:
    """Write a note of a rollout in the caller's transaction."""
    row = {"rollout": rollout, "kind": kind, "at": at, "payload": value.model_dump_json()}
    connection.execute(sa.insert(rollout_notes).values(**row))


def _put(
    connection: Connection, table: Table, key: dict[str, object], values: dict[str, object]
) -> None:
    """Write a row anew; one server writes its own rows only, so nobody comes in between."""
    where = sa.and_(*(table.c[name] == value for name, value in key.items()))
    if connection.execute(sa.update(table).where(where).values(**values)).rowcount == 0:
        connection.execute(sa.insert(table).values(**key, **values))


def _insert(connection: Connection, model: str, new: Sequence[Sample]) -> None:
    """Write samples; the first pair of answers for a row of a rollout is marked by its key."""
    pairs = [s for s in new if _is_named_pair(s)]
    query = sa.select(samples.c.rollout, samples.c.row_key).where(
        samples.c.rollout.in_({s.rollout for s in pairs}),
        samples.c.row_key.in_({s.key for s in pairs}),
    )
    known = {(found.rollout, found.row_key) for found in connection.execute(query)}
    rows = []
    for sample in new:
        row_key = None
        if _is_named_pair(sample) and (sample.rollout, sample.key) not in known:
            row_key = sample.key
            known.add((sample.rollout, sample.key))
        rows.append(
            {
                "model": model,
                "rollout": sample.rollout,
                "row_key": row_key,
                "payload": sample.model_dump_json(),
            }
        )
    connection.execute(sa.insert(samples), rows)


def _is_named_pair(sample: Sample) -> bool:
    return bool(sample.rollout and sample.key and sample.production and sample.challenger)


def _prune(connection: Connection, model: str) -> None:
    oldest = (
        sa.select(samples.c.id)
        .where(samples.c.model == model)
        .order_by(samples.c.id.desc())
        .limit(1)
        .offset(KEPT_SAMPLES)
        .scalar_subquery()
    )
    # Pairs of a rollout under way wait for their labels, however long these take.
    last = sa.select(rollout_heads.c.rollout).where(rollout_heads.c.model == model)
    waits = sa.and_(samples.c.row_key.is_not(None), samples.c.rollout.in_(last))
    gone = sa.and_(samples.c.model == model, samples.c.id <= oldest, sa.not_(waits))
    connection.execute(sa.delete(samples).where(gone))


def _parse(cls: type[R], text: str) -> R:
    try:
        return cls.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise IntegrityError(
            f"A {cls.__name__} that a server reported cannot be read: {place}: {first['msg']}.",
            cause="The registry's database was edited by hand, or a newer server wrote it.",
            fix="Bring all servers to one version of Sluice.",
        ) from None
