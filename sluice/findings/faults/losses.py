"""Faults of losses and scores: their values, shapes and types."""

from functools import partial
from typing import Literal

from sluice.findings.fault import Fault

LossFault = Literal[
    "non-finite loss",
    "invalid loss type",
    "wrong loss shape",
    "detached loss",
    "loss broadcasting",
    "logits-probability mix-up",
    "extreme logits",
    "invalid scoring method",
]

_fault = partial(Fault, topic="losses")

LOSS_FAULTS: tuple[Fault, ...] = (
    _fault(
        id="non-finite-loss",
        name="non-finite loss",
        severity="error",
        description="The loss is NaN or infinite: a step with it makes all weights non-finite.",
        cause=(
            "A log of 0, a division by 0, an overflow, or NaN in the targets makes the loss NaN or "
            "infinite."
        ),
        fix="Clamp the argument of log and division in the loss, and check the target column.",
        detectors=(
            "POC gate",
            "tracer",
            "training diagnosis",
        ),
    ),
    _fault(
        id="invalid-loss-type",
        name="invalid loss type",
        severity="error",
        description="The loss is not a floating-point tensor.",
        cause="The workload's loss does not return a torch tensor of floating-point type.",
        fix="Return a floating-point tensor computed with torch from the model's output.",
        detectors=("POC gate",),
    ),
    _fault(
        id="wrong-loss-shape",
        name="wrong loss shape",
        severity="error",
        description=(
            "loss() does not return one number, or losses() does not return one number per example."
        ),
        cause="loss() does not reduce over the batch, or losses() reduces over too many axes.",
        fix=(
            "Return one value per example (B,) from losses(), and one value from loss(), for "
            "example losses(...).mean()."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="detached-loss",
        name="detached loss",
        severity="error",
        description="The loss does not depend on any trainable parameter: nothing learns.",
        cause=(
            "Every layer is frozen, or detach() or no_grad() disconnects the output from the "
            "parameters."
        ),
        fix="Set requires_grad on the layers to be trained, and remove the detach() or no_grad().",
        detectors=(
            "POC gate",
            "tracer",
        ),
    ),
    _fault(
        id="loss-broadcasting",
        name="loss broadcasting",
        severity="error",
        description=(
            "Outputs are broadcast against targets of another shape: every output is compared "
            "with every target."
        ),
        cause="The outputs or the targets have an additional dimension of length 1.",
        fix=(
            "Use one shape for outputs and targets: apply squeeze(-1) to the tensor with the "
            "additional dimension, or unsqueeze(-1) to the other tensor."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="logits-probability-mix-up",
        name="logits-probability mix-up",
        severity="error",
        description="A loss function receives probabilities instead of logits, or the reverse.",
        cause=(
            "The network ends in a softmax or sigmoid that the loss function also applies, or the "
            "network lacks a softmax or sigmoid that the loss function expects."
        ),
        fix=(
            "Choose the loss function by the output of the network: cross_entropy and "
            "binary_cross_entropy_with_logits for logits, nll_loss for log-probabilities."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="extreme-logits",
        name="extreme logits",
        severity="warning",
        description=(
            "The network is confident and wrong before training, so the first steps only reduce "
            "the logits."
        ),
        cause="The weights of the last layer or the inputs are too large.",
        fix="Initialize the weights of the last layer with smaller values, or scale the inputs.",
        detectors=("tracer",),
    ),
    _fault(
        id="invalid-scoring-method",
        name="invalid scoring method",
        severity="error",
        description=(
            "metrics(), baseline() or another method that only the evaluation calls raises an "
            "exception or returns unusable values."
        ),
        cause=(
            "The method was written for other outputs or targets. It is first called by the "
            "evaluation, after the training."
        ),
        fix="Correct the named method of the workload.",
        detectors=("POC gate",),
    ),
)
