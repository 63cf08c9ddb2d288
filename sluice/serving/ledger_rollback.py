"""Rollbacks requested by alerts, on the ledger; its history makes each of them happen once.

An alert is sent repeatedly while it fires, possibly by several senders at once. So each rollback
stores the alert's key in its reason, and an alert whose key is already there has no further
effect of that kind. Neither has an alert that fires right after a rollback: it is about the
state that the rollback ended. But an alert about production that still fires long after it
aborted a rollout was right about production.
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

_MAX_ATTEMPTS = 5
_MAX_CLOCK_SKEW = timedelta(minutes=1)
"""Largest difference between the clocks of Prometheus and the registry."""


class LedgerRollback:
    """Aborts the rollout of one model, or moves its production pointer back."""

    def __init__(
        self,
        ledger: RolloutLedger,
        model: str,
        store: ArtifactStore,
        *,
        clock: Clock,
        cooldown_s: float,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            ledger: Registry of the model.
            model: Name of the model.
            store: Stores the artifacts of the previous version.
            clock: Dates the rollbacks.
            cooldown_s: Time after a rollback in which alerts do not move production [s].
        """
        self._ledger = ledger
        self._model = model
        self._store = store
        self._clock = clock
        self._cooldown = timedelta(seconds=cooldown_s)

    def handle(self, request: RollbackRequest) -> RollbackResult:
        """Abort the rollout in progress; without one, roll production back if requested.

        Raises:
            SluiceError: The registry cannot be read or written, or the previous version does not
                load; nothing was changed.
        """
        for _ in range(_MAX_ATTEMPTS - 1):
            try:
                return self._handle(request)
            except (RolloutConflict, PromotionConflict):  # another process was faster: retry
                continue
        return self._handle(request)

    def _handle(self, request: RollbackRequest) -> RollbackResult:
        rollout = self._ledger.rollout(self._model)
        if rollout is not None and not rollout.is_over:
            is_older = request.began < rollout.started_at - _MAX_CLOCK_SKEW
            if request.action == "rollback" or not is_older:
                return self._abort(rollout, request, is_older=is_older)
        last = None if rollout is None else self._ledger.rollout_transitions(rollout.id)[-1]
        if request.action == "rollback":
            if last is not None and _alert_marker(request) in last.reason:
                return _nothing(f"This alert already aborted {_name(last.rollout)}.")
            return _nothing(f"No rollout of {self._model} is in progress.")
        return self._roll_back(request, last)

    def _abort(
        self, rollout: Rollout, request: RollbackRequest, *, is_older: bool
    ) -> RollbackResult:
        if is_older:
            return _nothing(
                f"The alert has fired since {_when(request.began)}, before {_name(rollout)} began "
                f"at {_when(rollout.started_at)}: it has another cause."
            )
        transition = transitions.abort(
            rollout, now=self._clock(), actor=ACTOR, reason=_reason(request)
        )
        self._ledger.record_transition(rollout, transition)
        return RollbackResult(
            act="aborted", what=f"Aborted {_name(rollout)}; production answers all users."
        )

    def _roll_back(self, request: RollbackRequest, last: Transition | None) -> RollbackResult:
        moves = [e for e in self._ledger.history(self._model) if e.revision is not None]
        if not moves:
            return _nothing(f"No version of {self._model} is in production.")
        blocked = self._reason_to_keep(request, moves, last)
        if blocked:
            return _nothing(blocked)
        try:
            moved = self._ledger.rollback(
                self._model,
                expected=moves[-1].to_version,
                actor=ACTOR,
                reason=_reason(request),
                store=self._store,
            )
        except UnknownVersion as error:
            return _nothing(f"{error.what} {error.cause}")
        return RollbackResult(
            act="rolled_back",
            what=f"Rolled {self._model} back from version {moved.previous} to {moved.version}. "
            f"{moved.code}".rstrip(),
        )

    def _reason_to_keep(
        self, request: RollbackRequest, moves: list[HistoryEntry], last: Transition | None
    ) -> str:
        """Return why production stays; empty when it may be rolled back."""
        earlier = [move for move in moves if _alert_marker(request) in move.reason]
        if earlier:
            return f"This alert already rolled back to version {earlier[-1].to_version}."
        move = moves[-1]
        if request.began < move.at - _MAX_CLOCK_SKEW:
            return (
                f"The alert has fired since {_when(request.began)}, before version "
                f"{move.to_version} entered production at {_when(move.at)}: it has another cause."
            )
        acts = [move.at] if move.action == "rollback" else []
        acts += [last.at] if last is not None and last.outcome in ("abort", "roll_back") else []
        if acts and self._clock() < max(acts) + self._cooldown:
            return (
                f"The last rollback was at {_when(max(acts))}; production stays for "
                f"{self._cooldown.total_seconds():g} s after a rollback."
            )
        return ""


def _alert_marker(request: RollbackRequest) -> str:
    return f"[alert {request.key}]"


def _reason(request: RollbackRequest) -> str:
    return f"{request.reason} {_alert_marker(request)}"


def _nothing(why: str) -> RollbackResult:
    return RollbackResult(act="nothing", what=why.strip())


def _name(rollout: Rollout) -> str:
    return f"the rollout of {rollout.model} version {rollout.version}"


def _when(moment: object) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
