"""Rollouts in the registry: one at a time for a model, every transition a link of the log (ROLL-1).

The state machine decides and writes nothing; here what it decided is kept, if nobody was faster.
The production pointer moves in the transaction that ends the rollout: whoever is killed before
that finds it held, and finishes it.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from sluice.base.artifacts import ArtifactStore
from sluice.base.digests import digest_json
from sluice.base.errors import GateBlocked, IntegrityError, RolloutConflict, UnknownVersion
from sluice.registry import (
    admission,
    approval,
    production_check,
    promotion,
    queries,
    rollout_rows,
)
from sluice.registry.client_secret import find_secret, insert_secret
from sluice.registry.ledger import Ledger
from sluice.registry.observations import Observations, insert_note
from sluice.registry.records import Pointer, Version
from sluice.registry.refusal_recording import records_refusals
from sluice.registry.sample_removal import Erased, erase_user
from sluice.registry.traced import traced
from sluice.rollout import changes
from sluice.rollout.agreement import Agreement
from sluice.rollout.settings import RolloutSettings
from sluice.rollout.state import Rollout, Transition
from sluice.rollout.weights import Weights, weights_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedWeights:
    """Split of the traffic, and the state of the registry that it was checked in."""

    weights: Weights | None
    fingerprint: str


class RolloutLedger(Ledger):
    """The registry of one database, with the rollouts of its models."""

    @property
    def observations(self) -> Observations:
        """What servers saw, in the same database."""
        return Observations(self._database)

    def rollout(self, model: str) -> Rollout | None:
        """Return the model's last rollout as it was last looked at; None when it never had one.

        Raises:
            IntegrityError: It was changed past the ledger.
        """
        with self._database.read() as connection:
            return rollout_rows.load_last(connection, model)

    def rollout_ids(self, model: str) -> list[str]:
        """Return the ids of all rollouts of a model, oldest first."""
        with self._database.read() as connection:
            return rollout_rows.model_rollouts(connection, model)

    def rollout_transitions(self, rollout_id: str) -> list[Transition]:
        """Return what happened to a rollout, oldest first; a hold leaves no line."""
        with self._database.read() as connection:
            return rollout_rows.load_transitions(connection, rollout_id)

    def weights(self, model: str) -> Weights | None:
        """Return who answers now, once the registry agrees; None while nothing is in production.

        Raises:
            RegistryUnsound: The registry contradicts itself about what serves.
        """
        return self.checked_weights(model, known=None).weights

    def checked_weights(self, model: str, *, known: str | None) -> CheckedWeights:
        """Return who answers now, and the fingerprint of what was checked; what a server polls.

        Args:
            model: Its name.
            known: Fingerprint of the last check, which is not repeated while it is the same; None
                repeats it.

        Raises:
            RegistryUnsound: The registry contradicts itself about what serves; or, with a key,
                something was not signed.
        """
        if known is not None:
            with self._database.read() as connection:
                if production_check.fingerprint(connection, model) == known:
                    return CheckedWeights(weights=_weights(connection, model), fingerprint=known)
        kept = self._kept()
        with self._database.read() as connection:
            fingerprint = production_check.fingerprint(connection, model)
            production_check.require_production(connection, model)
            self._require_signed(connection, kept)
            return CheckedWeights(weights=_weights(connection, model), fingerprint=fingerprint)

    def require_secret(self, model: str) -> None:
        """Make the model's secret, which places its users, where it has none yet.

        A server does so before it answers anybody. All servers share what the first one made, and
        it stays: with another one every user would be placed again, and samples of a user could be
        found no more.

        Raises:
            StorageError: The registry cannot be written.
        """
        at = self._clock()
        with self._database.write() as connection:
            insert_secret(connection, model, at=at)

    @traced
    def erase_user(self, model: str, user: str) -> Erased:
        """Delete every sample of a user: its features, what was answered, and its rows' names.

        Counts, verdicts and transitions are sums over many clients, and stay as they are.

        Args:
            model: Its name.
            user: Key that the requests named as ``user``.

        Raises:
            StorageError: The registry cannot be written; nothing was deleted.
        """
        with self._database.write() as connection:
            return erase_user(connection, model, user)

    @traced
    @records_refusals("rollout")
    def start_rollout(
        self,
        model: str,
        version: int,
        settings: RolloutSettings,
        *,
        actor: str,
        reason: str,
        agreement: Agreement | None = None,
        rules: str | None = None,
    ) -> Transition:
        """Start bringing a version into production, on the evidence a promotion needs.

        Args:
            model: Its name.
            version: The challenger's number.
            settings: Stay with the rollout.
            actor: Who, for the record.
            reason: Why, for the record.
            agreement: Of both models on held-out rows, kept in the same transaction: a rollout
                whose start was cut short must not go on without that guard. None when nobody
                measured it; then predictions are not compared.
            rules: Digest of the settings that the verdict must have been given under; None from
                whoever has none, a person.

        Raises:
            UnknownVersion: There is no such version.
            RolloutConflict: Another rollout of the model is under way; the message says whose.
            GateBlocked: The evidence is missing, says no, is about something else or was given
                under other rules; or nothing is in production that it could be compared with, or
                the version itself is.
            IntegrityError: A receipt or the lineage was changed after it was written, or the
                registry contradicts itself about what is in production.
        """
        promotion.require_words(actor=actor, reason=reason)
        at = self._clock()
        with self._write(actor) as connection:
            self._require_whole(connection)
            found = queries.find_version(connection, model, number=version)
            if found is None:
                raise admission.unknown(model, version, queries.model_names(connection))
            queries.lock_model(connection, model, at=at)
            pointer = queries.load_pointer(connection, model)
            last = rollout_rows.load_last(connection, model)
            if last is not None and not last.is_over:
                raise _under_way(connection, last)
            production_check.require_production(connection, model, version)
            production = _require_other_production(connection, found, pointer)
            receipt = promotion.require_evidence(
                connection, found, pointer=pointer, reinstate=False, rules=rules
            )
            approval.require(
                connection, self._keys, found, pointer=pointer, promotion=receipt, at=at
            )
            epoch = pointer.revision + 1
            if last is not None:
                epoch += last.epoch - last.pointer_revision
            transition = changes.begin(
                identity=digest_json([model, found.candidate, production.candidate, epoch]),
                model=model,
                version=version,
                candidate=found.candidate,
                production=production.candidate,
                production_version=production.number,
                pointer_revision=pointer.revision,
                epoch=epoch,
                settings=settings,
                actor=actor,
                reason=reason,
                now=at,
            )
            rollout_rows.insert(connection, transition, receipt=receipt)
            if agreement is not None:
                insert_note(connection, transition.rollout.id, "agreement", agreement, at=at)
        return transition

    @traced
    @records_refusals("rollout")
    def record_transition(self, before: Rollout, transition: Transition) -> None:
        """Keep what was decided about ``before``; a hold keeps only what was learnt.

        Raises:
            RolloutConflict: The rollout was changed since ``before`` was read.
            GateBlocked: The transition promotes; ``finish_rollout`` does that.
        """
        if transition.outcome in ("start", "promote"):
            raise GateBlocked(
                f"A transition {transition.outcome} cannot be recorded by itself.",
                fix="Use start_rollout and finish_rollout, which check the evidence.",
            )
        with self._write(transition.actor) as connection:
            queries.lock_model(connection, before.model, at=transition.at)
            rollout_rows.move(connection, transition, revision=before.revision)

    @traced
    @records_refusals("rollout")
    def finish_rollout(
        self, model: str, *, actor: str, store: ArtifactStore, rules: str | None = None
    ) -> Transition:
        """Promote the challenger of a rollout whose every step held; repeat it after a crash.

        The pointer and the rollout move together or not at all. A challenger that may not be
        promoted any more, or does not load, is rolled back with the reason.

        Args:
            model: Its name.
            actor: Who, for the history.
            store: Where the artifacts lie; all are read back and the networks loaded first.
            rules: As in ``start_rollout``.

        Returns:
            The transition promote or roll_back; the last one again when it had ended before.

        Raises:
            UnknownVersion: The model never had a rollout.
            RolloutConflict: Its last step has not held, or somebody changed it in the meantime.
            RegistryUnsound: The registry contradicts itself about what is in production.
        """
        with self._database.read() as connection:
            rollout = _require_finished(connection, model)
            if rollout.is_over:
                return rollout_rows.load_transitions(connection, rollout.id)[-1]
            production_check.require_sound(connection, model, [rollout.production_version])
        try:
            return self._promote_held(rollout, actor=actor, store=store, rules=rules)
        except (GateBlocked, IntegrityError) as error:
            transition = changes.withdraw(
                rollout,
                now=self._clock(),
                reason=f"Every step held, and it cannot be promoted: {error.what} {error.cause}",
                remedy=error.fix,
            )
        self.record_transition(rollout, transition)
        return transition

    def _promote_held(
        self, rollout: Rollout, *, actor: str, store: ArtifactStore, rules: str | None
    ) -> Transition:
        from sluice.registry import loading  # brings torch

        model = rollout.model
        with self._database.read() as connection:
            version = queries.load_version(connection, model, rollout.version)
            pointer = promotion.check_expected(connection, model, rollout.production_version)
            promotion.require_evidence(
                connection, version, pointer=pointer, reinstate=False, rules=rules
            )
        loading.require_loadable(version, store)
        at: datetime = self._clock()
        reason = f"every step of rollout {rollout.id[:12]} held"
        transition = changes.promote(rollout, now=at, actor=actor, reason=f"Because {reason}.")
        with self._write(actor) as connection:
            self._require_whole(connection)
            queries.lock_model(connection, model, at=at)
            # Loading takes seconds: a newer verdict may have been filed since.
            receipt = promotion.require_evidence(
                connection, version, pointer=pointer, reinstate=False, rules=rules
            )
            approval.require(
                connection, self._keys, version, pointer=pointer, promotion=receipt, at=at
            )
            promotion.commit_move(
                connection,
                version,
                action="promote",
                pointer=pointer,
                at=at,
                actor=actor,
                reason=reason,
                receipt=receipt,
            )
            rollout_rows.move(connection, transition, revision=rollout.revision)
        return transition


def _weights(connection: Connection, model: str) -> Weights | None:
    pointer = queries.load_pointer(connection, model)
    if pointer.version is None:
        return None
    return weights_of(
        _last_checked(connection, model),
        production=queries.candidate_of(connection, model, pointer.version),
        pointer_revision=pointer.revision,
        secret=find_secret(connection, model),
    )


def _last_checked(connection: Connection, model: str) -> Rollout | None:
    """Return the model's last rollout; one that was changed past the ledger is a finding."""
    try:
        return rollout_rows.load_last(connection, model)
    except IntegrityError:
        production_check.require_production(connection, model)
        raise


