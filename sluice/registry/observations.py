"""Observations of the serving processes, stored in the registry's database.

All servers and the rollout controller share this database. So a rollout works with any number of
servers, on any machines and behind any load balancer. These rows are not chained in the log,
because a rollout transition stores a copy of the observations on which it is based.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeVar

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy import Connection, Table
from sqlalchemy.exc import DataError

from sluice.base.errors import IntegrityError, SamplesRefused
from sluice.base.pluralize import pluralize
from sluice.base.settings import Record
from sluice.registry.database import Database
from sluice.registry.sample_deletion import delete_expired
from sluice.registry.tables import (
    arm_counts,
    rollout_heads,
    rollout_notes,
    samples,
    server_states,
)
from sluice.rollout.observations import TrafficCounts, merge_counts
from sluice.rollout.prediction_agreement import PredictionAgreement
from sluice.rollout.samples import Sample, ServerReport, ServerState
from sluice.rollout.state import Rollout
from sluice.verdicts.verdict import Verdict

R = TypeVar("R", bound=Record)

MAX_SAMPLES = 20_000
"""Maximum number of samples per model. If there are more, the oldest samples are deleted, except
keyed pairs of the last rollout. A keyed pair is the first sample that has the predictions of both
arms for a row key (the index label of the predicted row)."""


class Observations:
    """Server states, traffic counts, samples and notes in the registry's database.

    Notes are the prediction agreement of a rollout, and its verdicts on labelled pairs.

    Args:
        database: The registry's database.
        max_age: Maximum age of samples; ``write`` deletes older samples. None for no limit.
    """

    def __init__(self, database: Database, *, max_age: timedelta | None = None) -> None:
        self._database = database
        self._max_age = max_age

    def with_retention(self, *, days: float) -> "Observations":
        """Return observations of the same database that delete samples older than ``days`` [d]."""
        return Observations(self._database, max_age=timedelta(days=days))

    def write(self, report: ServerReport) -> None:
        """Store the report of a server: state and counts in one transaction, samples in another.

        Raises:
            StorageError: The database cannot be written.
            SamplesRefused: The database cannot store the samples; state and counts are stored.
        """
        state, counts = report.state, report.counts
        with self._database.write() as connection:
            _upsert(
                connection,
                server_states,
                {"model": state.model, "server": state.server},
                {"at": state.at, "payload": state.model_dump_json()},
            )
            if counts is not None:
                _upsert(
                    connection,
                    arm_counts,
                    {"rollout": counts.rollout, "epoch": counts.epoch, "server": state.server},
                    {"payload": counts.model_dump_json()},
                )
            if self._max_age is not None:
                delete_expired(connection, state.model, before=state.at - self._max_age)
        # Samples are stored in a second transaction: if it fails because of an invalid row key of
        # a client, the counts are stored nevertheless.
        if report.samples:
            self._add_samples(state.model, report.samples)

    def servers(self, model: str, *, since: datetime) -> list[ServerState]:
        """Return the states that the servers of a model reported since a time, latest first."""
        query = (
            sa.select(server_states.c.payload)
            .where(server_states.c.model == model, server_states.c.at >= since)
            .order_by(server_states.c.at.desc())
        )
        with self._database.read() as connection:
            return [_parse(ServerState, text) for text in connection.execute(query).scalars()]

    def traffic_counts(self, rollout: Rollout) -> TrafficCounts:
        """Return the traffic counts of all servers at the current step of a rollout."""
        query = sa.select(arm_counts.c.server, arm_counts.c.payload).where(
            arm_counts.c.rollout == rollout.id, arm_counts.c.epoch == rollout.epoch
        )
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(arm_counts.c.server)).all()
        counts_by_server = {row.server: _parse(TrafficCounts, row.payload) for row in rows}
        return merge_counts(
            counts_by_server, rollout=rollout.id, epoch=rollout.epoch, since=rollout.step_since
        )

    def samples(
        self,
        model: str,
        *,
        rollout: str | None = None,
        max_samples: int,
        without_fault: bool = False,
    ) -> list[Sample]:
        """Return samples, oldest first.

        Args:
            model: Name of the model.
            rollout: Id of the rollout whose samples are returned; None for all samples.
            max_samples: Maximum number of samples; the newest samples are returned.
            without_fault: Whether to return only requests without a fault. Faulty requests are
                sampled more often, so a single client that sends many of them could displace all
                other samples.
        """
        query = sa.select(samples.c.payload).where(samples.c.model == model)
        if rollout is not None:
            query = query.where(samples.c.rollout == rollout)
        if without_fault:  # no text in the payload can match, because its quotes are escaped
            query = query.where(samples.c.payload.contains('"fault":null'))
        query = query.order_by(samples.c.id.desc()).limit(max_samples)
        with self._database.read() as connection:
            newest_first = [_parse(Sample, text) for text in connection.execute(query).scalars()]
        return newest_first[::-1]

    def pairs(self, rollout_id: str) -> list[Sample]:
        """Return one sample with the predictions of both arms for each row key of a rollout."""
        query = (
            sa.select(samples.c.payload)
            .where(samples.c.rollout == rollout_id, samples.c.row_key.is_not(None))
            .order_by(samples.c.id)
        )
        with self._database.read() as connection:
            return [_parse(Sample, text) for text in connection.execute(query).scalars()]

    def has_keyed_pairs(self, rollout_id: str) -> bool:
        """Return whether a rollout has pairs to which labels can be joined by their row keys."""
        query = sa.select(samples.c.id).where(
            samples.c.rollout == rollout_id, samples.c.row_key.is_not(None)
        )
        with self._database.read() as connection:
            return connection.execute(query.limit(1)).first() is not None

    def agreement(self, rollout_id: str) -> PredictionAgreement | None:
        """Return the prediction agreement of both arms on held-out rows; None if not measured."""
        notes = self._load_notes(rollout_id, "agreement")
        return _parse(PredictionAgreement, notes[-1]) if notes else None

    def record_quality(self, rollout_id: str, verdict: Verdict, *, at: datetime) -> None:
        """Store a verdict on the labelled pairs of a rollout."""
        with self._database.write() as connection:
            insert_note(connection, rollout_id, "quality", verdict, at=at)

    def quality(self, rollout_id: str) -> list[Verdict]:
        """Return every verdict on the labelled pairs of a rollout, oldest first."""
        return [_parse(Verdict, text) for text in self._load_notes(rollout_id, "quality")]

    def _add_samples(self, model: str, new_samples: Sequence[Sample]) -> None:
        with self._database.write() as connection:
            try:
                _insert_samples(connection, model, new_samples)
            except (DataError, ValueError) as error:  # UnicodeError is a ValueError
                message = str(getattr(error, "orig", error)).splitlines()[0]
                raise SamplesRefused(
                    f"The registry dropped {pluralize(len(new_samples), 'sample')} that it cannot "
                    f"store ({message}). State and counts of the server are stored.",
                    cause="One of the samples contains text that the database cannot store.",
                    fix="Check the row keys that clients send.",
                ) from error
            _prune(connection, model)

    def _load_notes(self, rollout_id: str, kind: str) -> Sequence[str]:
        query = (
            sa.select(rollout_notes.c.payload)
            .where(rollout_notes.c.rollout == rollout_id, rollout_notes.c.kind == kind)
            .order_by(rollout_notes.c.id)
        )
        with self._database.read() as connection:
            return connection.execute(query).scalars().all()


def insert_note(
    connection: Connection,
    rollout_id: str,
    kind: Literal["agreement", "quality"],
    value: Record,
    *,
    at: datetime,
) -> None:
    """Insert a note of a rollout in the caller's transaction."""
    row = {"rollout": rollout_id, "kind": kind, "at": at, "payload": value.model_dump_json()}
    connection.execute(sa.insert(rollout_notes).values(**row))


