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
    registered = {p.index for p in membership.parameters if p.names}
    with_gradient = {p.index for m in trace.memberships for p in m.parameters if p.has_had_gradient}
    unregistered_parameters = with_gradient - registered - membership.optimized
    findings = []
    for network in membership.networks:
        unregistered_modules = [
            m for m in network.unregistered_modules if unregistered_parameters & set(m.parameters)
        ]
        if not unregistered_modules:
            continue
        parameters = unregistered_parameters & {
            p for m in unregistered_modules for p in m.parameters
        }
        kinds = sorted({module.kind for module in unregistered_modules})
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
                f"{pluralize(len(unregistered_modules), 'unregistered module')} "
                f"({', '.join(kinds)}), with gradients for "
                f"{pluralize(len(parameters), 'parameter')} that no optimizer contains.",
                cause="A plain list or dict hides modules: parameters(), to(), train() and "
                "state_dict() do not include them, and they never learn.",
                fix="Use an nn.ModuleList or nn.ModuleDict.",
                num_modules=len(unregistered_modules),
                num_parameters=len(parameters),
            )
        )
    return tuple(findings)


UNREGISTERED_MODULE = Rule(
    name="every trained module is registered in its network",
    fault="unregistered module",
    priority=150,
    requires="Recorded networks and optimizers, and a module that is called inside a network.",
    contradicted_by="An optimizer, or another network, that contains the parameters.",
    abstains="The module receives no gradient, such as a teacher; or the program sets gradients "
    "itself.",
    settings=NoThresholds(),
    judge=_judge,
)
