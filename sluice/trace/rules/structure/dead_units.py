"""Detects layers without any active neuron."""

import math
from collections.abc import Iterator
from itertools import takewhile

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.step_statistics import OutputStatistics
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_jumps import LossJumpSettings, find_loss_jump
from sluice.trace.rules._helpers.measurements import parameter_records, step_losses

_ACTIVATIONS = frozenset({"ReLU", "ReLU6", "GELU", "SiLU", "Hardswish", "Threshold"})
"""Classes of activations that return 0 for sufficiently negative inputs."""


class DeadUnitsSettings(Settings):
    """Thresholds of the rule ``DEAD_UNITS``."""

    min_steps: int = Field(
        3,
        ge=1,
        description="A layer counts as dead if no neuron was active in at least this number of "
        "consecutive measured steps. The last of these steps must be the last measured step of "
        "the layer.",
    )
    min_values: int = Field(
        32,
        ge=1,
        description="A finding requires that the output of the layer has at least this number of "
        "values (rows times neurons).",
    )
    jump: LossJumpSettings = Field(
        LossJumpSettings(),
        description="Thresholds of a jump of the loss. If the loss jumped between the last active "
        "and the first inactive measured step, the finding reports the step of the jump.",
    )


def _find_inactive_outputs(
    settings: DeadUnitsSettings, trace: Trace
) -> Iterator[tuple[int, OutputStatistics]]:
    """Yield the step and the statistics of each output without an active neuron.

    The output of an activation is inactive if it is 0 everywhere. The output of another layer is
    inactive if it is negative everywhere, and the gradient of the layer is 0 although another layer
    has a nonzero gradient.
    """
    records = parameter_records(trace)
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    for measured_step in trace.statistics:
        grad_norms_by_module: dict[str, list[float]] = {}
        for optimizer in measured_step.optimizers:
            for index, norm in zip(optimizer.parameters, optimizer.grad_norms, strict=True):
                for name in records[index].names if index in records else ():
                    grad_norms_by_module.setdefault(name.rpartition(".")[0], []).append(norm)
        has_nonzero_gradient = any(
            norm > 0 for norms in grad_norms_by_module.values() for norm in norms
        )
        for output in measured_step.outputs:
            if output.numel < settings.min_values:
                continue
            if output.kind in _ACTIVATIONS:
                is_inactive = output.zero_share == 1
            else:
                module = f"{names.get(output.network, '')}.{output.module}"
                is_inactive = (
                    output.largest < 0
                    and has_nonzero_gradient
                    and max(grad_norms_by_module.get(module, [math.nan])) == 0
                )
            if is_inactive:
                yield measured_step.step, output


def _judge(rule: Rule[DeadUnitsSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    measured_steps_by_layer: dict[tuple[int, str], list[int]] = {}
    for measured_step in trace.statistics:
        for output in measured_step.outputs:
            measured_steps_by_layer.setdefault((output.network, output.module), []).append(
                measured_step.step
            )
    inactive_outputs: dict[tuple[int, str], dict[int, OutputStatistics]] = {}  # by layer and step
    for step, output in _find_inactive_outputs(rule.settings, trace):
        inactive_outputs.setdefault((output.network, output.module), {})[step] = output
    jump = find_loss_jump(step_losses(trace), rule.settings.jump)
    findings = []
    for (network, module), outputs in inactive_outputs.items():
        steps = measured_steps_by_layer[network, module]
        num_inactive_steps = len([*takewhile(outputs.__contains__, reversed(steps))])
        if num_inactive_steps < rule.settings.min_steps:
            continue
        output = outputs[steps[-1]]
        step = first_inactive_step = steps[-num_inactive_steps]
        what = (
            f"{names.get(network, 'a network')}.{module} ({output.kind}): none of {output.numel} "
            f"values is positive in the last {num_inactive_steps} of {len(steps)} measured steps, "
            f"from step {first_inactive_step} on."
        )
        # The layer became inactive between its last active and its first inactive measured step. A
        # jump of the loss in this interval shows at which step.
        last_active_step = steps[-num_inactive_steps - 1] if num_inactive_steps < len(steps) else 0
        if jump is not None and last_active_step < jump.step <= first_inactive_step:
            step = jump.step
            what += (
                f" The loss jumped from {jump.median_before:.4g} to {jump.median_after:.4g} at "
                f"step {step}."
            )
        findings.append(
            rule.finding(
                severity="error",
                step=step,
                what=what,
                cause="No gradient passes through this layer, so neither this layer nor the layers "
                "before it can recover.",
                fix="Check the bias and the weights of this layer: use a zero bias and torch's "
                "default initialization, or a lower learning rate.",
                num_inactive=num_inactive_steps,
                num_measured=len(steps),
            )
        )
    # Return only the earliest finding: it may be the reason why the other layers are inactive.
    return tuple(sorted(findings, key=lambda finding: finding.step)[:1])


DEAD_UNITS = Rule(
    name="every layer has active neurons",
    fault="dead units",
    priority=230,
    requires="Three measured steps of an activation, or of another layer and its gradients.",
    contradicted_by="A positive value in the output, or a gradient in the layer.",
    abstains="Only some neurons are inactive, or the layer was not called.",
    settings=DeadUnitsSettings(),
    judge=_judge,
)
