"""The registry as it can be looked at: nothing here changes it."""

from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Self

from sqlalchemy import Connection

from sluice.base.errors import IntegrityError, RegistryUnsound
from sluice.base.receipts import Receipt
from sluice.registry import admission, audit, evidence, log, production_check, queries, signed_lines
from sluice.registry.anchor import Kept, KeptBefore, anchor_of
from sluice.registry.audit import AuditRecord
from sluice.registry.database import Database
from sluice.registry.keyring import Keyring
from sluice.registry.records import Finding, HistoryEntry, LinkedReceipt, Version
from sluice.registry.signing import SigningKey
from sluice.registry.trail import production_trail

Clock = Callable[[], datetime]
"""Returns the present moment, with its time zone."""


class LedgerReading:
    """Everything that can be asked of the registry of one database."""

    def __init__(self, database: Database, *, clock: Clock, key: SigningKey | None) -> None:
        self._database = database
        self._clock = clock
        self._keys = None if key is None else Keyring.around(key)
        self._anchor = None if self._keys is None else anchor_of(self._keys, database.url)

    @classmethod
    def open(
        cls, url: str, *, clock: Clock, create: bool = True, key: SigningKey | None = None
    ) -> Self:
        """Connect to the registry.

        Args:
            url: SQLAlchemy URL, as in ``Home.registry_url``.
            clock: Dates every entry.
            create: False refuses a place without a registry instead of starting one.
            key: Signs the log's head with every change; without one nothing is signed.

        Raises:
            SettingsError, StorageError, UnknownVersion: See ``Database.open``.
        """
        return cls(Database.open(url, create=create), clock=clock, key=key)

    @property
    def url(self) -> str:
        """Address of the registry, without its password."""
        return self._database.url

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def models(self) -> list[str]:
        """Return the names of all models, sorted."""
        with self._database.read() as connection:
            return queries.model_names(connection)

    def find_receipt(self, gate: str, subject: Mapping[str, str]) -> Receipt | None:
        """Return the receipt of a gate recorded last about ``subject``, passed or not, or None.

        Args:
            gate: Its name.
            subject: Digest by role; every role given must agree, the receipt may name more.
        """
        with self._database.read() as connection:
            return evidence.newest_receipt(connection, gate, subject)

    def find_decision(
        self, model: str, *, candidate: str, reference: str, window: str
    ) -> Receipt | None:
        """Return the recorded answer to exactly this question, or None."""
        question = {"candidate": candidate, "reference": reference, "window": window}
        with self._database.read() as connection:
            return evidence.load_decision(connection, {"model": model} | question)

    def latest_decision(self, model: str, *, candidate: str, window: str) -> Receipt | None:
        """Return the last answer about a candidate on a window, whatever it was compared with."""
        question = {"model": model, "candidate": candidate, "window": window}
        with self._database.read() as connection:
            return evidence.load_decision(connection, question)

    def versions(self, model: str) -> list[Version]:
        """Return the versions of a model by number; none for an unknown model."""
        with self._database.read() as connection:
            return queries.load_versions(connection, model)

    def version(self, model: str, number: int) -> Version:
        """Return one version.

        Raises:
            UnknownVersion: There is no such model, or no such number.
        """
        with self._database.read() as connection:
            found = queries.find_version(connection, model, number=number)
            if found is None:
                raise admission.unknown(model, number, queries.model_names(connection))
        return found

    def version_of(self, model: str, candidate: str) -> Version | None:
        """Return the version of a candidate digest, or None when it is not registered."""
        with self._database.read() as connection:
            return queries.find_version(connection, model, candidate=candidate)

    def receipts(self, model: str, number: int) -> list[LinkedReceipt]:
        """Return the receipts of one version, the newest word of each gate last."""
        with self._database.read() as connection:
            return evidence.load_linked_receipts(connection, model, number)

    def imported_receipts(self, model: str, number: int) -> list[Receipt]:
        """Return the receipts that came with an imported version; none for one made here."""
        with self._database.read() as connection:
            return evidence.load_imported(connection, model, number)

    def production(self, model: str) -> Version | None:
        """Return the version in production, once the registry agrees about it; None for none.

        Raises:
            RegistryUnsound: Pointer, history, log or receipts contradict each other; or, with a
                key, something was not signed.
        """
        kept = self._kept()
        with self._database.read() as connection:
            production_check.require_production(connection, model)
            self._require_signed(connection, kept)
            number = queries.load_pointer(connection, model).version
            return None if number is None else queries.load_version(connection, model, number)

    def served_version(self, model: str, candidate: str) -> Version | None:
        """Return the version of a candidate, once the registry agrees about it; None for none.

        Raises:
            RegistryUnsound: As in ``production``.
        """
        kept = self._kept()
        with self._database.read() as connection:
            found = queries.find_version(connection, model, candidate=candidate)
            if found is not None:
                production_check.require_sound(connection, model, [found.number])
                self._require_signed(connection, kept)
        return found

    def production_findings(self, model: str) -> list[Finding]:
        """Return what does not hold of what serves for a model; [] when all does."""
        keys, kept = self._keys, self._kept()
        with self._database.read() as connection:
            findings = production_check.check_production(connection, model)
            if keys is not None:
                findings += signed_lines.check(connection, keys, anchor=kept)
        return findings

    def _kept(self) -> Kept | None:
        """Return the line that is kept outside the database; read it before the database is."""
        return KeptBefore.of(self._anchor)

    def _require_signed(self, connection: Connection, kept: Kept | None) -> None:
        """Refuse to act on what the key did not sign, where there is one.

        Without it whoever writes the database can write a history that holds together.
        """
        if self._keys is None:
            return
        try:
            head = log.load_head(connection)
            signed_lines.require_signed(connection, self._keys, head, anchor=kept)
        except IntegrityError as error:
            raise RegistryUnsound(error.what, cause=error.cause, fix=error.fix) from error

    def production_number(self, model: str) -> int | None:
        """Return the number in production, or None; works when its lineage is damaged."""
        with self._database.read() as connection:
            return queries.load_pointer(connection, model).version

    def previous_production(self, model: str) -> Version | None:
        """Return the version a rollback would go to, or None."""
        with self._database.read() as connection:
            trail = production_trail(queries.load_history(connection, model))
            return queries.load_version(connection, model, trail[-2]) if len(trail) > 1 else None

    def production_at(self, model: str, when: datetime) -> HistoryEntry | None:
        """Return the move that put into production what was there at a moment, or None.

        Args:
            model: Its name.
            when: With its time zone; a move counts from its own moment on.

        Raises:
            ContractError: The moment has no time zone, or has not come yet.
            UnknownVersion: There is no such model.
        """
        admission.require_past(when, now=self._clock())
        with self._database.read() as connection:
            names = queries.model_names(connection)
            if model not in names:
                raise admission.unknown(model, None, names)
            moves = [e for e in queries.load_history(connection, model) if e.revision is not None]
        return next((move for move in reversed(moves) if move.at <= when), None)

    def audit(
        self, *, since: datetime | None = None, key: SigningKey | None = None
    ) -> list[AuditRecord]:
        """Return every change and every refused attempt, oldest first.

        Args:
            since: Leave out what was before this moment; None for all.
            key: Checks signatures, with those known beside it; None leaves them unchecked.
        """
        keys = None if key is None else Keyring.around(key)
        with self._database.read() as connection:
            return audit.load(connection, keys=keys, since=since)

    def decisions(self, model: str) -> list[Receipt]:
        """Return every answer of the promotion gate about a model, oldest first."""
        with self._database.read() as connection:
            return evidence.load_decisions(connection, model)

    def history(self, model: str) -> list[HistoryEntry]:
        """Return the audit of a model, oldest first."""
        with self._database.read() as connection:
            return queries.load_history(connection, model)
