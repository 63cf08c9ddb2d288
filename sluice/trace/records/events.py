"""Records of the order of events between two optimizer steps.

Most steps of a run have the same events, so a run of any length is stored as a few event sequences
with counts. A sequence contains all events since the previous step of any optimizer in the same
thread. It ends with a step, or with a step that a gradient scaler skipped; the events after the
last step of a thread are an open sequence.

If the steps of a program take little time, most steps are not recorded fully. Their events are only
compared with the events of an earlier step (``sluice.trace.prediction``). If they match, the step
gets the sequence of the earlier step, including the flags of its events.
"""

from typing import Literal

from pydantic import Field

from sluice.base.settings import Record

TraceEventKind = Literal[
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
"""Kind of an event, with the meaning of ``object_id``, ``related_id`` and the flags:

- epoch: an iteration over a loader starts. object_id: loader.
- batch: a loader yields a batch. object_id: loader.
- forward: a network returns; calls inside another network are not recorded. object_id: network;
  related_id: loader of the last batch, -1 without a loader. Flags: "grad" if the first output
  tensor requires gradients; "training" or "evaluating", the mode of the network itself. Also
  "sensitive training" if a submodule whose output depends on the mode (dropout, batch norm) is in
  training mode, and "sensitive evaluating" if such a submodule is in evaluation mode.
- backward: ``backward()`` returns. Flags: "scaled" if the loss was scaled by an enabled gradient
  scaler; "leaf" if the loss has no graph; "unscaled mean" if the loss is a mean over the batch that
  is not multiplied or divided further, for example by a number of accumulation steps.
- grad: ``torch.autograd.grad`` returns: the program may set gradients itself.
- zero: ``zero_grad()``. object_id: optimizer, -1 for ``zero_grad()`` of a module. A program that
  clears gradients in another way causes no event. Only the flags of the next step show that the
  gradients were cleared.
- clip: gradients are clipped. object_id: optimizer of the parameters, -1 if unknown; flags: "norm"
  or "value".
- unscale: the program calls ``GradScaler.unscale_``. object_id: optimizer.
- update scale: ``GradScaler.update``.
- step: an optimizer begins its step. object_id: optimizer. Flags: state of the gradients, one of
  "fresh" (new since its last step), "none" (all absent), "zero" (all zero) and "stale" (unchanged
  since its last step); "carried" if gradients were not cleared since its last step; "closure" if
  it has a closure (the step begins after the first run of the closure); "by scaler" if a gradient
  scaler makes the step; "in backward" if a backward pass is running; "edited" if the program itself
  changed accumulated gradients, for example divided them.
- stepped: an optimizer ends a step that was given a closure. Recorded only if the optimizer, in
  this or an earlier step, called its closure several times or not at all. The events of all closure
  calls after the first are between "step" and "stepped".
- skip: a gradient scaler skips the step of an optimizer. object_id: optimizer.
- schedule: a learning-rate scheduler makes a step. object_id: scheduler; related_id: its optimizer.
- mode: ``train()`` or ``eval()``. object_id: network, -1 for a submodule and for a network that was
  not called yet. Flags: "train" or "eval", the new mode; "restored" if the program set evaluation
  mode by ``train(False)``. Such a call is usually ``train(was_training)``, which restores an
  earlier mode.
- load: ``load_state_dict``. object_id: network, optimizer or scheduler, as named by the flag.
"""


class TraceEvent(Record):
    """One event. The steps at which it occurred are stored in its sequence."""

    kind: TraceEventKind
    object_id: int = Field(description="Index of the object of the event; -1 if unknown.")
    related_id: int = Field(
        -1, description="Index of a related object; see ``TraceEventKind``. -1 if unused."
    )
    flags: tuple[str, ...] = ()
    repeat_length: int = Field(
        0,
        description="Number of events in the repeated block that ends with this event; 0 if no "
        "repeated block ends here. A block that occurs several times in a row is stored once.",
    )


class StepSequence(Record):
    """One sequence of events, and the steps that had this sequence."""

    events: tuple[TraceEvent, ...]
    thread: int = Field(description="Index of the thread, from 0.")
    first_step: int = Field(
        description="Number of the first step with this sequence, counted over all optimizers from "
        "1. For an open sequence: number of the last step before it."
    )
    last_step: int = Field(description="Number of the last step with this sequence.")
    count: int = Field(ge=1, description="Number of steps with this sequence.")
    is_open: bool = Field(
        False, description="Whether these events follow the last step, so that no step ends them."
    )

    def find(self, kind: TraceEventKind) -> tuple[int, ...]:
        """Return the positions of the events of a kind."""
        return tuple(i for i, event in enumerate(self.events) if event.kind == kind)

    @property
    def final_event(self) -> TraceEvent | None:
        """The step or skip that ends the sequence; None if the sequence is open."""
        ends = [event for event in self.events if event.kind in ("step", "skip")]
        return ends[-1] if ends and not self.is_open else None


class RecentStep(Record):
    """One of the most recent steps, with the times of its events."""

    step: int
    sequence: int = Field(description="Index of its sequence in ``Trace.sequences``.")
    times_us: tuple[int, ...] = Field(
        description="Time of each event of the sequence [us since the start of the trace]. The "
        "events of a block that was repeated have the times of its first run, except the last "
        "event of the block: it has the time at which the last run ended. If a prediction of the "
        "step failed, the events up to the failure have the time of the failure."
    )
    ended_us: int | None = Field(
        None, description="End of the step [us since the start of the trace]; None if unknown."
    )
    began_us: int | None = Field(
        None,
        description="End of the previous step in the same thread [us since the start of the "
        "trace]. For the first step of a thread: the time at which the trace began or the thread "
        "recorded its first event. If a prediction of the step failed: the time of the failure. "
        "None if unknown.",
    )
