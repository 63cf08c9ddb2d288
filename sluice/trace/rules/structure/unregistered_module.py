"""Detects modules that a network calls but does not register."""

from sluice.base.pluralize import pluralize
from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.optimizer_steps import stepping_optimizers
from sluice.trace.rules._helpers.parameters import has_manual_gradients


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    membership = trace.membership
    if membership is None or not stepping_optimizers(trace) or has_manual_gradients(trace):
        return ()
    registered_parameters = {p.index for p in membership.parameters if p.names}
    parameters_with_gradient = {
        p.index for m in trace.memberships for p in m.parameters if p.has_had_gradient
    }
    unregistered_parameters = (
        parameters_with_gradient - registered_parameters - membership.optimized
    )
    findings = []
    for network in membership.networks:
        modules = [
            m for m in network.unregistered_modules if unregistered_parameters & set(m.parameters)
        ]
        if not modules:
            continue
        parameters = unregistered_parameters & {p for m in modules for p in m.parameters}
        kinds = sorted({m.kind for m in modules})
        step = next(
            m.step
            for m in trace.memberships
            for n in m.networks
            if n.index == network.index and n.unregistered_modules
        )
        findings.append(
            rule.finding(
                severity="error",
                step=step,
                what=f"{network.name} calls "
                f"{pluralize(len(modules), 'unregistered module')} "
                f"({', '.join(kinds)}), with gradients for "
                f"{pluralize(len(parameters), 'parameter')} that no optimizer contains.",
                cause="A plain list or dict hides modules: parameters(), to(), train() and "
                "state_dict() do not include them, and they never learn.",
                fix="Use an nn.ModuleList or nn.ModuleDict.",
                num_modules=len(modules),
                num_parameters=len(parameters),
            )
        )
    return tuple(findings)


UNREGISTERED_MODULE = Rule(
    name="every trained module is registered in its network",
    fault="unregistered module",
    priority=150,
    requires="Recorded networks and optimizers, and an unregistered module that a network calls.",
    contradicted_by="An optimizer, or another network, that contains the parameters.",
    abstains="The module receives no gradient, such as the teacher in a distillation; or the "
    "program sets gradients itself.",
    settings=NoThresholds(),
    judge=_judge,
)
