"""The one tracer of a process: what its seams tell it becomes evidence.

Nothing here may stop the program or change what it computes. Every call from a seam goes through
``guard``, or stands in a ``try`` of its own where it runs at every step: a failure is noted, the
tracer detaches, and the program goes on untraced.
"""

import sys
import threading
import traceback
from collections.abc import Callable
from itertools import chain, count, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.base.files import NO_ROOM, NO_ROOM_LEFT, free_bytes
from sluice.trace.cadence import Cadence
from sluice.trace.evidence.measures import OptimizerMeasure, OutputMeasure, StepMeasures
from sluice.trace.evidence.order import MarkKind
from sluice.trace.evidence.trace import End, Note, Start
from sluice.trace.fingerprints import RowPrints
from sluice.trace.inventory import Inventory, OptimizerEntry, SchedulerEntry
from sluice.trace.lane import Lane
from sluice.trace.looks import Looks
from sluice.trace.measuring import StepInWork, begin_step, end_step, peak_memory
from sluice.trace.patches import Patches
from sluice.trace.phases import Phases
from sluice.trace.recorder import EndedStep, Recorder
from sluice.trace.routine import Routine
from sluice.trace.seams.means import check_seal
from sluice.trace.settings import TraceSettings
from sluice.trace.subjects import Registry
from sluice.trace.survey import Survey

if TYPE_CHECKING:  # both are told of the tracer
    from sluice.trace.guarding import Guard
    from sluice.trace.seams.bare import BareWatch
    from sluice.trace.seams.by_hand import ByHand
    from sluice.trace.seams.inputs import InputWatch
    from sluice.trace.seams.losses import LossWatch
    from sluice.trace.seams.own_steps import OwnSteps

_MOST_ENDED = 64
"""Steps that wait until they are sorted."""

_MOST_MARKS = 4096
"""Marks without a step, as of a long evaluation, before repeats are folded."""


class _Local(threading.local):
    """Makes a lane for each thread when it asks for the first time."""

    def __init__(self) -> None:
        self.lane = Lane()


