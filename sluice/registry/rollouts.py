"""Rollouts in the registry: one active rollout per model, with every transition in the log.

The state machine of ``sluice.rollout`` decides, but writes nothing. This module stores the
transitions with compare-and-swap. The production pointer moves in the transaction that ends the
rollout. If a crash prevents this transaction, the rollout still awaits promotion and can be
finished later.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_json
from sluice.base.errors import (
    ApprovalMissing,
    GateBlocked,
    IntegrityError,
    RolloutConflict,
    UnknownVersion,
)
from sluice.registry import approval, production_check, promotion, queries, rollout_rows, validation
from sluice.registry.approval_settings import ApprovalSettings
from sluice.registry.ledger import Ledger
from sluice.registry.model_secret import find_secret, insert_secret
from sluice.registry.observations import Observations, insert_note
from sluice.registry.records import ProductionPointer, Version
from sluice.registry.refusal_recording import records_refusals
from sluice.registry.sample_deletion import ErasureReport, erase_user
from sluice.registry.spans import spanned
from sluice.rollout import transitions
from sluice.rollout.prediction_agreement import PredictionAgreement
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout, Transition
from sluice.rollout.traffic_split import TrafficSplit, split_in_force


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedTrafficSplit:
    """Traffic split, with the fingerprint of the registry state in which it was verified."""

    split: TrafficSplit | None
    """The split; None while nothing is in production."""

    fingerprint: str


class RolloutLedger(Ledger):
    """Model registry in one database, including the rollouts of its models."""

    @property
    def observations(self) -> Observations:
        """Observations of servers, in the same database."""
        return Observations(self._database)

    def rollout(self, model: str) -> Rollout | None:
        """Return the last rollout of a model, in its state after the last check, or None.

        Raises:
            IntegrityError: The rollout cannot be read, or does not match its last transition.
        """
        with self._database.read() as connection:
            return rollout_rows.load_last(connection, model)

    def rollout_ids(self, model: str) -> list[str]:
        """Return the ids of all rollouts of a model, oldest first."""
        with self._database.read() as connection:
            return rollout_rows.load_rollout_ids(connection, model)

    def rollout_transitions(self, rollout_id: str) -> list[Transition]:
        """Return the transitions of a rollout, oldest first.

        A check with the outcome wait is not stored as a transition.
        """
        with self._database.read() as connection:
            return rollout_rows.load_transitions(connection, rollout_id)

    def traffic_split(self, model: str) -> TrafficSplit | None:
        """Return the verified current traffic split; None while nothing is in production.

        Raises:
            RegistryInconsistent: See ``verified_traffic_split``.
        """
        return self.verified_traffic_split(model, last_fingerprint=None).split

    def verified_traffic_split(
        self, model: str, *, last_fingerprint: str | None
    ) -> VerifiedTrafficSplit:
        """Return the traffic split and the fingerprint of the verified state; polled by servers.

        Args:
            model: Name of the model.
            last_fingerprint: Fingerprint from the last verification. If the registry still has this
                fingerprint, the verification is skipped. None to verify in any case.

        Raises:
            RegistryInconsistent: Registry entries about the served versions contradict each other;
                or the ledger has a key, and a line is not signed.
        """
        if last_fingerprint is not None:
            with self._database.read() as connection:
                if production_check.compute_fingerprint(connection, model) == last_fingerprint:
                    return VerifiedTrafficSplit(
                        split=_traffic_split(connection, model), fingerprint=last_fingerprint
                    )
        anchor = self._read_anchor()
        with self._database.read() as connection:
            fingerprint = production_check.compute_fingerprint(connection, model)
            production_check.require_consistent_production(connection, model)
            self._require_signed(connection, anchor)
            return VerifiedTrafficSplit(
                split=_traffic_split(connection, model), fingerprint=fingerprint
            )

    def ensure_secret(self, model: str) -> None:
        """Create the secret with which users of the model are assigned to arms, unless it exists.

        A server calls this method before it answers requests. All servers share the secret, which
        never changes. With a new secret, all users would be assigned again, and their earlier
        samples could no longer be found and deleted.

        Raises:
            StorageError: The registry cannot be written.
        """
        at = self._clock()
        with self._database.write() as connection:
            insert_secret(connection, model, at=at)

    @spanned
    def erase_user(self, model: str, user: str) -> ErasureReport:
        """Delete all samples of a user: features, predictions and row keys.

        Counts, verdicts and transitions are kept, because they aggregate many clients.

        Args:
            model: Name of the model.
            user: User key, which clients send in the field ``user``.

        Raises:
            StorageError: The registry cannot be written. Nothing was deleted.
        """
        with self._database.write() as connection:
            return erase_user(connection, model, user)

    @spanned
    @records_refusals("rollout")
    def start_rollout(
        self,
        model: str,
        version: int,
        settings: RolloutSettings,
        *,
        actor: str,
        reason: str,
        agreement: PredictionAgreement | None = None,
        gate_settings_digest: str | None = None,
        approval_settings: ApprovalSettings | None = None,
    ) -> Transition:
        """Start the rollout of a version, which requires the same evidence as a promotion.

        Args:
            model: Name of the model.
            version: Number of the challenger.
            settings: Settings of the rollout, fixed for its duration.
            actor: Actor for the record.
            reason: Reason for the record.
            agreement: Agreement of both models' predictions on held-out rows. It is stored in the
                transaction that starts the rollout, so that an interrupted start leaves no rollout
                without it. None if it was not measured; no guard then compares predictions.
            gate_settings_digest: Digest of the gate, guard and suite settings under which the
                verdict must have been issued; None to skip this check (manual start).
            approval_settings: See ``require_promotable``.

        Raises:
            UnknownVersion: There is no such version.
            ApprovalMissing: A required approval is missing or has expired.
            RolloutConflict: Another rollout of the model is active; the message says who started
                it.
            GateBlocked: The evidence is missing, negative, about another subject or was issued
                under other settings; or nothing is in production; or the version is in production
                already.
            IntegrityError: A receipt or the lineage was changed after it was written, or the
                registry is inconsistent about the production version.
        """
        promotion.require_actor_and_reason(actor=actor, reason=reason)
        at = self._clock()
        with self._write(actor) as connection:
            self._require_valid_chain(connection)
            registered_version = queries.find_version(connection, model, number=version)
            if registered_version is None:
                raise validation.unknown_version_error(
                    model, version, queries.model_names(connection)
                )
            queries.lock_model(connection, model, at=at)
            pointer = queries.load_pointer(connection, model)
            last_rollout = rollout_rows.load_last(connection, model)
            if last_rollout is not None and not last_rollout.is_over:
                raise _active_rollout_error(connection, last_rollout)
            production_check.require_consistent_production(connection, model, version)
            production = _require_other_production(connection, registered_version, pointer)
            promotion_digest = approval.require_evidence_and_approval(
                connection,
                self._keys,
                registered_version,
                pointer,
                gate_settings_digest=gate_settings_digest,
                approval_settings=approval_settings,
                at=at,
            )
            # The epoch of the split in force, plus 1. It also counts the changes by earlier
            # rollouts; see ``split_in_force``.
            epoch = pointer.revision + 1
            if last_rollout is not None:
                epoch += last_rollout.epoch - last_rollout.pointer_revision
            transition = transitions.first_transition(
                rollout_id=digest_json(
                    [model, registered_version.candidate, production.candidate, epoch]
                ),
                model=model,
                version=version,
                candidate=registered_version.candidate,
                production=production.candidate,
                production_version=production.number,
                pointer_revision=pointer.revision,
                epoch=epoch,
                settings=settings,
                actor=actor,
                reason=reason,
                now=at,
            )
            rollout_rows.insert_rollout(connection, transition, receipt=promotion_digest)
            if agreement is not None:
                insert_note(connection, transition.rollout.id, "agreement", agreement, at=at)
        return transition

    @spanned
    @records_refusals("rollout")
    def record_transition(self, rollout: Rollout, transition: Transition) -> None:
        """Store a transition of ``rollout``; for the outcome wait, store only the new evidence.

        Raises:
            RolloutConflict: The rollout was changed since ``rollout`` was read.
            GateBlocked: The transition starts or promotes; see ``finish_rollout``.
        """
        if transition.outcome in ("start", "promote"):
            raise GateBlocked(
                f"The transition {transition.outcome} cannot be recorded separately.",
                fix="Use start_rollout and finish_rollout, which check the evidence.",
            )
        with self._write(transition.actor) as connection:
            queries.lock_model(connection, rollout.model, at=transition.at)
            rollout_rows.store_transition(
                connection, transition, expected_revision=rollout.revision
            )

    @spanned
    @records_refusals("rollout")
    def finish_rollout(
        self,
        model: str,
        *,
        actor: str,
        store: ArtifactStore,
        gate_settings_digest: str | None = None,
        approval_settings: ApprovalSettings | None = None,
    ) -> Transition:
        """Promote the challenger of a rollout after all steps passed; repeated calls do no harm.

        The pointer and the rollout change in one transaction. The rollout is rolled back in these
        cases, and its transition says why: the evidence no longer allows the promotion, another
        version was moved to production, or the challenger is damaged. The rollout still awaits
        promotion after one of these errors:

        - A required approval is missing. An approval that was valid when the rollout started does
          not expire during the rollout.
        - This process has other code than the training of the challenger. Servers with the right
          code can still serve the challenger.

        Args:
            model: Name of the model.
            actor: Actor for the history.
            store: Store of the artifacts. Before the promotion, all artifacts of the version are
                verified and its networks are loaded.
            gate_settings_digest: See ``start_rollout``.
            approval_settings: See ``require_promotable``.

        Returns:
            The transition promote or roll_back; the last transition if the rollout had ended
            before.

        Raises:
            UnknownVersion: The model has had no rollout.
            ApprovalMissing: A required approval is missing.
            RolloutConflict: The last step is not completed, or the rollout was changed
                concurrently.
            RegistryInconsistent: The registry is inconsistent about the production version.
            CodeMismatch, UntrustedCode: The challenger cannot be loaded by the code of this
                process. Repeat the call in a checkout of the challenger's code.
            GateBlocked: The signing key does not belong to the actor.
        """
        if self._keys is not None:
            # The key is checked before the promotion, which would roll the challenger back after
            # a GateBlocked.
            self._keys.require_own_actor(actor)
        with self._database.read() as connection:
            rollout = _load_completed_rollout(connection, model)
            if rollout.is_over:
                return rollout_rows.load_transitions(connection, rollout.id)[-1]
            production_check.require_consistent(connection, model, [rollout.production_version])
        try:
            return self._promote_challenger(
                rollout,
                actor=actor,
                store=store,
                gate_settings_digest=gate_settings_digest,
                approval_settings=approval_settings,
            )
        except ApprovalMissing:
            raise
        except (GateBlocked, IntegrityError) as error:
            transition = transitions.roll_back(
                rollout,
                now=self._clock(),
                reason="Every step passed, but the challenger cannot be promoted: "
                f"{error.what} {error.cause}",
                remedy=error.fix,
            )
        self.record_transition(rollout, transition)
        return transition

    def _promote_challenger(
        self,
        rollout: Rollout,
        *,
        actor: str,
        store: ArtifactStore,
        gate_settings_digest: str | None,
        approval_settings: ApprovalSettings | None,
    ) -> Transition:
        from sluice.registry import loading  # imports torch

        model = rollout.model
        with self._database.read() as connection:
            version = queries.load_version(connection, model, rollout.version)
            pointer = promotion.require_expected_version(
                connection, model, rollout.production_version, action="promote"
            )
            promotion.require_evidence(
                connection,
                version,
                pointer=pointer,
                reinstate=False,
                gate_settings_digest=gate_settings_digest,
            )
        loading.require_loadable(version, store)
        at: datetime = self._clock()
        reason = f"every step of rollout {rollout.id[:12]} passed"
        transition = transitions.promote(
            rollout,
            now=at,
            actor=actor,
            reason=f"Every step of rollout {rollout.id[:12]} passed.",
        )
        with self._write(actor) as connection:
            self._require_valid_chain(connection)
            queries.lock_model(connection, model, at=at)
            # The evidence is checked again, because loading takes seconds, and a newer verdict may
            # have been stored meanwhile.
            promotion_digest = approval.require_evidence_and_approval(
                connection,
                self._keys,
                version,
                pointer,
                gate_settings_digest=gate_settings_digest,
                approval_settings=approval_settings,
                at=at,
                valid_at=rollout.started_at,
            )
            promotion.commit_move(
                connection,
                version,
                action="promote",
                pointer=pointer,
                at=at,
                actor=actor,
                reason=reason,
                receipt=promotion_digest,
            )
            rollout_rows.store_transition(
                connection, transition, expected_revision=rollout.revision
            )
        return transition


def _traffic_split(connection: Connection, model: str) -> TrafficSplit | None:
    pointer = queries.load_pointer(connection, model)
    if pointer.version is None:
        return None
    return split_in_force(
        _load_last_rollout(connection, model),
        production=queries.candidate_of(connection, model, pointer.version),
        pointer_revision=pointer.revision,
        secret=find_secret(connection, model),
    )


def _load_last_rollout(connection: Connection, model: str) -> Rollout | None:
    """Return the last rollout of a model.

    Raises:
        RegistryInconsistent: The stored rollout cannot be read or was manipulated.
    """
    try:
        return rollout_rows.load_last(connection, model)
    except IntegrityError:
        production_check.require_consistent_production(connection, model)
        raise


def _require_other_production(
    connection: Connection, version: Version, pointer: ProductionPointer
) -> Version:
    """Return the production version, which must exist and differ from the given version."""
    if pointer.version is None:
        raise GateBlocked(
            f"{version.model} has no production version to compare version {version.number} with.",
            fix="Promote a first version: sluice registry promote "
            f"{version.model} {version.number} --reason '...'",
        )
    if pointer.version == version.number:
        raise GateBlocked(
            f"{version.model} version {version.number} is in production already.",
            fix="Train and evaluate another candidate.",
        )
    return queries.load_version(connection, version.model, pointer.version)


def _load_completed_rollout(connection: Connection, model: str) -> Rollout:
    """Return the last rollout of a model; reject a rollout with steps that did not pass yet."""
    rollout = rollout_rows.load_last(connection, model)
    if rollout is None:
        raise UnknownVersion(f"{model} has had no rollout.", fix="Start a rollout first.")
    if rollout.phase in ("rolling", "paused"):
        raise RolloutConflict(
            f"The rollout of {model} version {rollout.version} is {rollout.phase} at step "
            f"{rollout.step + 1} of {len(rollout.settings.steps)}.",
            fix="Promote the version after its last step has passed.",
        )
    return rollout


def _active_rollout_error(connection: Connection, rollout: Rollout) -> RolloutConflict:
    first_transition = rollout_rows.load_transitions(connection, rollout.id)[0]
    return RolloutConflict(
        f"A rollout of {rollout.model} version {rollout.version} is "
        f"{rollout.phase.replace('_', ' ')} already, at {100 * rollout.share:g} % of the traffic.",
        cause=f"{first_transition.actor} started it at "
        f"{first_transition.at:%Y-%m-%d %H:%M:%S} UTC ({first_transition.reason}).",
        fix=f"Wait until it ends, or abort it: sluice rollout abort {rollout.model}",
    )
