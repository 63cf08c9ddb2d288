"""Faults of optimization: the learning rate, its schedule, and the course of a training."""

from functools import partial
from typing import Literal

from sluice.findings.fault import Fault

OptimizationFault = Literal[
    "learning rate too high",
    "learning rate stays zero",
    "schedule ends early",
    "scheduler stepped per epoch",
    "scheduler before optimizer",
    "unstable Adam moments",
    "weights not updating",
    "loss not decreasing",
    "cannot overfit one batch",
    "overfitting",
    "underfitting",
    "stopped too early",
]

_fault = partial(Fault, topic="optimization")

OPTIMIZATION_FAULTS: tuple[Fault, ...] = (
    _fault(
        id="learning-rate-too-high",
        name="learning rate too high",
        severity="error",
        description=(
            "The training diverges: each step overshoots the minimum, so the loss increases."
        ),
        cause="learning_rate is too high, clip_norm is too large, or loss() has the wrong sign.",
        fix=(
            "Lower learning_rate by a factor of 10 until the loss decreases, and check the sign "
            "of loss()."
        ),
        detectors=(
            "POC gate",
            "tracer",
        ),
    ),
    _fault(
        id="learning-rate-stays-zero",
        name="learning rate stays zero",
        severity="error",
        description="The learning rate is 0 for many steps, which therefore change no weight.",
        cause=(
            "The warmup factor is computed with an integer division, so it is 0 until the last "
            "warmup step."
        ),
        fix="Use float division and start at the first step: min(1.0, (step + 1) / warmup).",
        detectors=("tracer",),
    ),
    _fault(
        id="schedule-ends-early",
        name="schedule ends early",
        severity="error",
        description=(
            "The learning rate reaches its final value long before the training ends, so the "
            "weights stop changing."
        ),
        cause="A schedule whose length is given in epochs is stepped once per batch.",
        fix="Call scheduler.step() once per epoch, or set the length of the schedule in batches.",
        detectors=("tracer",),
    ),
    _fault(
        id="scheduler-stepped-per-epoch",
        name="scheduler stepped per epoch",
        severity="error",
        description="The learning rate stays near its initial value.",
        cause="A schedule whose length is given in batches is stepped once per epoch.",
        fix=(
            "Call scheduler.step() after every optimizer step, or set the length of the schedule "
            "in epochs."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="scheduler-before-optimizer",
        name="scheduler before optimizer",
        severity="confirm",
        description=(
            "The scheduler steps before its optimizer: the first learning rate is never used."
        ),
        cause="scheduler.step() is called before optimizer.step().",
        fix=(
            "Call scheduler.step() after optimizer.step(). When you resume from a checkpoint, "
            "load the scheduler's state instead of repeating its past steps."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="unstable-adam-moments",
        name="unstable Adam moments",
        severity="warning",
        description=(
            "The first moments of the optimizer grow in bursts, so the next steps are too large."
        ),
        cause="Gradients grow faster than the optimizer can adapt.",
        fix="Lower the learning rate, clip gradients, or check the batches before the burst.",
        detectors=("tracer",),
    ),
    _fault(
        id="weights-not-updating",
        name="weights not updating",
        severity="error",
        description="Optimizer steps change no parameter.",
        cause=(
            "Gradients do not reach the step, or updates are too small for the dtype of the "
            "weights."
        ),
        fix=(
            "Check whether the gradients (param.grad) are None or zero at the step. Instead of "
            "16-bit weights, use float32 weights with autocast."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="loss-not-decreasing",
        name="loss not decreasing",
        severity="warning",
        description="The training loss does not decrease.",
        cause=(
            "The loss does not decrease by more than the variation between seeds: learning_rate "
            "is too low or too high, layers are frozen, loss() and losses() disagree, or the "
            "features carry no information about the target."
        ),
        fix=(
            "Try learning_rate between 1e-4 and 1e-2, check that every layer requires gradients, "
            "and compare features with targets."
        ),
        detectors=(
            "POC gate",
            "tracer",
            "training diagnosis",
        ),
    ),
    _fault(
        id="cannot-overfit-one-batch",
        name="cannot overfit one batch",
        severity="error",
        description="The network cannot fit even a few examples.",
        cause=(
            "The model cannot fit even a few examples: the input does not reach the output, the "
            "loss ignores the output, layers are disconnected or saturated, or the capacity is "
            "too small."
        ),
        fix=(
            "Follow one example through forward(), and check the activations, detach() calls and "
            "the loss before training on more data."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="overfitting",
        name="overfitting",
        severity="warning",
        description="The validation loss increases, or is far above the training loss.",
        cause=(
            "The network memorizes the training rows, or the validation rows are preprocessed or "
            "sampled differently."
        ),
        fix=(
            "First check that training and validation rows are preprocessed in the same way. Then "
            "keep the weights with the lowest validation loss, and end the training at that epoch. "
            "More data, weight decay, dropout or a smaller network narrow the gap."
        ),
        detectors=(
            "tracer",
            "training diagnosis",
        ),
    ),
    _fault(
        id="underfitting",
        name="underfitting",
        severity="warning",
        description="The training loss is barely below the loss of the best constant prediction.",
        cause=(
            "The network is too small or too strongly regularised, the learning rate is too low, "
            "or the features carry little information about the target."
        ),
        fix=(
            "First double hidden, set weight_decay and dropout to 0, and run the learning-rate "
            "range test."
        ),
        detectors=("training diagnosis",),
    ),
    _fault(
        id="stopped-too-early",
        name="stopped too early",
        severity="warning",
        description="The validation loss still decreases at the last epoch.",
        cause="max_epochs ended the training before it converged.",
        fix="First double max_epochs; then raise learning_rate by a factor of 2 to 3.",
        detectors=("training diagnosis",),
    ),
)