def _require_other_production(
    connection: Connection, version: Version, pointer: Pointer
) -> Version:
    """Return what is in production, which must be another version."""
    if pointer.version is None:
        raise GateBlocked(
            f"{version.model} has nothing in production that version {version.number} could be "
            "compared with.",
            fix=f"Promote the first one: sluice registry promote {version.model} {version.number}",
        )
    if pointer.version == version.number:
        raise GateBlocked(
            f"{version.model} version {version.number} is in production already.",
            fix="Train and judge another candidate.",
        )
    return queries.load_version(connection, version.model, pointer.version)


def _require_finished(connection: Connection, model: str) -> Rollout:
    rollout = rollout_rows.load_last(connection, model)
    if rollout is None:
        raise UnknownVersion(f"{model} never had a rollout.", fix="Start one first.")
    if rollout.phase in ("rolling", "paused"):
        raise RolloutConflict(
            f"The rollout of {model} version {rollout.version} is {rollout.phase} at step "
            f"{rollout.step + 1} of {len(rollout.settings.steps)}.",
            fix="Promote it when its last step has held.",
        )
    return rollout


def _under_way(connection: Connection, rollout: Rollout) -> RolloutConflict:
    first = rollout_rows.load_transitions(connection, rollout.id)[0]
    return RolloutConflict(
        f"A rollout of {rollout.model} version {rollout.version} is {rollout.phase} already, at "
        f"{100 * rollout.share:g} % of the traffic.",
        cause=f"{first.actor} started it at {first.at:%Y-%m-%d %H:%M:%S} UTC ({first.reason}).",
        fix=f"Wait for its end, or abort it: sluice rollout abort {rollout.model}",
    )
