"""Other monitors on the same programs: loss monitors, and the built-in rules of SageMaker Debugger.

Each baseline reads what ordinary PyTorch hooks recorded of an untraced run, and returns the step of
its first alarm, or None. The benchmark scores only whether there was an alarm, because a baseline
names no cause.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping

from pydantic import Field

from sluice.base.settings import Record

_NUM_COMPARED_LOSSES = 10
"""A loss spike is measured against the mean of this number of previous losses. Losses do not
decrease if a loss is not below the loss this number of backward passes before it."""

_SPIKE_RATIO = 2.0
"""A loss is a spike if it is more than this number of times the mean of the previous losses."""

_MIN_GRADIENT = 1e-7
"""The gradient of a parameter vanishes if its mean absolute value is below this number."""

_MAX_DEAD_SHARE = 0.5
"""A ReLU layer is dead if more than this share of its units is dead."""

_MIN_UNCHANGED_STEPS = 3
"""An alarm requires at least this number of consecutive steps that do not change a parameter."""

_MAX_UPDATE_RATIO = 10.0
"""An alarm is raised if mean |update| / mean |weight| of a parameter is above this number."""

_MIN_UPDATE_RATIO = 1e-8
"""An alarm is raised if mean |update| / mean |weight| of a parameter is below this number."""

_MAX_OVERFIT_RATIO = 0.1
"""The model overfits if (validation loss - training loss) / training loss is above this number."""

_MAX_IMBALANCE_RATIO = 10.0
"""Classes are imbalanced if the frequency of the most frequent label, divided by the frequency of
the least frequent label, is above this number."""


class MonitoredStep(Record):
    """What the hooks recorded of one optimizer step."""

    step: int
    losses: tuple[float, ...] = Field(
        description="Unscaled loss of each backward pass before the step."
    )
    smallest_gradient: float = Field(
        description="Smallest mean absolute gradient of a parameter; NaN if no parameter has a "
        "gradient."
    )
    has_non_finite_value: bool = Field(
        description="Whether a gradient or a loss is NaN or infinite."
    )
    num_all_zero_tensors: int = Field(
        description="Number of gradients, and of outputs of modules without children, in which "
        "every element is 0."
    )
    unchanged_parameters: tuple[int, ...] = Field(
        description="Parameters that the step did not change, as indices in the optimizer of the "
        "step. Changes of at most 1e-8 plus 1e-5 of the previous value are ignored."
    )
    smallest_update_ratio: float = Field(
        description="Smallest ratio of mean |update| to mean |weight| of a parameter with a "
        "gradient and at least two dimensions; NaN without such a parameter."
    )
    largest_update_ratio: float = Field(
        description="Largest ratio of mean |update| to mean |weight| of a parameter with a "
        "gradient and at least two dimensions; NaN without such a parameter."
    )
    dead_share: float = Field(
        description="Largest share of dead units in a ReLU layer; 0 without a ReLU layer. A unit "
        "is dead if it is active in less than 1 % of the rows."
    )


class MonitoredValidation(Record):
    """What the hooks recorded of one validation pass."""

    step: int = Field(description="Number of optimizer steps before the pass.")
    training_loss: float = Field(description="Mean training loss since the previous pass.")
    validation_loss: float = Field(description="Mean loss of the pass.")


class MonitorRecord(Record):
    """What the hooks recorded of one run."""

    steps: tuple[MonitoredStep, ...]
    validations: tuple[MonitoredValidation, ...]
    label_counts: dict[int, int] = Field(description="Number of training targets, by class label.")


def _losses_with_steps(record: MonitorRecord) -> list[tuple[int, float]]:
    """Return (step, loss) of each backward pass."""
    return [(step.step, loss) for step in record.steps for loss in step.losses]


def _detect_non_finite_loss(record: MonitorRecord) -> int | None:
    return _first_step(step for step, loss in _losses_with_steps(record) if not math.isfinite(loss))


def _detect_loss_spike(record: MonitorRecord) -> int | None:
    losses = _losses_with_steps(record)
    for index in range(_NUM_COMPARED_LOSSES, len(losses)):
        mean = statistics.fmean(loss for _, loss in losses[index - _NUM_COMPARED_LOSSES : index])
        if mean and losses[index][1] / mean > _SPIKE_RATIO:
            return losses[index][0]
    return None


def _detect_vanishing_gradient(record: MonitorRecord) -> int | None:
    return _first_step(step.step for step in record.steps if step.smallest_gradient < _MIN_GRADIENT)


def _detect_exploding_tensor(record: MonitorRecord) -> int | None:
    return _first_step(step.step for step in record.steps if step.has_non_finite_value)


def _detect_dead_relu(record: MonitorRecord) -> int | None:
    return _first_step(step.step for step in record.steps if step.dead_share > _MAX_DEAD_SHARE)


def _detect_unchanged_tensor(record: MonitorRecord) -> int | None:
    num_unchanged_steps: dict[int, int] = {}
    for step in record.steps:
        num_unchanged_steps = {
            index: num_unchanged_steps.get(index, 0) + 1 for index in step.unchanged_parameters
        }
        if max(num_unchanged_steps.values(), default=0) >= _MIN_UNCHANGED_STEPS:
            return step.step
    return None


def _detect_update_ratio(record: MonitorRecord) -> int | None:
    return _first_step(
        step.step
        for step in record.steps
        if step.largest_update_ratio > _MAX_UPDATE_RATIO
        or step.smallest_update_ratio < _MIN_UPDATE_RATIO
    )


def _detect_loss_not_decreasing(record: MonitorRecord) -> int | None:
    losses = _losses_with_steps(record)
    return _first_step(
        losses[index][0]
        for index in range(_NUM_COMPARED_LOSSES, len(losses))
        if not losses[index][1] < losses[index - _NUM_COMPARED_LOSSES][1]
    )


def _detect_overfit(record: MonitorRecord) -> int | None:
    return _first_step(
        v.step
        for v in record.validations
        if v.training_loss
        and (v.validation_loss - v.training_loss) / v.training_loss > _MAX_OVERFIT_RATIO
    )


def _detect_all_zero_tensor(record: MonitorRecord) -> int | None:
    return _first_step(step.step for step in record.steps if step.num_all_zero_tensors)


def _detect_class_imbalance(record: MonitorRecord) -> int | None:
    counts = record.label_counts.values()
    # An alarm gets step 1, because the labels of the whole run are counted together.
    return 1 if len(counts) > 1 and max(counts) / min(counts) > _MAX_IMBALANCE_RATIO else None


_DEBUGGER_RULES: Mapping[str, Callable[[MonitorRecord], int | None]] = {
    "vanishing gradient": _detect_vanishing_gradient,
    "exploding tensor": _detect_exploding_tensor,
    "dead ReLU": _detect_dead_relu,
    "unchanged tensor": _detect_unchanged_tensor,
    "weight update ratio": _detect_update_ratio,
    "loss not decreasing": _detect_loss_not_decreasing,
    "overfit": _detect_overfit,
    "all-zero tensor": _detect_all_zero_tensor,
    "class imbalance": _detect_class_imbalance,
}
"""Built-in rules of Amazon SageMaker Debugger by name, with their documented default thresholds.
Each rule is applied at every step, and returns the step of its first alarm, or None."""

_ANOMALY = "detect_anomaly"
_NON_FINITE_LOSS = "loss is non-finite"
_LOSS_SPIKE = "loss spike"
_ANY_DEBUGGER_RULE = "SageMaker Debugger, any rule"
_ALWAYS, _NEVER = "always alarm", "never alarm"

BASELINES: tuple[str, ...] = (
    _ANOMALY,
    _NON_FINITE_LOSS,
    _LOSS_SPIKE,
    _ANY_DEBUGGER_RULE,
    *(f"debugger: {name}" for name in _DEBUGGER_RULES),
    _ALWAYS,
    _NEVER,
)
"""Names of all baselines."""


def find_alarms(record: MonitorRecord, *, anomaly_step: int | None) -> dict[str, int]:
    """Return the step of the first alarm, by name of the baseline; no alarm, no entry.

    Args:
        record: Record of an untraced run.
        anomaly_step: Step at which autograd's anomaly mode stopped the program; None if it ended.
    """
    debugger_steps = {f"debugger: {name}": rule(record) for name, rule in _DEBUGGER_RULES.items()}
    alarm_steps = [step for step in debugger_steps.values() if step is not None]
    first_steps = {
        _ANOMALY: anomaly_step,
        _NON_FINITE_LOSS: _detect_non_finite_loss(record),
        _LOSS_SPIKE: _detect_loss_spike(record),
        _ANY_DEBUGGER_RULE: min(alarm_steps, default=None),
        **debugger_steps,
        _ALWAYS: 1,
        _NEVER: None,
    }
    return {name: step for name, step in first_steps.items() if step is not None}


def _first_step(steps: Iterator[int]) -> int | None:
    return next(steps, None)
