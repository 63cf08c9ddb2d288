"""The registry: versions, receipts, decisions, and the pointer to what is in production.

Versions are immutable and numbered from 1 per model. Receipts and decisions are evidence that
promotion reads again. Nothing here can be forced. Every row that is added is a link of the log's
hash chain, every line of history an event for whoever publishes.
"""

from collections.abc import Mapping, Sequence

from sluice.base.artifacts import ArtifactStore
from sluice.base.receipts import Receipt
from sluice.observability import tracing
from sluice.registry import (
    admission,
    append_only,
    approval,
    evidence,
    log_verification,
    outbox,
    production_check,
    promotion,
    queries,
    signed_lines,
    staging,
    verification,
)
from sluice.registry.anchor import KeptBefore, anchor_of
from sluice.registry.code_paths import CodeAcceptance
from sluice.registry.evidence import Judge
from sluice.registry.keyring import Keyring
from sluice.registry.lineage import Lineage
from sluice.registry.outbox import Deliver, Publication
from sluice.registry.records import (
    Action,
    Finding,
    Promotion,
    Registration,
    Version,
)
from sluice.registry.refusal_recording import records_refusals
from sluice.registry.signed_writing import SignedWriting
from sluice.registry.signing import SigningKey
from sluice.registry.traced import traced