def _upsert(
    connection: Connection,
    table: Table,
    key_values: dict[str, object],
    other_values: dict[str, object],
) -> None:
    """Update the row with these key values, or insert a row.

    Two writers cannot conflict, because each server writes only its own rows.
    """
    has_key = sa.and_(*(table.c[name] == value for name, value in key_values.items()))
    if connection.execute(sa.update(table).where(has_key).values(**other_values)).rowcount == 0:
        connection.execute(sa.insert(table).values(**key_values, **other_values))


def _insert_samples(connection: Connection, model: str, new_samples: Sequence[Sample]) -> None:
    """Insert samples; the column ``row_key`` is set only for the first keyed pair of each row."""
    pairs = [sample for sample in new_samples if _is_keyed_pair(sample)]
    query = sa.select(samples.c.rollout, samples.c.row_key).where(
        samples.c.rollout.in_({pair.rollout for pair in pairs}),
        samples.c.row_key.in_({pair.key for pair in pairs}),
    )
    stored_keys = {(row.rollout, row.row_key) for row in connection.execute(query)}
    rows = []
    for sample in new_samples:
        row_key = None
        if _is_keyed_pair(sample) and (sample.rollout, sample.key) not in stored_keys:
            row_key = sample.key
            stored_keys.add((sample.rollout, sample.key))
        rows.append(
            {
                "model": model,
                "rollout": sample.rollout,
                "row_key": row_key,
                "payload": sample.model_dump_json(),
            }
        )
    connection.execute(sa.insert(samples), rows)


def _is_keyed_pair(sample: Sample) -> bool:
    """Return whether a sample has a row key and the predictions of both arms in a rollout."""
    return bool(sample.rollout and sample.key and sample.production and sample.challenger)


def _prune(connection: Connection, model: str) -> None:
    """Delete the oldest samples of a model beyond ``MAX_SAMPLES``.

    Keyed pairs of the last rollout are kept, because their labels may arrive later.
    """
    newest_excess_id = (
        sa.select(samples.c.id)
        .where(samples.c.model == model)
        .order_by(samples.c.id.desc())
        .limit(1)
        .offset(MAX_SAMPLES)
        .scalar_subquery()
    )
    select_last_rollout = sa.select(rollout_heads.c.rollout).where(rollout_heads.c.model == model)
    is_pair_of_last_rollout = sa.and_(
        samples.c.row_key.is_not(None), samples.c.rollout.in_(select_last_rollout)
    )
    is_excess = sa.and_(samples.c.model == model, samples.c.id <= newest_excess_id)
    connection.execute(sa.delete(samples).where(is_excess, sa.not_(is_pair_of_last_rollout)))


def _parse(cls: type[R], text: str) -> R:
    try:
        return cls.model_validate_json(text)
    except ValidationError as error:
        first_error = error.errors()[0]
        field_path = ".".join(str(part) for part in first_error["loc"])
        raise IntegrityError(
            f"A stored {cls.__name__} cannot be read: {field_path}: {first_error['msg']}.",
            cause="The registry's database was edited manually, or a newer version of Sluice wrote "
            "the row.",
            fix="Run the same version of Sluice on all machines.",
        ) from None