class Tracer:
    """Collects the evidence of one process.

    Args:
        folder: For the files of this process; made when there is something to write.
        settings: Bounds of time, memory and disk.
        describe: Tells who is traced.
        clock: Monotonic time [ns].
        say: Takes one line for the user.
    """

    # An attribute in a slot is found with one look at memory, one in a dictionary with five: what
    # runs between two operations of the program finds nothing at hand.
    __slots__ = (
        "__weakref__", "_began", "_describe", "_ended", "_last_step", "_lock", "_measured",
        "_settles", "_threads", "acts", "after_step", "backward_codes", "backward_marks", "bare",
        "before_end", "before_step", "by_hand", "cadence", "clock", "flows", "has_norms",
        "has_statistics", "inputs", "inventory", "is_on", "local", "looks", "losses", "numbers",
        "on_begin", "on_end", "own_steps", "patches", "phases", "recorder", "routine",
        "row_prints", "say", "schedulers", "settings", "steps", "survey",
    )  # fmt: skip

    def __init__(
        self,
        folder: Path,
        settings: TraceSettings,
        describe: Callable[[], Start],
        *,
        clock: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        self.settings, self.clock = settings, clock
        self._describe, self.say = describe, say
        self.is_on = True
        self.local = _Local()
        """Holds the lane of the thread that asks; no property, as every event asks for it."""
        self.patches = Patches()
        self.on_begin: list[Callable[[], None]] = []
        """What has a state of its own to forget when a trace begins anew."""
        self.before_end: list[Callable[[], None]] = []
        """What may still end a step when the trace ends."""
        self.on_end: list[Callable[[], None]] = []
        """What still has something to write when the trace ends."""
        self.before_step: list[Callable[[OptimizerEntry, Any], None]] = []
        """What else looks at an optimizer before its step."""
        self.after_step: list[Callable[[OptimizerEntry, Any], None]] = []
        """And after it."""
        self.acts: Guard | None = None
        """Ends the program or leaves out steps, where that was asked for."""
        self.inputs: InputWatch | None = None
        self.losses: LossWatch | None = None
        self.bare: BareWatch
        """Of ``seams.bare``."""
        self.by_hand: ByHand | None = None
        self.own_steps: OwnSteps | None = None
        """None from the first optimizer on that is made, or steps."""
        self.begin(folder)

    def begin(self, folder: Path) -> None:
        """Begin an empty trace: at first, and in a process that was forked off."""
        self.recorder = Recorder(folder, self.settings, self._describe, clock=self.clock)
        self.inventory = Inventory()
        self.schedulers: Registry[SchedulerEntry]
        self.flows: Any
        """The passes that are looked at; of ``seams.modules``."""
        self.cadence = Cadence(
            cost_share=self.settings.cost_share, most_between=self.settings.most_steps_between
        )
        self.row_prints = RowPrints()
        self.survey = Survey(self.inventory, self.recorder)
        self.looks = Looks(self)
        self.routine = Routine(self)
        self.phases = Phases(self)
        self.steps, self.numbers = 0, count(1)
        """Of the last step, and of those that come: two threads never get the same."""
        self.has_norms = True
        """Whether the step that comes next has norms of gradients and weights."""
        self.has_statistics = True
        """And everything else that takes time."""
        self.backward_codes: dict[tuple[str, ...], int] = {}
        """Of backward passes, by their flags."""
        self.backward_marks: set[int] = set()
        """All of these."""
        self._ended: list[tuple[Any, ...]] = []
        self._settles = 0
        """The step at which what ended is sorted."""
        self._threads: list[Lane] = []
        self._began = self._last_step = self.clock()
        self._measured: list[tuple[int, list[OptimizerMeasure], list[list[OutputMeasure]]]] = []
        self._lock = threading.Lock()
        lane = self.local.lane
        lane.begin_word()
        lane.number, lane.room, lane.work, lane.outputs = -1, 0, None, []
        lane.at, lane.order, lane.repeating, lane.began = -1, None, [], self._began
        lane.stepper = lane.network = None
        lane.last_loss = lane.bad_input = None
        lane.called, lane.given, lane.made, lane.group = -1, (), None, None
        for reset in self.on_begin:
            reset()

    def guard(self, work: Callable[..., None], *args: Any) -> None:
        """Do some of the tracer's own work; a failure ends the trace, never the program."""
        try:
            work(*args)
        except Exception as error:  # the edge of the program that is traced
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Detach after a failure of our own, and say so."""
        if not self.is_on:
            return
        self.detach()
        place = traceback.extract_tb(error.__traceback__)[-1:]
        where = f" at {Path(place[0].filename).name}:{place[0].lineno}" if place else ""
        text = f"{type(error).__name__}: {error}{where}"
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            folder = self.recorder.folder
            text = (
                f"{NO_ROOM_LEFT} {folder}: {error.strerror}, {free_bytes(folder):,} bytes "
                "are free on its disk"
            )
        lost = ""
        try:
            self._settle()
            self.recorder.write("note", Note(step=self.steps, kind="failed", text=text))
            self.recorder.flush()
            self.recorder.close()
        except Exception as second:  # the folder is full or gone, as the first one says
            lost = f" The last seconds are not written ({type(second).__name__})."
        self.say(f"sluice trace: tracing stopped ({text}); the program goes on.{lost}")

    def detach(self) -> None:
        """Put everything back that was replaced."""
        self.is_on = False
        self.patches.restore()

    def end(self, raised: str) -> None:
        """Write what is left and detach."""
        if not self.is_on:
            return
        self.guard(self._end, raised)
        if self.is_on:
            self.detach()
            self.recorder.close()

    def leave(self, raised: str) -> None:
        """Write what is left of a process that ends now: nothing needs to be put back."""
        if self.is_on:
            self.guard(self._end, raised)
        if self.is_on:
            self.is_on = False
            self.recorder.close()

    def _end(self, raised: str) -> None:
        for finish in self.before_end:
            finish()
        here = self.local.lane
        for lane in self._threads:
            if lane.at >= 0:
                self.routine.leave(lane)
            if lane.marks:
                open_word = Lane()
                open_word.marks, open_word.number = lane.marks, lane.number
                self.recorder.end_open_word(self.steps, open_word)
        here.begin_word()
        self._settle()
        if not self.recorder.has_seen_anything:
            return
        for finish in self.on_end:
            finish()
        if self.recorder.dropped_words:
            text = f"{self.recorder.dropped_words} steps had orders beyond those told apart."
            self.note("full", text)
        seconds = (self.clock() - self._began) / 1e9
        host, device = peak_memory()
        told = End(
            steps=self.steps,
            seconds=seconds,
            raised=raised,
            peak_host_bytes=host,
            peak_device_bytes=device,
        )
        self.recorder.write("end", told)
        self.flush()

    def note(self, kind: Any, text: str) -> None:
        """Keep something that a reader must know."""
        self.recorder.write("note", Note(step=self.steps, kind=kind, text=text))

    def structure_changed(self) -> None:
        """Hear that a module or parameter was added somewhere."""
        self.inventory.forget_structure()
        lane = self.local.lane
        if lane.at >= 0:
            self.routine.leave(lane)

    def mark(
        self,
        lane: Lane,
        kind: MarkKind,
        subject: int = -1,
        about: int = -1,
        flags: tuple[str, ...] = (),
    ) -> None:
        """Record an event of a thread."""
        self.event(lane, self.code(kind, subject, about, flags))

    def event(self, lane: Lane, code: int) -> None:
        """Record an event by its number; or see that it is the one that is expected."""
        at = lane.at
        if at >= 0:
            if lane.word[at] == code:
                lane.at = at + 1
                return
            self.routine.leave(lane)
        lane.marks += code, self.clock()
        if len(lane.marks) > lane.room:
            self.make_room(lane)

    def code(
        self, kind: MarkKind, subject: int = -1, about: int = -1, flags: tuple[str, ...] = ()
    ) -> int:
        """Return the number of an event, to be kept by what makes it at every step."""
        return self.recorder.book.code((kind, subject, about, flags, 0))

    def clear_before_update(self, lane: Lane) -> None:
        """Hear that the step that was marked last finds gradients that were cleared since."""
        code, when = lane.marks[-2:]
        kind, subject, about, flags, _ = self.recorder.book.mark(code)
        if kind == "step":
            step = self.code(kind, subject, about, ("zero", *flags[1:]))
            lane.marks[-2:] = self.code("zero", subject), when, step, when

    def make_room(self, lane: Lane) -> None:
        """Give a thread its number at its first mark; fold repeats when there are too many."""
        if lane.number < 0:
            lane.number = len(self._threads)
            self._threads.append(lane)
            lane.room = 2 * _MOST_MARKS - 1
            lane.began = lane.began or self.clock()
        if len(lane.marks) >= 2 * _MOST_MARKS:
            shown, positions = self.recorder.book.fold(lane.codes)
            if len(shown) >= _MOST_MARKS // 2:  # no repeats: the latest count
                shown, positions = shown[-_MOST_MARKS // 4 :], positions[-_MOST_MARKS // 4 :]
            times = lane.marks[1::2]
            told = ((code, times[i]) for code, i in zip(shown, positions, strict=True))
            lane.marks = [*chain.from_iterable(told)]

    def begin_step(self, lane: Lane, entry: OptimizerEntry) -> None:
        """See what an optimizer is about to do."""
        if not entry.steps:
            self.own_steps = None
        if (not entry.steps or self.phases.jumps) and self.phases.may_begin():
            with self._lock:
                self._settle()
                self.phases.begin()
        may_be_zero = lane.zero_after_backward or (
            entry.look.seen is not None and entry.look.is_cleared()
        )
        flags = entry.watch.at_step(entry, may_be_zero=may_be_zero)
        if lane.has_closure or lane.in_scaler or lane.in_backward:
            flags = (
                *flags,
                *("closure",) * lane.has_closure,
                *("by scaler",) * lane.in_scaler,
                *("in backward",) * lane.in_backward,
            )
        if lane.sealed:
            check_seal(lane)
            flags += ("edited",) * lane.is_edited
        code = entry.codes.get(flags)
        if code is None:
            code = entry.codes[flags] = self.code("step", entry.index, flags=flags)
        lane.marks += code, self.clock()
        if self.has_norms or self.inventory.is_stale or self.steps >= self.survey.due:
            began = self.clock()
            self.survey.look(self.steps)
            if self.has_norms:
                lane.work = begin_step(entry, sampled=self.settings.sampled_weights)
            lane.spent += self.clock() - began

    def end_step(self, lane: Lane, entry: OptimizerEntry) -> None:
        """Close the word of a step that was made, or skipped by a scaler."""
        with self._lock:
            self.steps = next(self.numbers)
            lane.steps += 1
            entry.steps += 1
            if lane.work is not None:
                self._measure(lane, entry, lane.work)
            if lane.number < 0:
                self.make_room(lane)
            now = self.clock()
            took, spent, lane.spent = now - self._last_step, lane.spent, 0
            marks = lane.marks
            # The fields of an EndedStep, which are told apart when they are sorted.
            self._ended.append(
                (
                    self.steps, lane.number, marks, lane.losses, lane.clips, lane.scale, now,
                    lane.began, took, spent,
                )
            )  # fmt: skip
            lane.last_loss = lane.losses[-1] if lane.losses else None
            lane.begin_word()
            if spent or self.steps >= self._settles:
                self._settle()
            if now >= self.recorder.due:
                self.flush()
                now = self.clock()
            self._last_step = lane.began = now
            if not self.has_norms:
                self.routine.begin(lane, marks[::2], self._settles)

    def add_ended(self, *fields: Any) -> None:
        """Hear of steps that were as expected: the fields of an EndedStep."""
        with self._lock:
            self._ended.append(fields)

    def _settle(self) -> None:
        """Sort what the last steps left, and ask when the next statistics are due.

        Many steps at once cost far less than each: what sorts them stays at hand for the processor.
        """
        if not self._ended:
            return
        rows, self._ended = [*starmap(EndedStep, self._ended)], []
        is_due = False
        for row in rows:
            if row.ended:
                is_due = self.cadence.add(step_ns=row.took, cost_ns=row.spent)
            else:
                self.cadence.add_repeats(len(row.losses) // 2)
        self.has_norms, self.has_statistics = is_due, is_due and self.cadence.is_whole
        self._settles = self.steps + min(max(self.cadence.due_in, 1), _MOST_ENDED)
        self.recorder.settle(rows)
        self.phases.hear(rows)
        self.routine.settle(rows)

    def _measure(self, lane: Lane, entry: OptimizerEntry, work: StepInWork) -> None:
        began = self.clock()
        measure = end_step(
            entry,
            work,
            self.inventory,
            self.recorder.deferred,
            sampled=self.settings.sampled_weights,
        )
        self._measured.append((self.steps, measure, lane.outputs))
        lane.work, lane.outputs = None, []
        lane.spent += self.clock() - began

    def flush(self) -> None:
        """Read what is on the device, and write everything."""
        self._settle()
        began, num = self.clock(), len(self._measured)
        self.recorder.read_deferred()
        self.phases.read()
        for step, optimizers, outputs in self._measured:
            fact = StepMeasures(
                step=step,
                optimizers=tuple(optimizers),
                outputs=tuple(m for found in outputs for m in found),
            )
            self.recorder.write_measures(fact)
        self._measured = []
        self.survey.write()
        self.recorder.flush()
        self.cadence.add_flush(cost_ns=self.clock() - began, num_statistics=num)


def say_on_stderr(text: str) -> None:
    """Print one line for the user, if there is still somewhere to print."""
    try:
        print(text, file=sys.stderr)
    except (OSError, ValueError, AttributeError):  # closed, or None
        return
