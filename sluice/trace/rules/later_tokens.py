"""Does a network that learns to tell the next token see it?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule

_MOVES = 1e-3
"""Of the largest output, in single precision: less may be rounding."""


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    names = {n.index: n.name for m in trace.memberships for n in m.networks}
    return tuple(
        rule.finding(
            severity="error",
            step=probe.step + 1,
            what=f"{names.get(probe.network, 'a network')}: its targets are its input shifted by "
            f"one token, and other tokens at the last {probe.changed} positions move outputs "
            f"before them by {probe.largest_effect:.1%}.",
            cause="Each output sees the token that it has to tell: the loss falls, and nothing is "
            "learned that generation can use.",
            fix="Give the attention a causal mask, or make the layer look at the past alone.",
            num_changed=probe.changed,
            largest_effect=probe.largest_effect,
        )
        for probe in trace.probes
        if probe.probe == "later tokens" and probe.largest_effect > _MOVES
    )


LATER_TOKENS = Rule(
    name="no output sees a later token",
    fault="later tokens leak",
    requirement="TRACE-4",
    requires="A cross entropy whose targets are the next tokens of the input, and a copy of the "
    "network that could be tried.",
    contradicted_by="Outputs that stay the same when later tokens change.",
    abstains="Targets are not the next tokens, or the network cannot be copied.",
    judge=_judge,
)
