"""The order of events: what happened between two optimizer steps, as words of marks.

Most steps of a run are alike, so a run is a few words with counts, however long it is. A word
holds every mark since the end of the previous step of any optimizer in the same thread, and ends
with a step, or with one that a gradient scaler skipped. Of short steps that repeat one order most
are compared with it event by event (``sluice.trace.routine``): what their flags say was last seen
some steps before. Statistics are apart, in
``sluice.trace.evidence.measures``.
"""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record

MarkKind = Literal[
    "epoch",
    "batch",
    "forward",
    "backward",
    "grad",
    "zero",
    "clip",
    "unscale",
    "update scale",
    "step",
    "stepped",
    "skip",
    "schedule",
    "mode",
    "load",
]
"""What a mark stands for, its ``subject`` and ``about``, and its flags:

- epoch: a loader's iteration begins. subject: loader.
- batch: a loader handed over a batch. subject: loader.
- forward: a network was called from outside any network, and has returned. subject: network;
  about: the loader of the last batch, -1 for none. Flags: "grad" when an output can be
  differentiated; "training" or "evaluating", the mode of the network itself; "sensitive training"
  and "sensitive evaluating" when modules below it that act differently in the two modes (dropout,
  batch norm) are in one.
- backward: ``backward()`` ran to its end. Flags: "scaled" when the loss went through an enabled
  gradient scaler; "leaf" when the loss has no history.
- grad: ``torch.autograd.grad`` ran: gradients may be set by hand.
- zero: ``zero_grad()``. subject: optimizer, -1 for that of a module. Gradients that are cleared
  by hand leave no mark; the flags of the step tell.
- clip: the gradients of some parameters were clipped. subject: their optimizer, -1 when unknown;
  flags: "norm" or "value".
- unscale: ``GradScaler.unscale_`` called by the program. subject: optimizer.
- update scale: ``GradScaler.update``.
- step: an optimizer begins its step. subject: optimizer. Flags: one of "fresh", "none", "zero",
  "stale", the gradients it finds: new since its last step, all absent, all zero, those of its last
  step; "carried" when they were never cleared since its last step. Also "closure" when it has
  one: it begins when that ran once; "by scaler"; "in backward"; "edited" when the program itself
  changed gradients of several backward passes.
- stepped: the step of an optimizer ended that runs its closure more than once in a step, or never;
  the marks of the later runs are in between.
- skip: a gradient scaler left out the step of an optimizer. subject: optimizer.
- schedule: a learning-rate scheduler's step. subject: scheduler; about: its optimizer.
- mode: ``train()`` or ``eval()``. subject: network, -1 for a part of one; flags: "train", "eval".
- load: ``load_state_dict``. subject: network, optimizer or scheduler, by the flag.
"""


class Mark(Record):
    """One event. Which step it belongs to is said by its word."""

    kind: MarkKind
    subject: int = Field(description="Index of what it happened to; -1 for unknown.")
    about: int = Field(-1, description="A second index; see ``MarkKind``.")
    flags: tuple[str, ...] = ()
    block: int = Field(
        0,
        description="So many marks up to this one stood here more than once in a row, and are "
        "shown once; 0 for none.",
    )


class StepWord(Record):
    """One order of events, and the steps that had it."""

    marks: tuple[Mark, ...]
    thread: int = Field(description="Which thread of the program, counted from 0.")
    first_step: int = Field(description="Counted over all optimizers, from 1.")
    last_step: int
    count: int = Field(ge=1)
    is_open: bool = Field(False, description="What followed the last step: no step ends it.")

    def find(self, kind: MarkKind) -> tuple[int, ...]:
        """Return the positions of a kind of mark."""
        return tuple(i for i, mark in enumerate(self.marks) if mark.kind == kind)

    @property
    def step_mark(self) -> Mark | None:
        """The step or skip that ends the word; None in an open one."""
        ends = [mark for mark in self.marks if mark.kind in ("step", "skip")]
        return ends[-1] if ends and not self.is_open else None


class RecentStep(Record):
    """One of the last steps, with times."""

    step: int
    word: int = Field(description="Index in ``Trace.words``.")
    times_us: tuple[int, ...] = Field(
        description="When each mark of the word was made [us since the start of the trace]; of a "
        "block that is shown once, the first time, but of its last mark, when its repeats ended."
    )
    ended_us: int | None = Field(
        None, description="When the step was over [us since the start of the trace]."
    )
    began_us: int | None = Field(
        None, description="When the step before it in its thread was over; None when unknown."
    )
