"""Detects ranks whose weights diverge."""

from collections.abc import Sequence

from sluice.trace.finding import NoThresholds, RankRule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.shards import synchronizes_gradients


def _judge(rule: RankRule[NoThresholds], traces: Sequence[Trace]) -> tuple[TraceFinding, ...]:
    records_by_rank = [{(r.optimizer, r.step): r for r in trace.rank_weights} for trace in traces]
    common_samples = sorted(frozenset.intersection(*map(frozenset, records_by_rank)))
    findings = []
    for optimizer in dict.fromkeys(index for index, _ in common_samples):
        sampled_steps = [step for index, step in common_samples if index == optimizer]
        diverged_steps = [
            step
            for step in sampled_steps
            if len({records[optimizer, step].digest for records in records_by_rank}) > 1
        ]
        # The ranks must differ at all samples from some step on. Ranks that synchronize only
        # periodically, as in local SGD, are equal again at some of the later samples.
        if (
            not diverged_steps
            or not synchronizes_gradients(traces)
            or diverged_steps != sampled_steps[-len(diverged_steps) :]
        ):
            continue
        norms = [records[optimizer, diverged_steps[-1]].norm for records in records_by_rank]
        # If the ranks differ only at the last sample, they may be between two periodic
        # synchronizations, so the finding needs confirmation. A run of fewer than 4 steps has at
        # most two samples (steps 1 and 2), so one difference suffices there.
        is_certain = len(diverged_steps) > 1 or sampled_steps[-1] < 4
        findings.append(
            rule.finding(
                severity="error" if is_certain else "confirm",
                step=diverged_steps[0],
                what=f"The weights of the ranks differ at {len(diverged_steps)} of "
                f"{len(sampled_steps)} sampled steps. The norms at step {diverged_steps[-1]} are "
                f"{', '.join(f'{norm:.6g}' for norm in norms)}.",
                cause="The ranks started with different weights, or their steps use gradients that "
                "are not averaged over the ranks: each rank trains its own network.",
                fix="Call the wrapper, ddp(x), not ddp.module(x), and run the last backward pass "
                "before each step outside ddp.no_sync(). If you reduce gradients yourself, reduce "
                "all of them and broadcast the initial weights.",
                num_diverged=len(diverged_steps),
                num_sampled=len(sampled_steps),
            )
        )
    return tuple(findings)


RANKS_DIVERGE = RankRule(
    name="the weights are equal on all ranks",
    fault="weights diverge across ranks",
    priority=10,
    requires="At least two ranks. Every rank has a data-parallel wrapper, or reduces gradients "
    "itself.",
    contradicted_by="Equal weights at a later step.",
    abstains="Parameters are sharded, or ranks synchronize only periodically.",
    settings=NoThresholds(),
    judge=_judge,
)
