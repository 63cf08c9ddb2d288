"""The registry: versions, receipts, decisions, and the pointer to what is in production.

Versions are immutable and numbered from 1 per model. Receipts and decisions are evidence that
promotion reads again. Nothing here can be forced.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self

from sluice.artifacts import ArtifactStore
from sluice.receipts import Receipt
from sluice.registry import admission, evidence, promotion, queries, verification
from sluice.registry.database import Database
from sluice.registry.lineage import Lineage
from sluice.registry.records import (
    Finding,
    HistoryEntry,
    LinkedReceipt,
    Promotion,
    Registration,
    Version,
)

Clock = Callable[[], datetime]
"""Returns the present moment, with its time zone."""


class Ledger:
    """The registry of one database. Use as a context manager, or call ``close``."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @classmethod
    def open(cls, url: str, *, clock: Clock, create: bool = True) -> Self:
        """Connect to the registry.

        Args:
            url: SQLAlchemy URL, as in ``Home.registry_url``.
            clock: Dates every entry.
            create: False refuses a place without a registry instead of starting one.

        Raises:
            SettingsError, StorageError, UnknownVersion: See ``Database.open``.
        """
        return cls(Database.open(url, create=create), clock=clock)

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

    def register(
        self,
        model: str,
        lineage: Lineage,
        receipts: Sequence[Receipt],
        *,
        actor: str = "pipeline",
        reason: str = "trained",
    ) -> Registration:
        """File a candidate under the next number; a known candidate keeps the one it has.

        Receipts that are new are tied to the version in both cases.

        Raises:
            ContractError: The lineage is of another model, its candidate digest is not that of
                its parts, or a promotion receipt does not say what it compared, or answers a
                decided question differently.
        """
        admission.require_consistent(model, lineage)
        at = self._clock()
        with self._database.write() as connection:
            queries.lock_model(connection, model, at=at)
            known = queries.find_version(connection, model, candidate=lineage.candidate)
            if known is None:
                number = queries.insert_version(connection, lineage, at=at)
                queries.append_history(
                    connection,
                    at=at,
                    model=model,
                    action="register",
                    from_version=None,
                    to_version=number,
                    actor=actor,
                    reason=reason,
                    receipt=None,
                    revision=None,
                )
            else:
                number = known.number
            for receipt in receipts:
                if receipt.gate == "promotion":
                    admission.require_standing(
                        evidence.decide(connection, model, receipt, at=at), receipt
                    )
            evidence.link_receipts(connection, receipts, model=model, number=number, at=at)
            version = queries.load_version(connection, model, number)
        return Registration(version=version, created=known is None)

    def record_receipt(self, receipt: Receipt) -> None:
        """File a gate's receipt before there is a version to tie it to."""
        at = self._clock()
        with self._database.write() as connection:
            evidence.log_receipt(connection, receipt, at=at)

    def find_receipt(self, gate: str, subject: Mapping[str, str]) -> Receipt | None:
        """Return the receipt of a gate recorded last about ``subject``, passed or not, or None.

        Args:
            gate: Its name.
            subject: Digest by role; every role given must agree, the receipt may name more.
        """
        with self._database.read() as connection:
            return evidence.newest_receipt(connection, gate, subject)

    def record_decision(self, model: str, receipt: Receipt) -> Receipt:
        """File the answer to the question in the receipt's subject; return the standing answer.

        The question is (candidate, reference, window). The first answer stands: when there was
        one already, it is returned and ``receipt`` is not filed.

        Raises:
            ContractError: The subject lacks candidate, reference or window.
        """
        at = self._clock()
        with self._database.write() as connection:
            queries.lock_model(connection, model, at=at)
            return evidence.decide(connection, model, receipt, at=at)

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
        """Return the receipts of one version in the order they were tied to it."""
        with self._database.read() as connection:
            return evidence.load_linked_receipts(connection, model, number)

    def production(self, model: str) -> Version | None:
        """Return the version in production, or None."""
        with self._database.read() as connection:
            number = queries.load_pointer(connection, model).version
            return None if number is None else queries.load_version(connection, model, number)

    def production_number(self, model: str) -> int | None:
        """Return the number in production, or None; works when its lineage is damaged."""
        with self._database.read() as connection:
            return queries.load_pointer(connection, model).version

    def previous_production(self, model: str) -> Version | None:
        """Return the version a rollback would go to, or None."""
        with self._database.read() as connection:
            trail = promotion.production_trail(queries.load_history(connection, model))
            return queries.load_version(connection, model, trail[-2]) if len(trail) > 1 else None

    def history(self, model: str) -> list[HistoryEntry]:
        """Return the audit of a model, oldest first."""
        with self._database.read() as connection:
            return queries.load_history(connection, model)

    def promote(
        self,
        model: str,
        version: int,
        *,
        expected: int | None,
        actor: str,
        reason: str,
        store: ArtifactStore,
        reinstate: bool = False,
    ) -> Promotion:
        """Put a version into production on the evidence recorded for it.

        Args:
            model: Its name.
            version: Number to promote; the one in production already is left as it is.
            expected: Number the caller believes is in production, None for none.
            actor: Who, for the history.
            reason: Why, for the history.
            store: Where its artifacts lie; all are read back first.
            reinstate: Also accept a receipt from before this version was rolled back. Every
                gate still applies.

        Raises:
            UnknownVersion: There is no such version.
            GateBlocked: The evidence is missing, says no, or is about something else.
            PromotionConflict: Something other than ``expected`` is in production.
            IntegrityError: An artifact, receipt or lineage is missing or was changed.
        """
        promotion.require_words(actor=actor, reason=reason)
        with self._database.read() as connection:
            found = queries.find_version(connection, model, number=version)
            if found is None:
                raise admission.unknown(model, version, queries.model_names(connection))
            pointer = queries.load_pointer(connection, model)
            if pointer.version == version:
                return Promotion(
                    model=model,
                    version=version,
                    previous=version,
                    moved=False,
                    revision=pointer.revision,
                    at=None,
                )
            promotion.check_expected(connection, model, expected)
            receipt = promotion.require_evidence(
                connection, found, pointer=pointer, reinstate=reinstate
            )
        promotion.verify_artifacts(found, store)
        with self._database.write() as connection:
            return promotion.commit_move(
                connection,
                found,
                action="promote",
                pointer=pointer,
                at=self._clock(),
                actor=actor,
                reason=reason,
                receipt=receipt,
            )

    def rollback(
        self, model: str, *, expected: int, actor: str, reason: str, store: ArtifactStore
    ) -> Promotion:
        """Put the production version before ``expected`` back.

        Repeating it goes one further back along the promotions each time, and refuses at the
        first one; it never returns to a version that was left by a rollback.

        Raises:
            UnknownVersion: Nothing is in production, or nothing was before it.
            PromotionConflict: Something other than ``expected`` is in production.
            IntegrityError: The version before would not load; the pointer stays.
        """
        promotion.require_words(actor=actor, reason=reason)
        with self._database.read() as connection:
            pointer = promotion.check_expected(connection, model, expected)
            number = promotion.rollback_target(connection, model, pointer)
            target = queries.load_version(connection, model, number)
        promotion.require_own_weights(target)
        promotion.verify_artifacts(target, store)
        with self._database.write() as connection:
            return promotion.commit_move(
                connection,
                target,
                action="rollback",
                pointer=pointer,
                at=self._clock(),
                actor=actor,
                reason=reason,
                receipt=None,
            )

    def verify(self, model: str | None, *, store: ArtifactStore) -> list[Finding]:
        """Return everything in the registry (or one model) that does not hold; [] when all does.

        Raises:
            UnknownVersion: There is no such model.
        """
        with self._database.read() as connection:
            names = queries.model_names(connection)
            if model is not None and model not in names:
                raise admission.unknown(model, None, names)
            chosen = names if model is None else [model]
            return [f for name in chosen for f in verification.check(connection, name, store)]
