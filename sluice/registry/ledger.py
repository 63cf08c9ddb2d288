"""The model registry: versions, receipts, decisions, and the production pointer of each model.

Versions are immutable and numbered from 1 per model. A promotion verifies the receipts and the
decision of a version again, and cannot be forced. Every added row is chained in the log, and every
history entry is an event that can be published.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import GateBlocked
from sluice.base.receipts import Receipt
from sluice.observability import spans
from sluice.registry import (
    append_only,
    approval,
    approval_checks,
    evidence,
    log_signatures,
    log_verification,
    outbox,
    production_check,
    promotion,
    queries,
    stage_changes,
    validation,
    verification,
)
from sluice.registry.anchor import AnchorSnapshot, anchor_of
from sluice.registry.approval_settings import ApprovalSettings
from sluice.registry.code_paths import CodeAcceptance
from sluice.registry.evidence import DecisionFunction
from sluice.registry.keyring import Keyring
from sluice.registry.lineage import Lineage
from sluice.registry.outbox import Deliver, Publication
from sluice.registry.records import (
    ApprovalStatus,
    HistoryAction,
    Promotion,
    Registration,
    RegistryFinding,
    Version,
)
from sluice.registry.refusal_recording import records_refusals
from sluice.registry.signed_ledger import SignedLedger
from sluice.registry.signing import SigningKey
from sluice.registry.spans import spanned


class Ledger(SignedLedger):
    """Model registry in one database. Use as a context manager, or call ``close``."""

    @spanned
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
        """Register a candidate as the next version; a registered candidate keeps its version.

        If the existing version was imported, the lineage of the local training replaces the
        imported lineage. The candidate digest does not cover everything in a lineage, for example
        not the results and the drift reference.

        The receipts are linked to the version. If a receipt was linked before, it becomes the
        latest of its gate, except for a promotion receipt, because its decision is final.

        Raises:
            ContractError: The lineage is of another model, or its digests do not match its content;
                or the subject of a promotion receipt lacks the candidate, the reference or the
                window; or a promotion receipt contradicts an earlier decision.
        """
        validation.require_consistent_lineage(model, lineage)
        spans.link_candidate(lineage.candidate)
        at = self._clock()
        with self._write(actor) as connection:
            queries.lock_model(connection, model, at=at)
            existing_version = queries.find_version(connection, model, candidate=lineage.candidate)
            number = (
                existing_version.number
                if existing_version
                else queries.insert_version(connection, lineage, at=at)
            )
            was_imported = existing_version is not None and existing_version.is_imported
            if existing_version is not None and was_imported:
                queries.insert_local_lineage(connection, existing_version, lineage, at=at)
                reason = validation.registration_reason(
                    reason, imported_lineage=existing_version.lineage, local_lineage=lineage
                )
            if existing_version is None or was_imported:
                spans.start_candidate_trace(lineage.candidate, model=model, version=number)
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
                    evidence.store_external_decision(connection, model, receipt, at=at)
            evidence.link_receipts(connection, receipts, model=model, number=number, at=at)
            version = queries.load_version(connection, model, number)
            old_state = existing_version.state if existing_version else "dev"
            stage_changes.record_stage_change(
                connection, version, old_state=old_state, at=at, actor=actor
            )
        return Registration(version=version, created=existing_version is None)

    @records_refusals("import")
    def import_version(
        self,
        lineage: Lineage,
        receipts: Sequence[Receipt],
        *,
        actor: str,
        reason: str,
        code: CodeAcceptance,
    ) -> Registration:
        """Import a version of another registry in state dev.

        The imported receipts are stored and shown, but they cannot be used for a promotion, because
        no local gate issued them. If the candidate was imported before, only newly accepted or
        trusted import paths are added to the history. If it was trained here, nothing changes.

        Args:
            lineage: Lineage from the other registry.
            receipts: Receipts from the other registry.
            actor: Actor for the history.
            reason: Origin of the version, for the history.
            code: Import paths of user code that were accepted or trusted, for the history.

        Raises:
            ContractError: The digests in the lineage do not match its content; or the candidate was
                imported before from a file with other results.
        """
        promotion.require_actor_and_reason(actor=actor, reason=reason)
        model = lineage.model
        validation.require_consistent_lineage(model, lineage)
        at = self._clock()
        with self._write(actor) as connection:
            queries.lock_model(connection, model, at=at)
            existing_version = queries.find_version(connection, model, candidate=lineage.candidate)
            if existing_version is not None and not existing_version.is_imported:
                return Registration(version=existing_version, created=False)
            entries: list[tuple[HistoryAction, str]] = [
                *(("accept", path) for path in code.accepted_paths),
                *(("trust", path) for path in code.trusted_paths),
            ]
            if existing_version is None:
                number = queries.insert_version(connection, lineage, at=at)
                entries.insert(0, ("import", reason))
                evidence.save_imported_receipts(
                    connection, receipts, model=model, number=number, at=at
                )
            else:
                validation.require_same_results(existing_version.lineage, lineage)
                number = existing_version.number
                recorded_entries = {
                    *(("accept", path) for path in existing_version.accepted_code),
                    *(("trust", path) for path in existing_version.trusted_code),
                }
                entries = [entry for entry in entries if entry not in recorded_entries]
            for action, text in entries:
                queries.append_history(
                    connection,
                    at=at,
                    model=model,
                    action=action,
                    from_version=None,
                    to_version=number,
                    actor=actor,
                    reason=text,
                    receipt=None,
                    revision=None,
                )
            version = queries.load_version(connection, model, number)
        return Registration(version=version, created=existing_version is None)

    def record_receipt(self, receipt: Receipt, *, actor: str | None = None) -> None:
        """Store a gate's receipt before a version exists to which it can be linked.

        Args:
            receipt: The receipt.
            actor: Person who requested the receipt, and who must own the signing key; None for a
                gate.
        """
        at = self._clock()
        with self._write(actor) as connection:
            evidence.record_receipt(connection, receipt, at=at)

    def decide(
        self, model: str, subject: Mapping[str, str], make_decision: DecisionFunction
    ) -> Receipt:
        """Return the stored decision on a subject; if there is no decision yet, make and store it.

        The first decision on a subject is final. No lock is held while ``make_decision`` runs. If
        another decision on the model is stored meanwhile, ``make_decision`` runs again and gets
        this decision, too. Each decision counts as a separate attempt on its window.

        Args:
            model: Name of the model.
            subject: Digests of candidate, reference and window.
            make_decision: Called with the earlier decisions on the model, oldest first; returns the
                receipt of its decision.

        Raises:
            ContractError: A digest is missing, or the receipt has another subject.
        """
        subject_digests = validation.decision_key(subject)
        while True:
            with self._database.read() as connection:
                decision = evidence.load_decision(connection, {"model": model} | subject_digests)
                earlier_decisions = evidence.load_decisions(connection, model)
            if decision is not None:
                return decision
            receipt = make_decision(earlier_decisions)
            validation.require_matching_receipt(receipt, subject_digests)
            at = self._clock()
            with self._write() as connection:
                queries.lock_model(connection, model, at=at)
                if evidence.count_decisions(connection, model) == len(earlier_decisions):
                    return evidence.store_decision(connection, model, receipt, at=at)

    def require_promotable(
        self,
        model: str,
        version: int,
        *,
        gate_settings_digest: str | None = None,
        approval_settings: ApprovalSettings | None = None,
    ) -> None:
        """Reject a version whose recorded evidence or approvals do not allow a promotion.

        Args:
            model: Name of the model.
            version: Number of the version.
            gate_settings_digest: Digest of the gate, guard and suite settings under which the
                verdict must have been issued; None to skip this check.
            approval_settings: Approval settings of the pipeline; None for a command that does not
                know them. An approval that the promotion receipt requires is required in any case.

        Raises:
            UnknownVersion: There is no such version.
            ApprovalMissing: A required approval is missing or has expired.
            GateBlocked: The evidence is missing, negative, about another subject, or was issued
                under other settings.
            IntegrityError: A receipt or the lineage was changed after it was written, or the
                registry is inconsistent about the production version.
        """
        with self._database.read() as connection:
            registered_version = queries.find_version(connection, model, number=version)
            if registered_version is None:
                raise validation.unknown_version_error(
                    model, version, queries.model_names(connection)
                )
            production_check.require_consistent_production(connection, model, version)
            pointer = queries.load_pointer(connection, model)
            approval.require_evidence_and_approval(
                connection,
                self._keys,
                registered_version,
                pointer,
                gate_settings_digest=gate_settings_digest,
                approval_settings=approval_settings,
                at=self._clock(),
            )

    def approval_status(
        self,
        model: str,
        version: int,
        *,
        approval_settings: ApprovalSettings | None = None,
        valid_at: datetime | None = None,
    ) -> ApprovalStatus:
        """Return which approval the next promotion of a version requires, and which is recorded.

        An approval is never required in two cases: the version is in production, or its promotion
        is blocked, for example because its verdict against the version in production is not
        PROMOTE.

        Args:
            model: Name of the model.
            version: Number of the version.
            approval_settings: See ``require_promotable``.
            valid_at: Time at which the approval must not have expired; None means now. At the end
                of a rollout, it is the start of the rollout.
        """
        with self._database.read() as connection:
            registered_version = queries.load_version(connection, model, version)
            pointer = queries.load_pointer(connection, model)
            try:
                promotion_digest = promotion.require_evidence(
                    connection,
                    registered_version,
                    pointer=pointer,
                    reinstate=True,  # a version that was rolled back may be approved, too
                    gate_settings_digest=None,
                )
            except GateBlocked:
                return ApprovalStatus(required=False, approval=None)
            return approval.find_status(
                connection,
                self._keys,
                registered_version,
                pointer=pointer,
                promotion_digest=promotion_digest,
                settings=approval_settings,
                at=self._clock(),
                valid_at=valid_at,
            )

    @spanned
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
        gate_settings_digest: str | None = None,
        approval_settings: ApprovalSettings | None = None,
    ) -> Promotion:
        """Promote a version to production on the evidence recorded for it.

        Args:
            model: Name of the model.
            version: Number of the version. If this version is in production already, nothing
                changes.
            expected: Number of the version that the caller expects in production; None if the
                caller expects that no version is in production.
            actor: Actor for the history.
            reason: Reason for the history.
            store: Store of the artifacts. Before the promotion, all artifacts of the version are
                verified and its networks are loaded.
            reinstate: Whether to accept a promotion receipt from before a rollback of this version.
                All gates still apply.
            gate_settings_digest: Digest of the gate, guard and suite settings under which the
                verdict must have been issued; None to skip this check (manual promotion).
            approval_settings: See ``require_promotable``.

        Raises:
            UnknownVersion: There is no such version.
            ApprovalMissing: A required approval is missing or has expired.
            GateBlocked: The evidence is missing, negative, about another subject, or was issued
                under other settings.
            PromotionConflict: The production version is not ``expected``.
            IntegrityError: An artifact, receipt or lineage is missing or was changed; or the
                registry is inconsistent about the production version.
            CodeMismatch, UntrustedCode: The version cannot be loaded by the code of this process.
        """
        promotion.require_actor_and_reason(actor=actor, reason=reason)
        with self._database.read() as connection:
            registered_version = queries.find_version(connection, model, number=version)
            if registered_version is None:
                raise validation.unknown_version_error(
                    model, version, queries.model_names(connection)
                )
            spans.link_candidate(registered_version.candidate)
            production_check.require_consistent_production(connection, model, version)
            pointer = queries.load_pointer(connection, model)
            promotion.require_current_gate_settings(
                connection,
                registered_version,
                pointer=pointer,
                gate_settings_digest=gate_settings_digest,
            )
            if pointer.version == version:
                return Promotion(
                    model=model,
                    version=version,
                    previous=version,
                    moved=False,
                    revision=pointer.revision,
                    at=None,
                )
            promotion.require_expected_version(connection, model, expected, action="promote")
            approval.require_evidence_and_approval(
                connection,
                self._keys,
                registered_version,
                pointer,
                gate_settings_digest=gate_settings_digest,
                approval_settings=approval_settings,
                at=self._clock(),
                reinstate=reinstate,
            )
        _require_loadable(registered_version, store)
        at = self._clock()
        with self._write(actor) as connection:
            self._require_valid_chain(connection)
            queries.lock_model(connection, model, at=at)
            # The evidence is checked again, because loading takes seconds, and a newer verdict may
            # have been stored meanwhile.
            promotion_digest = approval.require_evidence_and_approval(
                connection,
                self._keys,
                registered_version,
                pointer,
                gate_settings_digest=gate_settings_digest,
                approval_settings=approval_settings,
                at=at,
                reinstate=reinstate,
            )
            return promotion.commit_move(
                connection,
                registered_version,
                action="promote",
                pointer=pointer,
                at=at,
                actor=actor,
                reason=reason,
                receipt=promotion_digest,
            )

    @spanned
    @records_refusals("rollback")
    def rollback(
        self, model: str, *, expected: int, actor: str, reason: str, store: ArtifactStore
    ) -> Promotion:
        """Restore the production version before ``expected``, skipping rolled-back versions.

        A repeated rollback goes further back, at most to the first promotion. A rollback moves only
        the pointer, not the code. The result reports whether the restored version was trained with
        other code.

        Raises:
            UnknownVersion: Nothing is in production, or there is no earlier version.
            PromotionConflict: The production version is not ``expected``.
            IntegrityError: The earlier version cannot be loaded, or registry entries about the
                pointer or that version contradict each other. The pointer is unchanged.
            UntrustedCode: The earlier version was imported, and names code that is not accepted.
                The pointer is unchanged.
        """
        promotion.require_actor_and_reason(actor=actor, reason=reason)
        with self._database.read() as connection:
            pointer = promotion.require_expected_version(
                connection, model, expected, action="rollback"
            )
            number = promotion.find_rollback_target(connection, model, pointer)
            production_check.require_consistent(connection, model, [number])
            target = queries.load_version(connection, model, number)
        spans.link_candidate(target.candidate)
        code_text = _require_restorable(target, store)
        with self._write(actor) as connection:
            self._require_valid_chain(connection)
            result = promotion.commit_move(
                connection,
                target,
                action="rollback",
                pointer=pointer,
                at=self._clock(),
                actor=actor,
                reason=reason,
                receipt=None,
            )
        return result.model_copy(update={"code": code_text})

    def publish(self, model: str, consumer: str, deliver: Deliver) -> Publication:
        """Deliver all pending history entries of a model to a consumer, in order.

        Each entry is delivered at least once. If the process is killed before a delivery is
        recorded, the next call repeats this delivery under the same key. After a failed delivery,
        the next call continues with the same entry.

        Args:
            model: Name of the model. For an unknown model, nothing is delivered.
            consumer: Name of the consumer. Deliveries are recorded under this name, so it must not
                change.
            deliver: Delivers one event, and returns the result.
        """
        with self._database.read() as connection:
            events = outbox.pending_events(connection, model, consumer)
        reasons: list[str] = []
        num_delivered = 0
        for event in events:
            result = deliver(event)
            reasons.append(result.reason)
            if not result.ok:
                break
            with self._database.write() as connection:
                outbox.mark_delivered(connection, event, consumer, at=self._clock())
            num_delivered += 1
        return Publication(
            delivered=num_delivered, waiting=len(events) - num_delivered, reasons=tuple(reasons)
        )

    def restore_triggers(self) -> int:
        """Recreate the triggers of the append-only tables; return their number.

        Raises:
            RegistryInconsistent: The log is inconsistent, for example because a row was edited
                while the triggers were missing.
        """
        with self._database.write() as connection:
            log_verification.require_valid_log(connection)
            return append_only.restore_triggers(connection)

    def verify(
        self, model: str | None, *, store: ArtifactStore, key: SigningKey | None = None
    ) -> list[RegistryFinding]:
        """Return all findings of a complete verification; [] if the registry is consistent.

        Args:
            model: Model whose artifacts, receipts and moves are verified; None for all. The log is
                always verified completely.
            store: Store of the artifacts.
            key: If given, also verify that every log line is signed and every signature is valid.

        Raises:
            UnknownVersion: There is no such model.
        """
        keys = None if key is None else Keyring.load(key)
        anchor = None if keys is None else AnchorSnapshot.take(anchor_of(keys, self.url))
        with self._database.read() as connection:
            model_names = queries.model_names(connection)
            if model is not None and model not in model_names:
                raise validation.unknown_version_error(model, None, model_names)
            chosen_models = model_names if model is None else [model]
            findings = list(verification.check(connection, chosen_models, store, url=self.url))
            findings += log_verification.check(connection)
            if keys is not None:
                findings += log_signatures.check(connection, keys, anchor=anchor)
            if not findings:  # the checks of approvals assume a consistent registry
                findings += approval_checks.check_required_approvals(connection, chosen_models)
                if keys is not None:
                    findings += approval_checks.check_signers(connection, keys, chosen_models)
        return findings


def _require_loadable(version: Version, store: ArtifactStore) -> None:
    from sluice.registry import loading  # imports torch, which most uses of the ledger do not need

    loading.require_loadable(version, store)


def _require_restorable(version: Version, store: ArtifactStore) -> str:
    from sluice.registry import loading  # imports torch, see _require_loadable

    return loading.require_restorable(version, store)
