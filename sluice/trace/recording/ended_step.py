"""Record of ended steps, which ``StepRecorder`` delivers to the recorder and the samplers."""

from typing import Any, NamedTuple

from torch import Tensor


class EndedStep(NamedTuple):
    """One fully recorded step, or several steps that repeated a pattern."""

    step: int
    """Number of the step; for repeated steps, the number of the last step."""
    thread: int
    """Index of the thread."""
    events: list[int]
    """Event codes and clock times [ns], alternating."""
    losses: list[Any]
    """Losses of the backward passes. For repeated steps: step number, list of its losses, next step
    number, list of its losses, and so on."""
    clips: list[tuple[int, Tensor | float, float]]
    """Gradient clips by norm: optimizer index, norm before clipping, and maximum norm."""
    scale: Tensor | None
    """Scale that an update of the gradient scaler set before the step; None without an update."""
    ended_ns: int
    """End time [ns]; 0 for repeated steps."""
    began_ns: int
    """End time of the previous step in this thread [ns]. For the first step of the thread, the time
    at which the trace began or the thread recorded its first event. If the prediction of this step
    failed, the time of the first unexpected event. 0 for repeated steps."""
    since_recorded_step_ns: int
    """Time from the end of the previous fully recorded step, of any thread, to the end of this step
    [ns]; 0 for repeated steps."""
    statistics_ns: int
    """Part of ``since_recorded_step_ns`` spent on statistics [ns]."""
