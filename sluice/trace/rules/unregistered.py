"""Is every module that learns part of its network?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.membership import has_manual_gradients
from sluice.trace.rules.steps import optimizers_in


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    now = trace.membership
    if now is None or not optimizers_in(trace) or has_manual_gradients(trace):
        return ()
    known = {p.index for p in now.parameters if p.names}
    graded = {p.index for m in trace.memberships for p in m.parameters if p.has_had_gradient}
    found = []
    for network in now.networks:
        stray = [
            (s, own)
            for s in network.stray
            if (own := (set(s.parameters) & graded) - known - now.optimized)
        ]
        if not stray:
            continue
        parameters = set().union(*(own for _, own in stray))
        kinds = sorted({s.kind for s, _ in stray})
        step = next(
            m.step
            for m in trace.memberships
            for n in m.networks
            if n.index == network.index and n.stray
        )
        found.append(
            rule.finding(
                severity="error",
                step=step,
                what=f"{network.name} calls {len(stray)} modules ({', '.join(kinds)}) that are not "
                f"registered in it; their {len(parameters)} parameters get gradients and are in "
                f"no optimizer.",
                cause="A plain list or dict of modules hides them: parameters(), to(), train() and "
                "state_dict() leave them out, and they never learn.",
                fix="Put them in an nn.ModuleList or nn.ModuleDict.",
                num_modules=len(stray),
                num_parameters=len(parameters),
            )
        )
    return tuple(found)


UNREGISTERED = Rule(
    name="every module that learns is part of its network",
    fault="module unregistered",
    requirement="TRACE-16",
    requires="The membership at a step, and a module that is called inside a network.",
    contradicted_by="An optimizer, or another network, that has the parameters.",
    abstains="The module gets no gradient, as a teacher does not; gradients are set by hand.",
    judge=_judge,
)
