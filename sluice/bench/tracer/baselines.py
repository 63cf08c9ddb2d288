"""Other monitors on the same runs: loss monitors, and the built-in rules of SageMaker Debugger.

Each baseline is a function of what ordinary hooks record of an untraced run. Baselines do not name
a cause. Only whether they raise an alarm, and at which step, is evaluated.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from pydantic import Field

from sluice.base.settings import Record

_WINDOW = 10
"""Number of earlier losses with which a loss is compared."""

_SPIKE_RATIO = 2.0
"""Ratio of a loss to the mean of the window before it, above which the loss is a spike."""

_MIN_GRADIENT = 1e-7
"""Mean absolute gradient of a parameter below which the gradient vanishes."""

_DEAD_SHARE = 0.5
"""Share of almost inactive units of a ReLU layer above which the layer is dead."""

_MIN_UNCHANGED_STEPS = 3
"""Number of consecutive steps without a change of a parameter for an alarm."""

_MAX_UPDATE_RATIO = 10.0
"""Ratio of the update to the weights of a parameter above which an alarm is raised."""

_MIN_UPDATE_RATIO = 1e-8
"""Ratio of the update to the weights of a parameter below which an alarm is raised."""

_MAX_OVERFIT_RATIO = 0.1
"""Increase from training to validation loss above which the model overfits, as a share of the
training loss."""

_MAX_IMBALANCE_RATIO = 10.0
"""Ratio of the rows of the most and the least frequent label above which classes are imbalanced."""


class MonitoredStep(Record):
    """Record of one optimizer step by hooks. A count or share is 0 if nothing was recorded."""

    step: int
    losses: tuple[float, ...] = Field(
        description="Unscaled loss of each backward pass before the step."
    )
    smallest_gradient: float = Field(
        description="Smallest mean absolute gradient of a parameter; NaN if no parameter has a "
        "gradient."
    )
    has_non_finite: bool = Field(description="Whether a gradient or a loss is NaN or infinite.")
    num_all_zero: int = Field(
        description="Number of gradients and module outputs in which every element is 0."
    )
    unmoved: tuple[int, ...] = Field(
        description="Indices of the parameters that the step changed by at most a relative 1e-5."
    )
    smallest_update: float = Field(
        description="Smallest ratio of mean |change| to mean |weight| of a parameter with a "
        "gradient and at least two dimensions; NaN without such a parameter."
    )
    largest_update: float = Field(
        description="Largest ratio of mean |change| to mean |weight| of a parameter with a "
        "gradient and at least two dimensions; NaN without such a parameter."
    )
    dead_share: float = Field(
        description="Share of units that are active in less than 1 % of the rows, in the ReLU "
        "layer where this share is largest."
    )


class MonitoredValidation(Record):
    """Record of one validation pass between two optimizer steps."""

    step: int = Field(description="Number of optimizer steps before the pass.")
    training: float = Field(description="Mean training loss since the previous pass.")
    validation: float


class MonitorRecord(Record):
    """Record of one run by hooks."""

    steps: tuple[MonitoredStep, ...]
    scores: tuple[MonitoredValidation, ...]
    labels: dict[int, int] = Field(description="Number of training rows per label.")


def _losses(record: MonitorRecord) -> list[tuple[int, float]]:
    return [(step.step, loss) for step in record.steps for loss in step.losses]


def _non_finite_loss(record: MonitorRecord) -> int | None:
    return _first(step for step, loss in _losses(record) if not math.isfinite(loss))


def _spike(record: MonitorRecord) -> int | None:
    losses = _losses(record)
    for at in range(_WINDOW, len(losses)):
        mean = statistics.fmean(loss for _, loss in losses[at - _WINDOW : at])
        if mean and losses[at][1] / mean > _SPIKE_RATIO:
            return losses[at][0]
    return None


def _vanishing(record: MonitorRecord) -> int | None:
    return _first(step.step for step in record.steps if step.smallest_gradient < _MIN_GRADIENT)


def _exploding(record: MonitorRecord) -> int | None:
    return _first(step.step for step in record.steps if step.has_non_finite)


def _dead(record: MonitorRecord) -> int | None:
    return _first(step.step for step in record.steps if step.dead_share > _DEAD_SHARE)


def _unchanged(record: MonitorRecord) -> int | None:
    num_unchanged: dict[int, int] = {}
    for step in record.steps:
        num_unchanged = {position: num_unchanged.get(position, 0) + 1 for position in step.unmoved}
        if max(num_unchanged.values(), default=0) >= _MIN_UNCHANGED_STEPS:
            return step.step
    return None


def _update(record: MonitorRecord) -> int | None:
    return _first(
        step.step
        for step in record.steps
        if step.largest_update > _MAX_UPDATE_RATIO or step.smallest_update < _MIN_UPDATE_RATIO
    )


def _not_falling(record: MonitorRecord) -> int | None:
    losses = _losses(record)
    return _first(
        losses[at][0]
        for at in range(_WINDOW, len(losses))
        if not losses[at][1] < losses[at - _WINDOW][1]
    )


def _overfit(record: MonitorRecord) -> int | None:
    return _first(
        score.step
        for score in record.scores
        if score.training
        and (score.validation - score.training) / score.training > _MAX_OVERFIT_RATIO
    )


def _all_zero(record: MonitorRecord) -> int | None:
    return _first(step.step for step in record.steps if step.num_all_zero)


def _imbalance(record: MonitorRecord) -> int | None:
    counts = record.labels.values()
    return 1 if len(counts) > 1 and max(counts) / min(counts) > _MAX_IMBALANCE_RATIO else None


DEBUGGER: Mapping[str, Callable[[MonitorRecord], int | None]] = {
    "vanishing gradient": _vanishing,
    "exploding tensor": _exploding,
    "dead ReLU": _dead,
    "unchanged tensor": _unchanged,
    "weight update ratio": _update,
    "loss not decreasing": _not_falling,
    "overfit": _overfit,
    "all-zero tensor": _all_zero,
    "class imbalance": _imbalance,
}
"""Built-in rules of Amazon SageMaker Debugger with their documented default thresholds, applied at
every step."""

ANOMALY = "detect_anomaly"
NON_FINITE_LOSS = "loss is non-finite"
DEBUGGER_ANY = "SageMaker Debugger, any rule"
ALWAYS, NEVER = "always alarm", "never alarm"

BASELINES: tuple[str, ...] = (
    ANOMALY,
    NON_FINITE_LOSS,
    "loss spike",
    DEBUGGER_ANY,
    *(f"debugger: {name}" for name in DEBUGGER),
    ALWAYS,
    NEVER,
)


def alarms_in(record: MonitorRecord, *, anomaly: int | None) -> dict[str, int]:
    """Return the baselines that raise an alarm, with the step.

    Args:
        record: Record of an untraced run.
        anomaly: Step at which autograd's anomaly mode stopped the program, or None.
    """
    alarms = {f"debugger: {name}": rule(record) for name, rule in DEBUGGER.items()}
    steps = [step for step in alarms.values() if step is not None]
    reported = {
        ANOMALY: anomaly,
        NON_FINITE_LOSS: _non_finite_loss(record),
        "loss spike": _spike(record),
        DEBUGGER_ANY: min(steps, default=None),
        **alarms,
        ALWAYS: 1,
        NEVER: None,
    }
    return {name: step for name, step in reported.items() if step is not None}


def _first(steps: Iterator[int] | Sequence[int]) -> int | None:
    return next(iter(steps), None)
