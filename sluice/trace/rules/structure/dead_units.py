"""Detects layers without any active neuron."""

from collections import Counter
from collections.abc import Iterator

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loss_jumps import LossJumpSettings, find_loss_jump
from sluice.trace.rules._helpers.measurements import parameter_records, step_losses

_ACTIVATIONS = frozenset({"ReLU", "ReLU6", "GELU", "SiLU", "Hardswish", "Threshold"})


class DeadUnitsSettings(Settings):
    """Thresholds of the rule ``DEAD_UNITS``."""

    min_steps: int = Field(
        3,
        ge=1,
        description="Minimum number of consecutive measured steps without an active neuron for a "
        "finding. The last measured step of the layer must be one of them.",
    )
    min_values: int = Field(
        32,
        ge=1,
        description="Minimum number of values in the output of a layer, rows times neurons, for a "
        "finding.",
    )
    jump: LossJumpSettings = Field(
        LossJumpSettings(), description="Thresholds of a jump of the loss."
    )


def _inactive_outputs(
    settings: DeadUnitsSettings, trace: Trace
) -> Iterator[tuple[int, int, str, str, int]]:
    """Yield step, network, module, kind and size of each output without an active neuron."""
    records = parameter_records(trace)
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    for measured in trace.statistics:
        norms: dict[str, list[float]] = {}
        for measured_optimizer in measured.optimizers:
            for index, norm in zip(
                measured_optimizer.parameters, measured_optimizer.grad_norms, strict=True
            ):
                for name in records[index].names if index in records else ():
                    norms.setdefault(name.rpartition(".")[0], []).append(norm)
        has_gradients = any(n > 0 for values in norms.values() for n in values)
        for output in measured.outputs:
            if output.numel < settings.min_values:
                continue
            if output.kind in _ACTIVATIONS:
                is_inactive = output.zero_share == 1
            else:
                gradient_norms = norms.get(
                    f"{names.get(output.network, '')}.{output.module}", [1.0]
                )
                is_inactive = output.largest < 0 and has_gradients and max(gradient_norms) == 0
            if is_inactive:
                yield measured.step, output.network, output.module, output.kind, output.numel


def _judge(rule: Rule[DeadUnitsSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    outputs = [(o.network, o.module, m.step) for m in trace.statistics for o in m.outputs]
    num_measured = Counter((network, module) for network, module, _ in outputs)
    last_step = {(network, module): step for network, module, step in outputs}
    steps: dict[tuple[int, str], list[int]] = {}
    kinds_and_sizes: dict[tuple[int, str], tuple[str, int]] = {}
    for step, network, module, kind, numel in _inactive_outputs(rule.settings, trace):
        steps.setdefault((network, module), []).append(step)
        kinds_and_sizes[network, module] = kind, numel
    jump = find_loss_jump(step_losses(trace), rule.settings.jump)
    findings = []
    for key, inactive_steps in steps.items():
        called_steps = [s for n, m, s in outputs if (n, m) == key]
        num_inactive = 0
        for step in reversed(called_steps):
            if step not in inactive_steps:
                break
            num_inactive += 1
        if num_inactive < rule.settings.min_steps or inactive_steps[-1] != last_step[key]:
            continue
        kind, numel = kinds_and_sizes[key]
        name = f"{names.get(key[0], 'a network')}.{key[1]}"
        step = since = called_steps[-num_inactive]
        what = (
            f"{name} ({kind}): none of {numel} values is positive in the last {num_inactive} of "
            f"{num_measured[key]} measured steps, from step {since} on."
        )
        # The layer became inactive after the previous measured step. A jump of the loss since then
        # shows when.
        last_active_step = called_steps[-num_inactive - 1 : -num_inactive]  # [] without one
        if jump is not None and last_active_step < [jump.step] <= [since]:
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
                cause="No gradient passes through this layer, so neither it nor the layers before "
                "it can recover.",
                fix="Check the bias and the weights of this layer: use a zero bias and torch's "
                "default initialization, or a lower learning rate.",
                num_silent=num_inactive,
                num_measured=num_measured[key],
            )
        )
    return tuple(sorted(findings, key=lambda finding: finding.step)[:1])


DEAD_UNITS = Rule(
    name="every layer has active neurons",
    fault="dead units",
    priority=230,
    requires="Either three measured steps of an activation, or three measured steps of a layer "
    "with its gradients.",
    contradicted_by="A positive value in the output, or a gradient in the layer.",
    abstains="Only some neurons are inactive, or the layer was not called.",
    settings=DeadUnitsSettings(),
    judge=_judge,
)
