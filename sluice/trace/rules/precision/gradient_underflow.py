"""Detects float16 gradients that underflow to zero."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.step_statistics import OptimizerStatistics
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.measurements import (
    measurements_of,
    parameter_names,
    parameter_records,
    weight_positions,
)
from sluice.trace.rules._helpers.optimizer_steps import (
    optimizer_name,
    stepping_optimizers,
    steps_of,
)
from sluice.trace.rules._helpers.parameters import list_names


class GradientUnderflowSettings(Settings):
    """Thresholds of the rule ``GRADIENT_UNDERFLOW``."""

    min_steps: int = Field(
        2,
        ge=1,
        description="A finding requires at least this number of measured steps with zero "
        "gradients. Such steps must also be at least half of all measured steps.",
    )
    min_zero_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="A measured step counts as a step with zero gradients if at least this share "
        "of the weight tensors have a gradient of only zeros.",
    )


def _uses_float16(trace: Trace, step: int, step_statistics: OptimizerStatistics) -> bool:
    records = parameter_records(trace)
    if any(records[p].dtype == "float16" for p in step_statistics.parameters if p in records):
        return True
    return any(
        output.dtype == "float16"
        for statistics in trace.statistics
        if statistics.step == step
        for output in statistics.outputs
    )


def _last_scaled_step(trace: Trace, optimizer: int) -> int:
    """Return the last step of an optimizer with a scaled loss; 0 without such a step."""
    return max(
        (
            s.sequence.last_step
            for s in steps_of(trace, optimizer)
            if any("scaled" in event.flags for event in s.sequence.events)
        ),
        default=0,
    )


def _judge(rule: Rule[GradientUnderflowSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    losses_by_step = {scalars.step: scalars.losses for scalars in trace.scalars}
    names = parameter_names(trace)
    findings = []
    for optimizer in stepping_optimizers(trace):
        last_scaled_step = _last_scaled_step(trace, optimizer)
        # A step without a recorded loss counts as a step with a nonzero loss.
        measured_steps = [
            (step, step_statistics)
            for step, step_statistics in measurements_of(trace, optimizer)
            if step > last_scaled_step
            and _uses_float16(trace, step, step_statistics)
            and any(loss != 0 for loss in losses_by_step.get(step, (1.0,)))
        ]
        underflows = []
        for step, step_statistics in measured_steps:
            positions = list(weight_positions(trace, step_statistics))
            zero_grad_weights = [
                step_statistics.parameters[i]
                for i in positions
                if step_statistics.grad_norms[i] == 0
            ]
            min_zero_grad_weights = rule.settings.min_zero_share * len(positions)
            if positions and len(zero_grad_weights) >= min_zero_grad_weights:
                underflows.append((step, zero_grad_weights))
        if len(underflows) < max(rule.settings.min_steps, len(measured_steps) / 2):
            continue
        step, zero_grad_weights = underflows[0]
        findings.append(
            rule.finding(
                severity="error",
                step=step,
                what=f"{optimizer_name(trace, optimizer)}: in {len(underflows)} of "
                f"{len(measured_steps)} measured steps at least {rule.settings.min_zero_share:.0%} "
                "of the weight tensors have only zero gradients, in float16 and without a gradient "
                f"scaler. At step {step}: {list_names([names[p] for p in zero_grad_weights])}.",
                cause="Values below 3e-8 become zero in float16: the gradient is lost before the "
                "step.",
                fix="Scale the loss with torch.amp.GradScaler, or use bfloat16.",
                num_underflows=len(underflows),
                num_measured=len(measured_steps),
                num_weights=len(zero_grad_weights),
            )
        )
    return tuple(findings)


GRADIENT_UNDERFLOW = Rule(
    name="float16 gradients do not underflow",
    fault="gradient underflow",
    priority=200,
    requires="At least two measured steps with parameters or outputs in float16.",
    contradicted_by="Non-zero gradients in more than half of the weight tensors.",
    abstains="A gradient scaler is used later in the run, or the loss is zero.",
    settings=GradientUnderflowSettings(),
    judge=_judge,
)
