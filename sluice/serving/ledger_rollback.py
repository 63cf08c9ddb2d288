"""Executes each rollback that an alert requests once, and records the rollback in the ledger.

An alert is sent repeatedly while it fires, possibly by several senders at once. Each rollback
stores the key of its alert in the ledger. An alert whose key is found there does not cause the same
kind of rollback again. During a cooldown after a rollback, no alert moves production, because the
cause of the alert is probably the state that the rollback has just ended. If an alert about
production aborted a rollout and still fires after the cooldown, the rollout was not the cause, and
production is rolled back.
"""

from datetime import timedelta

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import PromotionConflict, RolloutConflict, UnknownVersion
from sluice.registry.readonly import Clock
from sluice.registry.records import HistoryEntry
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout import transitions
from sluice.rollout.state import Rollout, Transition
from sluice.serving.rollback import RollbackRequest, RollbackResult

ACTOR = "alertmanager"
"""Actor of these rollbacks in the ledger."""

_MAX_ATTEMPTS = 5
"""Maximum number of attempts if other processes change the registry at the same time."""
_MAX_CLOCK_SKEW = timedelta(minutes=1)
"""Maximum difference between the clocks of Prometheus and the registry. An alert that began to fire
more than this time before a change was not caused by the change."""


class LedgerRollback:
    """Aborts the rollout of one model, or moves the production pointer of the model back."""

    def __init__(
        self,
        ledger: RolloutLedger,
        model: str,
        store: ArtifactStore,
        *,
        clock: Clock,
        cooldown_s: float,
    ) -> None:
        """Store the arguments; ``handle`` reads the registry.

        Args:
            ledger: Registry of the model.
            model: Name of the model.
            store: Artifact store with the files of the previous version.
            clock: Clock that dates the rollbacks.
            cooldown_s: Time after a rollback in which alerts do not move production [s].
        """
        self._ledger = ledger
        self._model = model
        self._store = store
        self._clock = clock
        self._cooldown = timedelta(seconds=cooldown_s)

    def handle(self, request: RollbackRequest) -> RollbackResult:
        """Abort the rollout in progress if the alert began to fire after the rollout started.

        Otherwise, roll production back if the requested action is ``rollback_production``.

        Raises:
            SluiceError: The registry cannot be read or written, or the previous version does not
                load. Nothing was changed.
        """
        for _ in range(_MAX_ATTEMPTS - 1):
            try:
                return self._handle(request)
            except (RolloutConflict, PromotionConflict):  # another process changed the registry
                continue
        return self._handle(request)

    def _handle(self, request: RollbackRequest) -> RollbackResult:
        rollout = self._ledger.rollout(self._model)
        if rollout is not None and not rollout.is_over:
            is_older_than_rollout = request.began_at < rollout.started_at - _MAX_CLOCK_SKEW
            if not is_older_than_rollout:
                return self._abort(rollout, request)
            if request.action == "rollback":
                return _no_effect(
                    f"The alert has fired since {_format_time(request.began_at)}, before "
                    f"{_rollout_name(rollout)} began at {_format_time(rollout.started_at)}. So the "
                    "rollout is not the cause of the alert."
                )
        last_transition = (
            None if rollout is None else self._ledger.rollout_transitions(rollout.id)[-1]
        )
        if request.action == "rollback":  # this action never moves production
            if last_transition is not None and _alert_marker(request) in last_transition.reason:
                return _no_effect(
                    f"This alert already aborted {_rollout_name(last_transition.rollout)}."
                )
            return _no_effect(f"No rollout of {self._model} is in progress.")
        return self._roll_back(request, last_transition)

    def _abort(self, rollout: Rollout, request: RollbackRequest) -> RollbackResult:
        transition = transitions.abort(
            rollout, now=self._clock(), actor=ACTOR, reason=_reason(request)
        )
        self._ledger.record_transition(rollout, transition)
        return RollbackResult(
            act="aborted", what=f"Aborted {_rollout_name(rollout)}; production answers all users."
        )

    def _roll_back(
        self, request: RollbackRequest, last_transition: Transition | None
    ) -> RollbackResult:
        history = self._ledger.history(self._model)
        moves = [entry for entry in history if entry.revision is not None]
        if not moves:
            return _no_effect(f"No version of {self._model} is in production.")
        reason_to_keep = self._reason_to_keep(request, moves, last_transition)
        if reason_to_keep:
            return _no_effect(reason_to_keep)
        try:
            rollback = self._ledger.rollback(
                self._model,
                expected=moves[-1].to_version,
                actor=ACTOR,
                reason=_reason(request),
                store=self._store,
            )
        except UnknownVersion as error:
            return _no_effect(f"{error.what} {error.cause}")
        return RollbackResult(
            act="rolled_back",
            what=f"Rolled {self._model} back from version {rollback.previous} to "
            f"{rollback.version}. {rollback.code}".rstrip(),
        )

    def _reason_to_keep(
        self,
        request: RollbackRequest,
        moves: list[HistoryEntry],
        last_transition: Transition | None,
    ) -> str:
        """Return why production must not be rolled back; empty if it may.

        Args:
            request: Alert that requests the rollback.
            moves: Changes of the production pointer, oldest first; not empty.
            last_transition: Last transition of the last rollout, if any.
        """
        moves_by_this_alert = [move for move in moves if _alert_marker(request) in move.reason]
        if moves_by_this_alert:
            return (
                f"This alert already rolled back to version {moves_by_this_alert[-1].to_version}."
            )
        move = moves[-1]
        if request.began_at < move.at - _MAX_CLOCK_SKEW:
            return (
                f"The alert has fired since {_format_time(request.began_at)}, before version "
                f"{move.to_version} entered production at {_format_time(move.at)}. So this "
                "version is not the cause of the alert."
            )
        rollback_times = [move.at] if move.action == "rollback" else []
        if last_transition is not None and last_transition.outcome in ("abort", "roll_back"):
            rollback_times.append(last_transition.at)
        if rollback_times and self._clock() < max(rollback_times) + self._cooldown:
            return (
                f"The last rollback was at {_format_time(max(rollback_times))}. Production does "
                f"not change for {self._cooldown.total_seconds():g} s after a rollback."
            )
        return ""


def _alert_marker(request: RollbackRequest) -> str:
    return f"[alert {request.key}]"


def _reason(request: RollbackRequest) -> str:
    return f"{request.reason} {_alert_marker(request)}"


def _no_effect(why: str) -> RollbackResult:
    return RollbackResult(act="nothing", what=why.strip())


def _rollout_name(rollout: Rollout) -> str:
    return f"the rollout of {rollout.model} version {rollout.version}"


def _format_time(moment: object) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
