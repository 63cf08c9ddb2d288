"""Detects optimizers whose steps change no parameter."""

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.measurements import (
    changed_parameters,
    measurements_of,
    values_by_parameter,
)
from sluice.trace.rules._helpers.optimizer_steps import (
    count_steps,
    first_step_of,
    optimizer_name,
    stepping_optimizers,
    steps_of,
)


class WeightsNotUpdatingSettings(Settings):
    """Thresholds of the rule ``WEIGHTS_NOT_UPDATING``."""

    min_steps: int = Field(
        8, ge=1, description="A finding requires at least this number of optimizer steps."
    )


def _judge(rule: Rule[WeightsNotUpdatingSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    membership = trace.membership
    if membership is None:
        return ()
    samples, changed_indices = values_by_parameter(trace), changed_parameters(trace)
    findings = []
    for optimizer in membership.optimizers:
        if optimizer.index not in stepping_optimizers(trace):
            continue
        parameters = set(optimizer.parameters)
        steps = tuple(s for s in steps_of(trace, optimizer.index) if s.end_event.kind == "step")
        num_steps = count_steps(steps)
        rates = [
            max(statistics.rates, default=0.0)
            for _, statistics in measurements_of(trace, optimizer.index)
        ]
        sample_counts = [len(samples.get(p, ())) for p in parameters]
        if (
            num_steps < rule.settings.min_steps
            or parameters & changed_indices
            or not sample_counts
            or min(sample_counts) < 4
        ):
            continue
        if sum(rate > 0 for rate in rates) < 3:  # lr_stays_zero reports a rate of 0
            continue
        findings.append(
            rule.finding(
                severity="error",
                step=first_step_of(steps),
                what=f"{optimizer_name(trace, optimizer.index)}: none of its {len(parameters)} "
                f"parameters changed in {num_steps} steps, at a learning rate of up to "
                f"{max(rates):.3g}.",
                cause="Gradients do not reach the step, or updates are too small for the dtype of "
                "the weights.",
                fix="Check whether the gradients (param.grad) are None or zero at the step. "
                "Instead of 16-bit weights, use float32 weights with autocast.",
                num_parameters=len(parameters),
                num_steps=num_steps,
            )
        )
    return tuple(findings)


WEIGHTS_NOT_UPDATING = Rule(
    name="optimizer steps change the weights",
    fault="weights not updating",
    priority=300,
    requires="At least eight steps, and at least four samples of each parameter of the optimizer.",
    contradicted_by="A changed value of any parameter of the optimizer.",
    abstains="Fewer than three measured steps have a positive learning rate.",
    settings=WeightsNotUpdatingSettings(),
    judge=_judge,
)
