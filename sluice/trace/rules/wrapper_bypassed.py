"""Is a network for data parallel training called through its wrapper?"""

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.modes import learns_from


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    latest = {wrapper.index: wrapper for wrapper in trace.wrappers}
    by_hand = any(wrapper.network < 0 and wrapper.index < 0 for wrapper in trace.wrappers)
    if trace.start.world_size < 2 or by_hand:
        return ()
    found = []
    for wrapper in latest.values():
        around = [
            w for w in trace.words if wrapper.network >= 0 and learns_from(w, wrapper.network)
        ]
        through = [
            w for w in trace.words if wrapper.wrapper >= 0 and learns_from(w, wrapper.wrapper)
        ]
        if not around or through:
            continue
        steps = sum(word.count for word in around)
        found.append(
            rule.finding(
                severity="error",
                step=min(word.first_step for word in around),
                what=f"All {steps} steps learned from the network inside of its {wrapper.kind}, "
                "which was never called itself.",
                cause="The wrapper averages gradients over ranks only in passes that go through "
                "it: each rank trains alone.",
                fix="Call the wrapped network itself, ddp(x), not ddp.module(x).",
                num_steps=steps,
            )
        )
    return tuple(found)


WRAPPER_BYPASSED = Rule(
    name="a data parallel network learns through its wrapper",
    fault="ranks diverge",
    requirement="TRACE-5",
    requires="A wrapper for data parallel training and a step of the network in it.",
    contradicted_by="Gradients that the program averages over ranks by itself.",
    abstains="There is one rank, or gradients are reduced by hand.",
    judge=_judge,
)