class Ledger(SignedWriting):
    """The registry of one database. Use as a context manager, or call ``close``."""

    @traced
    @records_refusals("register")
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

        A version that was imported tells from now on what was made here: a file may tell anything
        that the candidate's digest does not bind, its results and its drift reference among it.

        Receipts that are new are tied to the version in both cases. One that it has is its gate's
        newest word again, unless it is an answer of the promotion gate, which is given once.

        Raises:
            ContractError: The lineage is of another model, or its digests are not those of its
                parts; or a promotion receipt does not say what it compared, or answers a decided
                question differently.
        """
        admission.require_consistent(model, lineage)
        tracing.about(lineage.candidate)
        at = self._clock()
        with self._write(actor) as connection:
            queries.lock_model(connection, model, at=at)
            known = queries.find_version(connection, model, candidate=lineage.candidate)
            number = known.number if known else queries.insert_version(connection, lineage, at=at)
            is_foreign = known is not None and known.is_imported
            if known is not None and is_foreign:
                queries.keep_own_lineage(connection, known, lineage, at=at)
                reason = admission.own_reason(reason, imported=known.lineage, own=lineage)
            if known is None or is_foreign:
                tracing.begin_candidate(lineage.candidate, model=model, version=number)
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
            for receipt in receipts:
                if receipt.gate == "promotion":
                    evidence.require_decided(connection, model, receipt, at=at)
            evidence.link_receipts(connection, receipts, model=model, number=number, at=at)
            version = queries.load_version(connection, model, number)
            before = known.state if known else "dev"
            staging.note_change(connection, version, before=before, at=at, actor=actor)
        return Registration(version=version, created=known is None)

    @records_refusals("import")
    def adopt(
        self,
        lineage: Lineage,
        receipts: Sequence[Receipt],
        *,
        actor: str,
        reason: str,
        code: CodeAcceptance,
    ) -> Registration:
        """File a version of another registry as dev; a known candidate stays as it is.

        Its receipts are kept and shown. They promote nothing: no gate here gave them. Of a
        candidate that was imported before, code that is trusted now is added to the history.

        Args:
            lineage: As the other registry has it.
            receipts: As the other registry has them.
            actor: Who, for the history.
            reason: Where it is from, for the history.
            code: Why the code that it names may run here, for the history.

        Raises:
            ContractError: The digests in the lineage are not those of its parts; or the candidate
                was imported before, from a file that told other results of it.
        """
        promotion.require_words(actor=actor, reason=reason)
        model = lineage.model
        admission.require_consistent(model, lineage)
        at = self._clock()
        with self._write(actor) as connection:
            queries.lock_model(connection, model, at=at)
            known = queries.find_version(connection, model, candidate=lineage.candidate)
            if known is not None and not known.is_imported:
                return Registration(version=known, created=False)
            lines: list[tuple[Action, str]] = [
                *(("accept", path) for path in code.accepted),
                *(("trust", path) for path in code.trusted),
            ]
            if known is None:
                number = queries.insert_version(connection, lineage, at=at)
                lines.insert(0, ("import", reason))
                evidence.keep_imported(connection, receipts, model=model, number=number, at=at)
            else:
                admission.require_same_told(known.lineage, lineage)
                number = known.number
                noted = {
                    *(("accept", path) for path in known.accepted_code),
                    *(("trust", path) for path in known.trusted_code),
                }
                lines = [line for line in lines if line not in noted]
            for action, said in lines:
                queries.append_history(
                    connection,
                    at=at,
                    model=model,
                    action=action,
                    from_version=None,
                    to_version=number,
                    actor=actor,
                    reason=said,
                    receipt=None,
                    revision=None,
                )
            version = queries.load_version(connection, model, number)
        return Registration(version=version, created=known is None)

    def record_receipt(self, receipt: Receipt) -> None:
        """File a gate's receipt before there is a version to tie it to."""
        at = self._clock()
        with self._write() as connection:
            evidence.log_receipt(connection, receipt, at=at)

    def decide(self, model: str, question: Mapping[str, str], judge: Judge) -> Receipt:
        """Return the standing answer to a question; have it judged and filed when there is none.

        The first answer stands, whatever would be said today. Nobody waits while it is judged;
        when another question of the model was answered meanwhile, it is judged again, so that no
        two are the same attempt on a window.

        Args:
            model: Its name.
            question: Digests of candidate, reference and window.
            judge: Answers it, told the model's earlier answers, the oldest first.

        Raises:
            ContractError: A digest is missing, or the answer is one to another question.
        """
        asked = admission.question(question)
        while True:
            with self._database.read() as connection:
                standing = evidence.load_decision(connection, {"model": model} | asked)
                earlier = evidence.load_decisions(connection, model)
            if standing is not None:
                return standing
            receipt = judge(earlier)
            admission.require_answer(receipt, asked)
            at = self._clock()
            with self._write() as connection:
                queries.lock_model(connection, model, at=at)
                if evidence.count_decisions(connection, model) == len(earlier):
                    return evidence.decide(connection, model, receipt, at=at)

    def require_promotable(self, model: str, version: int, *, rules: str | None = None) -> None:
        """Refuse a version that the evidence recorded for it keeps out of production; move nothing.

        Raises:
            UnknownVersion: There is no such version.
            GateBlocked: The evidence is missing, says no, is about something else, or was given
                under other rules.
            IntegrityError: A receipt or the lineage was changed after it was written, or the
                registry contradicts itself about what is in production.
        """
        with self._database.read() as connection:
            found = queries.find_version(connection, model, number=version)
            if found is None:
                raise admission.unknown(model, version, queries.model_names(connection))
            production_check.require_production(connection, model, version)
            pointer = queries.load_pointer(connection, model)
            promotion.require_evidence(
                connection, found, pointer=pointer, reinstate=False, rules=rules
            )

    @traced
    @records_refusals("promote")
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
        rules: str | None = None,
    ) -> Promotion:
        """Put a version into production on the evidence recorded for it.

        Args:
            model: Its name.
            version: Number to promote; the one in production already is left as it is.
            expected: Number the caller believes is in production, None for none.
            actor: Who, for the history.
            reason: Why, for the history.
            store: Where its artifacts lie; all are read back and its networks loaded first.
            reinstate: Also accept a receipt from before this version was rolled back. Every
                gate still applies.
            rules: Digest of the settings that the verdict must have been given under; None from
                whoever has none, a person.

        Raises:
            UnknownVersion: There is no such version.
            GateBlocked: The evidence is missing, says no, is about something else, or was given
                under other rules.
            PromotionConflict: Something other than ``expected`` is in production.
            IntegrityError: An artifact, receipt or lineage is missing or was changed; or the
                registry contradicts itself about what is in production.
        """
        promotion.require_words(actor=actor, reason=reason)
        with self._database.read() as connection:
            found = queries.find_version(connection, model, number=version)
            if found is None:
                raise admission.unknown(model, version, queries.model_names(connection))
            tracing.about(found.candidate)
            production_check.require_production(connection, model, version)
            pointer = queries.load_pointer(connection, model)
            promotion.require_rules(connection, found, pointer=pointer, rules=rules)
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
            resting_on = promotion.require_evidence(
                connection, found, pointer=pointer, reinstate=reinstate, rules=rules
            )
            approval.require(
                connection,
                self._keys,
                found,
                pointer=pointer,
                promotion=resting_on,
                at=self._clock(),
            )
        _require_loadable(found, store)
        at = self._clock()
        with self._write(actor) as connection:
            self._require_whole(connection)
            queries.lock_model(connection, model, at=at)
            # Loading takes seconds: a newer verdict may have been filed since.
            receipt = promotion.require_evidence(
                connection, found, pointer=pointer, reinstate=reinstate, rules=rules
            )
            approval.require(
                connection, self._keys, found, pointer=pointer, promotion=receipt, at=at
            )
            return promotion.commit_move(
                connection,
                found,
                action="promote",
                pointer=pointer,
                at=at,
                actor=actor,
                reason=reason,
                receipt=receipt,
            )

    @traced
    @records_refusals("rollback")
    def rollback(
        self, model: str, *, expected: int, actor: str, reason: str, store: ArtifactStore
    ) -> Promotion:
        """Put the last good production version before ``expected`` back.

        Repeating it goes further back along the promotions each time, and refuses at the first
        one; it never returns to a version that was left by a rollback. The pointer moves to a
        version of other code as well, which the answer reports: the code does not move with it.

        Raises:
            UnknownVersion: Nothing is in production, or nothing was before it.
            PromotionConflict: Something other than ``expected`` is in production.
            IntegrityError: The version before would not load, or the registry contradicts itself
                about the pointer or that version; the pointer stays.
        """
        promotion.require_words(actor=actor, reason=reason)
        with self._database.read() as connection:
            pointer = promotion.check_expected(connection, model, expected)
            number = promotion.rollback_target(connection, model, pointer)
            production_check.require_sound(connection, model, [number])
            target = queries.load_version(connection, model, number)
        tracing.about(target.candidate)
        code = _require_restorable(target, store)
        with self._write(actor) as connection:
            self._require_whole(connection)
            moved = promotion.commit_move(
                connection,
                target,
                action="rollback",
                pointer=pointer,
                at=self._clock(),
                actor=actor,
                reason=reason,
                receipt=None,
            )
        return moved.model_copy(update={"code": code})

    def publish(self, model: str, consumer: str, deliver: Deliver) -> Publication:
        """Tell a consumer every line of a model's history it has not heard of, in their order.

        At least once: whoever is killed between telling and noting it tells it again next time,
        under the same key. A consumer that fails is told from there on next time.

        Args:
            model: Its name; an unknown one has no history.
            consumer: Its name in the ledger, always the same.
            deliver: Tells one event and says what became of it.
        """
        with self._database.read() as connection:
            events = outbox.pending(connection, model, consumer)
        reasons: list[str] = []
        delivered = 0
        for event in events:
            done = deliver(event)
            reasons.append(done.reason)
            if not done.ok:
                break
            with self._database.write() as connection:
                outbox.mark_delivered(connection, event, consumer, at=self._clock())
            delivered += 1
        return Publication(
            delivered=delivered, waiting=len(events) - delivered, reasons=tuple(reasons)
        )

    def restore_triggers(self) -> int:
        """Create the triggers of append-only tables again; return their number.

        Raises:
            RegistryUnsound: The log does not hold: a row was edited while there was no trigger.
        """
        with self._database.write() as connection:
            log_verification.require_sound(connection)
            return append_only.restore(connection)

    def verify(
        self, model: str | None, *, store: ArtifactStore, key: SigningKey | None = None
    ) -> list[Finding]:
        """Return everything in the registry (or one model) that does not hold; [] when all does.

        Args:
            model: Whose artifacts, receipts and moves; the log is checked whole in any case.
            store: Where the artifacts lie.
            key: Also check its signatures, and that every line is signed.

        Raises:
            UnknownVersion: There is no such model.
        """
        keys = None if key is None else Keyring.around(key)
        kept = None if keys is None else KeptBefore.of(anchor_of(keys, self.url))
        with self._database.read() as connection:
            names = queries.model_names(connection)
            if model is not None and model not in names:
                raise admission.unknown(model, None, names)
            chosen = names if model is None else [model]
            findings = list(verification.check(connection, chosen, store, url=self.url))
            findings += log_verification.check(connection)
            if keys is not None:
                findings += signed_lines.check(connection, keys, anchor=kept)
                if not findings:  # reads what a damaged registry cannot be asked
                    findings += approval.check(connection, keys, chosen)
        return findings


def _require_loadable(version: Version, store: ArtifactStore) -> None:
    from sluice.registry import loading  # brings torch, which looking around does not need

    loading.require_loadable(version, store)


def _require_restorable(version: Version, store: ArtifactStore) -> str:
    from sluice.registry import loading  # as above

    return loading.require_restorable(version, store)
