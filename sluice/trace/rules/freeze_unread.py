"""Does what was to be frozen rest?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.membership import listing, since_named
from sluice.trace.rules.modes import learning_networks


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    now = trace.membership
    if now is None:
        return ()
    facts = {p.index: p for p in now.parameters}
    found = []
    for network in learning_networks(trace):
        meant = [
            m
            for m in network.misnamed
            if not m.value
            and any(
                facts[p].is_trainable for p in m.parameters if p in facts and p in now.optimized
            )
        ]
        if not meant:
            continue
        found.append(
            rule.finding(
                severity="confirm",
                step=since_named(trace, meant),
                what=f"{network.name}: {listing([m.owner for m in meant])} "
                f"{'has' if len(meant) == 1 else 'have'} {meant[0].attribute} = False, and "
                "parameters in there go on learning.",
                cause="torch reads requires_grad of parameters alone; any other name, or the same "
                "one on a module, is an attribute without a meaning.",
                fix="Call requires_grad_(False), of the module or of a parameter.",
                num_learning=len({p for m in meant for p in m.parameters}),
            )
        )
    return tuple(found)


FREEZE_UNREAD = Rule(
    name="what is to be frozen rests",
    fault="freeze without effect",
    requirement="TRACE-16",
    requires="An attribute of a module or parameter that looks like requires_grad, and is not.",
    contradicted_by="A setting of the program's own that has the same name.",
    abstains="Nothing in there learns, or no optimizer holds it.",
    judge=_judge,
)
