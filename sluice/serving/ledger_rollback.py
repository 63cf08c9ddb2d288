"""Rollbacks that an alert asks for, in the ledger; its history is also what makes them happen once.

An alert is told again and again while it fires, and by several senders at once. So each act writes
the alert's key into its reason, and an alert whose key is there does not act like that any more.
Nor does one that fires right after an act: what it saw is what the act ended. An alert about
production that still fires long after it ended a rollout was right about production.
"""

from datetime import timedelta

from sluice.base.artifacts import ArtifactStore
from sluice.base.errors import PromotionConflict, RolloutConflict, UnknownVersion
from sluice.registry.reading import Clock
from sluice.registry.records import HistoryEntry
from sluice.registry.rollouts import RolloutLedger
from sluice.rollout import changes
from sluice.rollout.state import Rollout, Transition
from sluice.serving.rollback import Complaint, Done

ACTOR = "alertmanager"

_TRIES = 5
_CLOCKS_APART = timedelta(minutes=1)
"""Most that the clocks of Prometheus and of the registry may differ."""


class LedgerRollback:
    """Aborts the rollout of one model, or moves its production pointer back."""

    def __init__(
        self,
        ledger: RolloutLedger,
        model: str,
        store: ArtifactStore,
        *,
        clock: Clock,
        quiet_s: float,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            ledger: Of the model.
            model: Its name.
            store: Where the artifacts of the version before lie.
            clock: Dates what is done.
            quiet_s: So long after an act production stays, whatever alerts say [s].
        """
        self._ledger = ledger
        self._model = model
        self._store = store
        self._clock = clock
        self._quiet = timedelta(seconds=quiet_s)

    def answer(self, complaint: Complaint) -> Done:
        """Abort the rollout under way; with none, roll production back when that is asked for.

        Raises:
            SluiceError: The registry cannot be read or written, or the version before does not
                load; nothing was changed.
        """
        for _ in range(_TRIES - 1):
            try:
                return self._answer(complaint)
            except (RolloutConflict, PromotionConflict):  # somebody was faster: look again
                continue
        return self._answer(complaint)

    def _answer(self, complaint: Complaint) -> Done:
        rollout = self._ledger.rollout(self._model)
        if rollout is not None and not rollout.is_over:
            is_older = complaint.began < rollout.started_at - _CLOCKS_APART
            if complaint.action == "rollback" or not is_older:
                return self._abort(rollout, complaint, is_older=is_older)
        last = None if rollout is None else self._ledger.rollout_transitions(rollout.id)[-1]
        if complaint.action == "rollback":
            if last is not None and _marked(complaint) in last.reason:
                return _nothing(f"This alert aborted {_name(last.rollout)} already.")
            return _nothing(f"No rollout of {self._model} is under way.")
        return self._roll_back(complaint, last)

    def _abort(self, rollout: Rollout, complaint: Complaint, *, is_older: bool) -> Done:
        if is_older:
            return _nothing(
                f"The alert fires since {_when(complaint.began)}, before {_name(rollout)} began at "
                f"{_when(rollout.started_at)}: it is about something else."
            )
        transition = changes.abort(
            rollout, now=self._clock(), actor=ACTOR, reason=_reason(complaint)
        )
        self._ledger.record_transition(rollout, transition)
        return Done(act="aborted", what=f"Aborted {_name(rollout)}; production answers everybody.")

    def _roll_back(self, complaint: Complaint, last: Transition | None) -> Done:
        moves = [e for e in self._ledger.history(self._model) if e.revision is not None]
        if not moves:
            return _nothing(f"Nothing of {self._model} is in production.")
        held = self._held_back(complaint, moves, last)
        if held:
            return _nothing(held)
        try:
            moved = self._ledger.rollback(
                self._model,
                expected=moves[-1].to_version,
                actor=ACTOR,
                reason=_reason(complaint),
                store=self._store,
            )
        except UnknownVersion as error:
            return _nothing(f"{error.what} {error.cause}")
        return Done(
            act="rolled_back",
            what=f"Rolled {self._model} back from version {moved.previous} to {moved.version}. "
            f"{moved.code}".rstrip(),
        )

    def _held_back(
        self, complaint: Complaint, moves: list[HistoryEntry], last: Transition | None
    ) -> str:
        """Return why production stays; empty when it may be rolled back."""
        told = [move for move in moves if _marked(complaint) in move.reason]
        if told:
            return f"This alert rolled back to version {told[-1].to_version} already."
        move = moves[-1]
        if complaint.began < move.at - _CLOCKS_APART:
            return (
                f"The alert fires since {_when(complaint.began)}, before version {move.to_version} "
                f"came into production at {_when(move.at)}: it is about something else."
            )
        acts = [move.at] if move.action == "rollback" else []
        acts += [last.at] if last is not None and last.outcome in ("abort", "roll_back") else []
        if acts and self._clock() < max(acts) + self._quiet:
            return (
                f"The last rollback was at {_when(max(acts))}; production stays until it has been "
                f"seen for {self._quiet.total_seconds():g} s."
            )
        return ""


def _marked(complaint: Complaint) -> str:
    return f"[alert {complaint.key}]"


def _reason(complaint: Complaint) -> str:
    return f"{complaint.reason} {_marked(complaint)}"


def _nothing(why: str) -> Done:
    return Done(act="nothing", what=why.strip())


def _name(rollout: Rollout) -> str:
    return f"the rollout of {rollout.model} version {rollout.version}"


def _when(moment: object) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
