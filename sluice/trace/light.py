"""Steps that come as foreseen: their order, losses and norms are recorded, and little else.

What costs a tracer most is code and data that lie far from the processor by the time a step comes
round again. So while the steps follow each other as before, two of eleven are looked at closely,
and the others leave pairs of numbers: what happened, and to which object. A step that is another
than foreseen is looked at closely from there on, and so are those after it; its order is known in
whole.
"""

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.trace.evidence.order import MarkKind
from sluice.trace.lane import Lane
from sluice.trace.subjects import Registry
from sluice.trace.words import Code

if TYPE_CHECKING:  # it makes this
    from sluice.trace.tracer import Tracer

BATCH, FORWARD, BACKWARD, ZERO, CLIP, SCHEDULE, STEP = range(7)
"""What happened. The number with it is the index of a loader, the identity of a network, optimizer
or scheduler, 0 for a backward pass, and whether a clip was by value."""

_KINDS: tuple[MarkKind, ...] = ("batch", "forward", "backward", "zero", "clip", "schedule", "step")
_FIRST = 128
"""Rounds that are all looked at closely."""

_CLOSE, _LIGHT = 2, 9
"""Rounds that are, and rounds that are not, in turns: what is not told by the order is told within
ten steps. Coprime to the rhythms of programs."""

_LEAST = 2
"""Light steps in a row; for fewer it is not worth it."""

_UNTIMED = array("q")
_SPECIAL = frozenset({"scaled", "closure", "by scaler", "in backward", "leaf"})
"""Flags of steps whose meaning hangs on more than their order."""


@dataclass(slots=True)
class _Usual:
    """The order that one step of a round mostly has."""

    marks: list[Code]
    pairs: list[int] | None = None
    """The same for a light step; None where it has no such form."""


