"""Read-only access to the registry: versions, receipts, decisions, history and production."""

from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Self

from sqlalchemy import Connection

from sluice.base.errors import IntegrityError, RegistryInconsistent
from sluice.base.receipts import Receipt
from sluice.registry import (
    audit,
    evidence,
    log,
    log_signatures,
    production_check,
    queries,
    validation,
)
from sluice.registry.anchor import AnchorReader, AnchorSnapshot, anchor_of
from sluice.registry.audit import AuditRecord
from sluice.registry.database import Database
from sluice.registry.keyring import Keyring
from sluice.registry.records import HistoryEntry, LinkedReceipt, RegistryFinding, Version
from sluice.registry.rollback_targets import production_trail
from sluice.registry.signing import SigningKey

Clock = Callable[[], datetime]
"""Function that returns the current time, with a time zone."""


class ReadonlyLedger:
    """Read methods of the model registry in one database."""

    def __init__(self, database: Database, *, clock: Clock, key: SigningKey | None) -> None:
        self._database = database
        self._clock = clock
        self._keys = None if key is None else Keyring.load(key)
        self._anchor = None if self._keys is None else anchor_of(self._keys, database.url)

    @classmethod
    def open(
        cls, url: str, *, clock: Clock, create: bool = True, key: SigningKey | None = None
    ) -> Self:
        """Connect to the registry.

        Args:
            url: SQLAlchemy URL, as in ``Home.registry_url``.
            clock: Returns the current time. Subclasses with write methods store it with each entry.
            create: Whether to create the registry if it does not exist.
            key: Key that verifies signatures, and with which a subclass signs its changes. None for
                an unsigned log.

        Raises:
            SettingsError, StorageError, UnknownVersion: See ``Database.open``.
        """
        return cls(Database.open(url, create=create), clock=clock, key=key)

    @property
    def url(self) -> str:
        """Address of the registry, without its password."""
        return self._database.url

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def models(self) -> list[str]:
        """Return the names of all models, sorted."""
        with self._database.read() as connection:
            return queries.model_names(connection)

    def find_receipt(self, gate: str, subject: Mapping[str, str]) -> Receipt | None:
        """Return the last recorded receipt of a gate about ``subject``, passed or failed, or None.

        Args:
            gate: Name of the gate.
            subject: Digests, by role, that the receipt's subject must contain. The receipt's
                subject may have further roles.
        """
        with self._database.read() as connection:
            return evidence.newest_receipt(connection, gate, subject)

    def find_decision(
        self, model: str, *, candidate: str, reference: str, window: str
    ) -> Receipt | None:
        """Return the decision on this candidate, reference and window, or None."""
        subject = {"candidate": candidate, "reference": reference, "window": window}
        with self._database.read() as connection:
            return evidence.load_decision(connection, {"model": model} | subject)

    def latest_decision(self, model: str, *, candidate: str, window: str) -> Receipt | None:
        """Return the last decision on a candidate and window, with any reference, or None."""
        column_values = {"model": model, "candidate": candidate, "window": window}
        with self._database.read() as connection:
            return evidence.load_decision(connection, column_values)

    def versions(self, model: str) -> list[Version]:
        """Return the versions of a model, sorted by number; [] for an unknown model."""
        with self._database.read() as connection:
            return queries.load_versions(connection, model)

    def version(self, model: str, number: int) -> Version:
        """Return one version.

        Raises:
            UnknownVersion: There is no such model, or no such number.
        """
        with self._database.read() as connection:
            registered_version = queries.find_version(connection, model, number=number)
            if registered_version is None:
                raise validation.unknown_version_error(
                    model, number, queries.model_names(connection)
                )
        return registered_version

    def version_of(self, model: str, candidate: str) -> Version | None:
        """Return the version with a candidate digest, or None if it is not registered."""
        with self._database.read() as connection:
            return queries.find_version(connection, model, candidate=candidate)

    def receipts(self, model: str, number: int) -> list[LinkedReceipt]:
        """Return the receipts of one version in the order in which they took effect."""
        with self._database.read() as connection:
            return evidence.load_linked_receipts(connection, model, number)

    def imported_receipts(self, model: str, number: int) -> list[Receipt]:
        """Return the receipts that were imported with a version; [] if it was not imported."""
        with self._database.read() as connection:
            return evidence.load_imported_receipts(connection, model, number)

    def production(self, model: str) -> Version | None:
        """Return the production version after verifying it; None if nothing is in production.

        Raises:
            RegistryInconsistent: Pointer, history, log or receipts contradict each other; or the
                ledger has a key, and a line is not signed.
        """
        anchor = self._read_anchor()
        with self._database.read() as connection:
            production_check.require_consistent_production(connection, model)
            self._require_signed(connection, anchor)
            number = queries.load_pointer(connection, model).version
            return None if number is None else queries.load_version(connection, model, number)

    def verified_version_of(self, model: str, candidate: str) -> Version | None:
        """Return the version of a candidate after verifying it; None if it is not registered.

        Raises:
            RegistryInconsistent: See ``production``.
        """
        anchor = self._read_anchor()
        with self._database.read() as connection:
            registered_version = queries.find_version(connection, model, candidate=candidate)
            if registered_version is not None:
                production_check.require_consistent(connection, model, [registered_version.number])
                self._require_signed(connection, anchor)
        return registered_version

    def production_findings(self, model: str) -> list[RegistryFinding]:
        """Return the findings about the served versions of a model; [] if consistent."""
        keys, anchor = self._keys, self._read_anchor()
        with self._database.read() as connection:
            findings = production_check.check_production(connection, model)
            if keys is not None:
                findings += log_signatures.check(connection, keys, anchor=anchor)
        return findings

    def _read_anchor(self) -> AnchorReader | None:
        """Return a snapshot of the anchor; None without an anchor.

        The snapshot must be taken before the database is read.
        """
        return AnchorSnapshot.take(self._anchor)

    def _require_signed(self, connection: Connection, anchor: AnchorReader | None) -> None:
        """Reject unsigned lines if the ledger has a key.

        Without this check, anybody who can write the database could write a false but consistent
        history.
        """
        if self._keys is None:
            return
        try:
            head = log.load_head(connection)
            log_signatures.require_signed(connection, self._keys, head, anchor=anchor)
        except IntegrityError as error:
            raise RegistryInconsistent(error.what, cause=error.cause, fix=error.fix) from error

    def production_number(self, model: str) -> int | None:
        """Return the number of the production version, or None; the version is not verified."""
        with self._database.read() as connection:
            return queries.load_pointer(connection, model).version

    def previous_production(self, model: str) -> Version | None:
        """Return the version that a rollback would restore, or None."""
        with self._database.read() as connection:
            trail = production_trail(queries.load_history(connection, model))
            return queries.load_version(connection, model, trail[-2]) if len(trail) > 1 else None

    def production_at(self, model: str, when: datetime) -> HistoryEntry | None:
        """Return the promotion or rollback that set the production version at a time, or None.

        Args:
            model: Name of the model.
            when: Time with time zone. A move at exactly this time counts.

        Raises:
            ContractError: The time has no time zone, or is in the future.
            UnknownVersion: There is no such model.
        """
        validation.require_past(when, now=self._clock())
        with self._database.read() as connection:
            model_names = queries.model_names(connection)
            if model not in model_names:
                raise validation.unknown_version_error(model, None, model_names)
            entries = queries.load_history(connection, model)
        moves = [entry for entry in entries if entry.revision is not None]
        return next((move for move in reversed(moves) if move.at <= when), None)

    def audit(
        self, *, since: datetime | None = None, key: SigningKey | None = None
    ) -> list[AuditRecord]:
        """Return all changes and rejected attempts, oldest first.

        Args:
            since: Start time; None to return all.
            key: Key whose keyring verifies the signatures; None to skip verification.
        """
        keys = None if key is None else Keyring.load(key)
        with self._database.read() as connection:
            return audit.load(connection, keys=keys, since=since)

    def decisions(self, model: str) -> list[Receipt]:
        """Return all decisions of the promotion gate on a model, oldest first."""
        with self._database.read() as connection:
            return evidence.load_decisions(connection, model)

    def history(self, model: str) -> list[HistoryEntry]:
        """Return the history of a model, oldest first."""
        with self._database.read() as connection:
            return queries.load_history(connection, model)
