"""Detects data-parallel training that calls the wrapped network directly, not its wrapper."""

from sluice.base.pluralize import pluralize
from sluice.trace.finding import NoThresholds, Rule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.forward_passes import training_forwards


def _judge(rule: Rule[NoThresholds], trace: Trace) -> tuple[TraceFinding, ...]:
    # A record with index -1 shows that the program itself reduces gradients, without a wrapper.
    has_manual_reduction = any(record.index < 0 for record in trace.wrappers)
    if trace.start.world_size < 2 or has_manual_reduction:
        return ()
    findings = []
    latest_records = {record.index: record for record in trace.wrappers}
    for record in latest_records.values():
        # ``wrapper`` and ``network`` are the network indices of the wrapper and of the wrapped
        # network. The index of an object that the program itself does not call is -1, which no
        # forward pass has.
        bypassing_sequences = [s for s in trace.sequences if training_forwards(s, record.network)]
        if not bypassing_sequences or any(
            training_forwards(s, record.wrapper) for s in trace.sequences
        ):
            continue
        num_steps = sum(sequence.count for sequence in bypassing_sequences)
        findings.append(
            rule.finding(
                severity="error",
                step=min(sequence.first_step for sequence in bypassing_sequences),
                what=f"{pluralize(num_steps, 'step')} called the network that {record.kind} wraps; "
                "no step called the wrapper.",
                cause="The wrapper averages gradients over ranks only for forward passes through "
                "the wrapper: each rank trains its own network.",
                fix="Call the wrapper, ddp(x), not ddp.module(x).",
                num_steps=num_steps,
            )
        )
    return tuple(findings)


DDP_BYPASSED = Rule(
    name="a data parallel network is called through its wrapper",
    fault="weights diverge across ranks",
    priority=430,
    requires="A data-parallel wrapper, and a step that calls the wrapped network.",
    contradicted_by="Gradients that the program averages over ranks itself.",
    abstains="There is one rank, or the program reduces gradients itself.",
    settings=NoThresholds(),
    judge=_judge,
)
