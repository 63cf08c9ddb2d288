"""Is what is frozen meant to be?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.membership import listing
from sluice.trace.rules.modes import learning_networks

_LEAST = 2
"""Frozen weights."""


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    now = trace.membership
    if now is None:
        return ()
    facts = {p.index: p for p in now.parameters}
    found = []
    for network in learning_networks(trace):
        own = [facts[p] for p in network.parameters if p in facts]
        weights = [p for p in own if len(p.shape) >= 2]
        frozen = [p for p in weights if not p.is_trainable]
        resting = [p for p in own if not p.is_trainable]
        if len(frozen) < max(_LEAST, len(weights)) or len(resting) == len(own):
            continue
        step = next(
            m.step
            for m in trace.memberships
            if {p.index for p in m.parameters if not p.is_trainable} >= {p.index for p in frozen}
        )
        found.append(
            rule.finding(
                severity="confirm",
                step=step,
                what=f"{network.name}: {len(resting)} of {len(own)} parameters do not learn, all "
                f"{len(weights)} weights among them, the last one too: "
                f"{listing([p.names[0] for p in reversed(frozen)])}.",
                cause="Only norms and biases learn; the output layer keeps its first values.",
                fix="Set requires_grad to True for the output layer, or for all that should learn.",
                num_frozen=len(resting),
                num_parameters=len(own),
            )
        )
    return tuple(found)


FROZEN = Rule(
    name="some weight of a network learns",
    fault="frozen by mistake",
    requirement="TRACE-16",
    requires="The membership at a step of a network that learns.",
    contradicted_by="A tuning of norms or biases alone, that is meant.",
    abstains="Any parameter of two dimensions learns, as the head on a frozen backbone does.",
    judge=_judge,
)