class LightSteps:
    """Chooses how closely the steps are looked at, and keeps what those that are not leave.

    A round is one step of each optimizer.
    """

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._usual: list[_Usual] = []
        self._at = 0
        """Place of the next step in its round."""
        self._same = self._close = 0
        self._has_missed = True
        self._lane: Lane | None = None
        """That makes light steps."""
        self._left = 0
        self._ends: list[int] = []
        """Losses and clips of the lane after each light step."""
        self._places: list[int] = []
        """In the round, of each."""

    # ---- steps that are looked at closely

    def hear(self, lane: Lane) -> None:
        """Hear of one that ended, while its marks are there."""
        rounds = len(self._tracer.inventory.optimizers.entries)
        if len(self._usual) != rounds:
            self._usual = [_Usual([]) for _ in range(rounds)]
            self._same = self._close = self._at = 0
            self._has_missed = True
        usual, marks = self._usual[self._at], lane.marks
        if marks == usual.marks:
            self._same += 1
            self._has_missed = False
        elif self._has_missed:  # two in a row: another program, from here on
            self._usual[self._at] = _Usual(marks)
            self._same = 0
        else:
            self._has_missed = True
        self._at = self._at + 1 if self._at + 1 < rounds else 0
        self._close += 1
        # What the gradients were after the last step of each optimizer is known from here on.
        lane.doubts = lane.doubts and self._close < rounds

    def begin(self, lane: Lane) -> None:
        """Begin light steps if the next ones are foreseen."""
        tracer, rounds = self._tracer, len(self._usual)
        if (
            self._same < _FIRST * rounds
            or self._has_missed
            or self._close < _CLOSE * rounds
            or tracer.has_norms
            or tracer.acts is not None
            or tracer.after_step
            or len(tracer.threads) != 1
            or tracer.inventory.is_stale
            or any(self._pairs(usual) is None for usual in self._usual)
        ):
            return
        networks = tracer.inventory.networks.entries
        flow = min((entry.next_flow for entry in networks if not entry.is_plain), default=0)
        until = min(tracer.settles, tracer.survey.due, flow)
        self._left = min(_LIGHT * rounds, until - tracer.steps)
        if self._left >= _LEAST:
            self._lane = lane
            lane.light, lane.foreseen = [], self._usual[self._at].pairs

    def _pairs(self, usual: _Usual) -> list[int] | None:
        if usual.pairs is None:
            pairs: list[int] = []
            for kind, subject, _, flags, block in usual.marks:
                if kind not in _KINDS or block or _SPECIAL.intersection(flags):
                    return None
                number = subject
                if kind in ("backward", "clip"):
                    number = int("value" in flags)
                elif kind != "batch":
                    number = self._identity(kind, subject)
                    if not number and (kind, subject) != ("zero", -1):
                        return None
                pairs += (_KINDS.index(kind), number)
            usual.pairs = pairs
        return usual.pairs

    def _registry(self, kind: str) -> "Registry[Any]":
        inventory = self._tracer.inventory
        if kind == "forward":
            return inventory.networks
        return self._tracer.schedulers if kind == "schedule" else inventory.optimizers

    def _identity(self, kind: str, subject: int) -> int:
        """Return that of a network, scheduler or optimizer; 0 when it is gone."""
        for entry, there in self._registry(kind).alive():
            if entry.index == subject:
                return id(there)
        return 0

    def usual_step(self, lane: Lane, optimizer: int) -> Code | None:
        """Return the mark that this step mostly has, where it stands at its usual place."""
        marks, at = self._usual[self._at].marks, len(lane.marks)
        return marks[at] if at < len(marks) and marks[at][:2] == ("step", optimizer) else None

    def may_be_cleared(self, lane: Lane) -> bool:
        """Tell whether the gradients that this step finds are new ones, as far as marks tell.

        A program that clears them by hand leaves no mark: it is believed unless it never did.
        """
        ours, usual = lane.marks, self._usual[self._at].marks
        by_call = any(code[0] == "zero" for code in usual)
        never = any("carried" in code[3] for code in usual)
        return any(code[0] == "zero" for code in ours) or not (by_call or never)

    # ---- light ones

    @staticmethod
    def foresees(lane: Lane, what: int) -> bool:
        """Tell whether something is what comes next in a light step."""
        foreseen, at = lane.foreseen or (), len(lane.light or ())
        return at < len(foreseen) and foreseen[at] == what

    def end_step(self, lane: Lane) -> bool:
        """Hear of the end of a step that began as a light one; return whether it was as foreseen.

        Otherwise it goes on as one that is looked at closely.
        """
        if lane.light != lane.foreseen:
            self.wake(lane)
            self._close = -1  # what the step found was not looked at
            return False
        tracer = self._tracer
        tracer.steps += 1
        lane.steps += 1
        lane.stepper.steps += 1
        self._places.append(self._at)
        self._ends += (len(lane.losses), len(lane.clips))
        self._at = self._at + 1 if self._at + 1 < len(self._usual) else 0
        lane.light, lane.foreseen = [], self._usual[self._at].pairs
        self._left -= 1
        if not self._left or tracer.clock() >= tracer.recorder.due:
            self.wake(lane)
            tracer.settle_if_due()
        return True

    def wake(self, lane: Lane) -> None:
        """Look closely from here on: what was recorded becomes marks again."""
        if lane.light is None:
            return
        self.write()
        lane.marks = self._marks(lane.light)
        lane.clips = _owned(lane.clips, lane.marks)
        lane.light = lane.foreseen = self._lane = None
        lane.doubts, self._close = True, 0

    def write(self) -> None:
        """Hand over the light steps that ended."""
        lane, places, ends = self._lane, self._places, self._ends
        if lane is None or not places:
            return
        tracer = self._tracer
        self._places, self._ends = [], []
        now = tracer.clock()
        took = (now - tracer.last_step) // len(places)
        losses = clips = 0
        first = tracer.steps - len(places)
        for number, place in enumerate(places):
            marks = self._usual[place].marks
            until, clipped = ends[2 * number : 2 * number + 2]
            told = lane.losses[losses:until]
            tracer.ended.append(
                (
                    first + number + 1, lane.number, marks, _UNTIMED, told,
                    _owned(lane.clips[clips:clipped], marks), None, now, took, 0,
                )
            )  # fmt: skip
            losses, clips = until, clipped
            lane.last_loss = told[-1] if told else None
        lane.losses, lane.clips = lane.losses[losses:], lane.clips[clips:]
        tracer.last_step = now

    def _marks(self, pairs: list[int]) -> list[Code]:
        """Return what a light step recorded as marks, with the flags that are usual."""
        marks = self._usual[self._at].marks
        usual = {code[:2]: code for code in marks}
        found: list[Code] = []
        for what, number in zip(pairs[::2], pairs[1::2], strict=True):
            kind, subject, about = _KINDS[what], number, -1
            if what in (BACKWARD, CLIP):
                same = (c[1] for c in marks if c[0] == kind and ("value" in c[3]) == number)
                subject = next(same, -1)
            elif what != BATCH:
                entry = self._registry(kind).by_id.get(number)
                subject = -1 if entry is None else entry.index
                about = entry.optimizer if what == SCHEDULE and entry is not None else -1
            found.append(usual.get((kind, subject), (kind, subject, about, (), 0)))
        return found


def _owned(clips: list[Any], marks: list[Code]) -> list[Any]:
    """Return clips of a light step with the optimizers that such a step has clipped before."""
    owners = [subject for kind, subject, _, flags, _ in marks if kind == "clip" and "norm" in flags]
    if len(owners) != len(clips):
        owners = [-1] * len(clips)
    return [(owner, *told) for owner, (_, *told) in zip(owners, clips, strict=True)]
