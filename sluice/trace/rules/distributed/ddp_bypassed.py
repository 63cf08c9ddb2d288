"""Detects data parallel training that calls the network inside its wrapper."""

from sluice.base.pluralize import pluralize
from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.forward_passes import learning_forwards


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    latest = {wrapper.index: wrapper for wrapper in trace.wrappers}
    is_manual = any(wrapper.network < 0 and wrapper.index < 0 for wrapper in trace.wrappers)
    if trace.start.world_size < 2 or is_manual:
        return ()
    findings = []
    for wrapper in latest.values():
        inside = [
            sequence
            for sequence in trace.sequences
            if wrapper.network >= 0 and learning_forwards(sequence, wrapper.network)
        ]
        through_wrapper = [
            sequence
            for sequence in trace.sequences
            if wrapper.wrapper >= 0 and learning_forwards(sequence, wrapper.wrapper)
        ]
        if not inside or through_wrapper:
            continue
        num_steps = sum(sequence.count for sequence in inside)
        findings.append(
            rule.finding(
                severity="error",
                step=min(sequence.first_step for sequence in inside),
                what=f"{pluralize(num_steps, 'step')} used the network inside {wrapper.kind}; no "
                "step used the wrapper itself.",
                cause="The wrapper averages gradients over ranks only for forward passes through "
                "it: each rank trains its own network.",
                fix="Call the wrapper, ddp(x), not ddp.module(x).",
                num_steps=num_steps,
            )
        )
    return tuple(findings)


DDP_BYPASSED = Rule(
    name="a data parallel network is called through its wrapper",
    fault="weights diverge across ranks",
    priority=430,
    requires="A data parallel wrapper and a step of the network inside it.",
    contradicted_by="Gradients that the program averages over ranks itself.",
    abstains="There is one rank, or the program reduces gradients itself.",
    settings=NoThresholds(),
    judge=_judge,
)
