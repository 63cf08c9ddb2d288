"""Faults of gradients: their values, the order of calls, and numerical precision."""

from functools import partial
from typing import Literal

from sluice.findings.fault import Fault

GradientFault = Literal[
    "non-finite gradient",
    "zero gradients",
    "vanishing gradients",
    "explosion",
    "missing zero_grad",
    "misplaced zero_grad",
    "step before backward",
    "clip after step",
    "clip before unscale",
    "clip norm mismatch",
    "unnormalized gradient accumulation",
    "gradient scaler skips steps",
    "gradient underflow",
    "updates lost to rounding",
    "fp16 abandoned",
]

_fault = partial(Fault, topic="gradients")

GRADIENT_FAULTS: tuple[Fault, ...] = (
    _fault(
        id="non-finite-gradient",
        name="non-finite gradient",
        severity="error",
        description="A gradient is NaN or infinite although the loss is finite.",
        cause="A division by 0, a log of 0, a square root at 0, or NaN in the features or weights.",
        fix="Clamp the argument of log, sqrt and division, and check features and initial weights.",
        detectors=(
            "POC gate",
            "tracer",
        ),
    ),
    _fault(
        id="zero-gradients",
        name="zero gradients",
        severity="error",
        description="A parameter gets a gradient of exactly 0.",
        cause=(
            "A parameter has no influence on the loss of this batch: dead units, saturated gates, "
            "or an initialisation at exactly 0."
        ),
        fix="Check the activation and the initialisation of the layers with the named parameters.",
        detectors=("POC gate",),
    ),
    _fault(
        id="vanishing-gradients",
        name="vanishing gradients",
        severity="warning",
        description=(
            "The gradient shrinks from layer to layer, so the layers far from the loss do not "
            "learn."
        ),
        cause=(
            "Activations saturate, or a deep or recurrent network has no residual connections or "
            "normalization."
        ),
        fix=(
            "Use residual connections, normalization layers, or an activation function that does "
            "not saturate."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="explosion",
        name="explosion",
        severity="error",
        description="Outputs or gradients become too large.",
        cause=(
            "Values grow from layer to layer: unscaled features or targets, a high learning rate, "
            "an output that is not scaled to the target, or a long unnormalised recurrence."
        ),
        fix="Standardise features and target, lower learning_rate, or lower clip_norm.",
        detectors=(
            "POC gate",
            "training diagnosis",
        ),
    ),
    _fault(
        id="missing-zero-grad",
        name="missing zero_grad",
        severity="confirm",
        description=(
            "Gradients are not cleared between steps, so a step also uses gradients of earlier "
            "batches."
        ),
        cause="zero_grad() is not called.",
        fix="Call optimizer.zero_grad() once per step, before backward().",
        detectors=("tracer",),
    ),
    _fault(
        id="misplaced-zero-grad",
        name="misplaced zero_grad",
        severity="error",
        description=(
            "Gradients are cleared between backward() and the step, so the step cannot use them."
        ),
        cause="zero_grad() is called after backward().",
        fix=(
            "Clear gradients before backward() or after step(), also if you clear gradients "
            "manually."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="step-before-backward",
        name="step before backward",
        severity="error",
        description="The optimizer makes its step before the backward pass of the batch.",
        cause="step() is called before backward().",
        fix="Order each batch as zero_grad(), forward, backward(), step().",
        detectors=("tracer",),
    ),
    _fault(
        id="clip-after-step",
        name="clip after step",
        severity="error",
        description=(
            "Gradients are clipped after the step that uses them, so the clipping has no effect."
        ),
        cause="The clipping is called after step().",
        fix="Clip between backward() and step().",
        detectors=("tracer",),
    ),
    _fault(
        id="clip-before-unscale",
        name="clip before unscale",
        severity="error",
        description=(
            "Gradients are clipped while they still contain the loss scale. After unscaling, they "
            "are almost zero."
        ),
        cause="scaler.unscale_(optimizer) is not called before the clipping.",
        fix="Call scaler.unscale_(optimizer) before clipping.",
        detectors=("tracer",),
    ),
    _fault(
        id="clip-norm-mismatch",
        name="clip norm mismatch",
        severity="warning",
        description=(
            "The clipping limit is far below the usual gradient norm, so that it acts as a second "
            "learning rate."
        ),
        cause="The limit is too small, or the loss is summed and not averaged.",
        fix=(
            "Raise the limit to about the usual norm (0.5 to 1 for transformers, 5 to 10 for "
            "recurrent networks), or average the loss instead of summing it."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="unnormalized-gradient-accumulation",
        name="unnormalized gradient accumulation",
        severity="error",
        description=(
            "Gradients of several batches are added without a division of the loss, so that the "
            "gradient is too large."
        ),
        cause="The loss is not divided by the number of accumulated batches.",
        fix="Divide the loss by the number of batches before backward().",
        detectors=("tracer",),
    ),
    _fault(
        id="gradient-scaler-skips-steps",
        name="gradient scaler skips steps",
        severity="error",
        description=(
            "From some step on, the gradient scaler skips all steps: the weights no longer change."
        ),
        cause="A gradient is infinite or NaN at any scale.",
        fix=(
            "Find the first non-finite gradient: a division by 0, a log or root of 0, or a loss "
            "that overflows."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="gradient-underflow",
        name="gradient underflow",
        severity="error",
        description="Gradients in float16 underflow to zero before the step.",
        cause="Values below 3e-8 become zero in float16.",
        fix="Scale the loss with torch.amp.GradScaler, or use bfloat16.",
        detectors=("tracer",),
    ),
    _fault(
        id="updates-lost-to-rounding",
        name="updates lost to rounding",
        severity="error",
        description="Updates of 16-bit weights are lost to rounding, so most weights never change.",
        cause="The update of a weight is smaller than half the distance to the next 16-bit number.",
        fix="Keep the weights in float32 and use torch.autocast, or raise the learning rate.",
        detectors=("tracer",),
    ),
    _fault(
        id="fp16-abandoned",
        name="fp16 abandoned",
        severity="warning",
        description="Steps in fp16 overflowed, so the rest of the training used fp32.",
        cause="Gradients or outputs exceed fp16's largest number, 65,504.",
        fix="Use bf16, which has the range of fp32; or scale the target.",
        detectors=("training diagnosis",),
    ),
)
