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
        description="Consecutive measured steps, up to the last one, required for a finding.",
    )
    min_values: int = Field(
        32, ge=1, description="Values in the output, rows times neurons, required for a finding."
    )
    jump: LossJumpSettings = Field(LossJumpSettings(), description="Jump of the loss.")


def _silent_outputs(
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
        learns = any(n > 0 for values in norms.values() for n in values)
        for output in measured.outputs:
            if output.numel < settings.min_values:
                continue
            if output.kind in _ACTIVATIONS:
                is_silent = output.zero_share == 1
            else:
                gradient_norms = norms.get(
                    f"{names.get(output.network, '')}.{output.module}", [1.0]
                )
                is_silent = output.largest < 0 and learns and max(gradient_norms) == 0
            if is_silent:
                yield measured.step, output.network, output.module, output.kind, output.numel


def _judge(rule: Rule[DeadUnitsSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    outputs = [(o.network, o.module, m.step) for m in trace.statistics for o in m.outputs]
    num_measured = Counter((network, module) for network, module, _ in outputs)
    last = {(network, module): step for network, module, step in outputs}
    steps: dict[tuple[int, str], list[int]] = {}
    kinds: dict[tuple[int, str], tuple[str, int]] = {}
    for step, network, module, kind, numel in _silent_outputs(rule.settings, trace):
        steps.setdefault((network, module), []).append(step)
        kinds[network, module] = kind, numel
    jump = find_loss_jump(step_losses(trace), rule.settings.jump)
    findings = []
    for key, silent in steps.items():
        times = [s for n, m, s in outputs if (n, m) == key]
        tail = 0
        for step in reversed(times):
            if step not in silent:
                break
            tail += 1
        if tail < rule.settings.min_steps or silent[-1] != last[key]:
            continue
        kind, numel = kinds[key]
        name = f"{names.get(key[0], 'a network')}.{key[1]}"
        step = since = times[-tail]
        what = (
            f"{name} ({kind}): none of {numel} values is positive in the last {tail} of "
            f"{num_measured[key]} measured steps, from step {since} on."
        )
        # The layer became inactive after the previous measured step. A jump of the loss since then
        # shows when.
        if jump is not None and times[-tail - 1 : -tail] < [jump.step] <= [since]:
            step = jump.step
            what += f" The loss jumped from {jump.before:.4g} to {jump.after:.4g} at step {step}."
        findings.append(
            rule.finding(
                severity="error",
                step=step,
                what=what,
                cause="No gradient passes through this layer, so neither it nor the layers before "
                "it can recover.",
                fix="Check the bias and the weights of this layer: use a zero bias and torch's "
                "default initialization, or a lower learning rate.",
                num_silent=tail,
                num_measured=num_measured[key],
            )
        )
    return tuple(sorted(findings, key=lambda f: f.step)[:1])


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
