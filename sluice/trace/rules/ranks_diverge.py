"""Do the weights stay the same on all ranks?"""

from collections.abc import Sequence

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, RankRule
from sluice.trace.rules.shards import learns_together


def _judge(rule: RankRule, traces: Sequence[Trace]) -> tuple[Finding, ...]:
    by_rank = [{(p.optimizer, p.step): p for p in trace.parallels} for trace in traces]
    common = sorted(frozenset.intersection(*(frozenset(told) for told in by_rank)))
    found = []
    for optimizer in dict.fromkeys(index for index, _ in common):
        steps = [step for index, step in common if index == optimizer]
        apart = [s for s in steps if len({told[optimizer, s].digest for told in by_rank}) > 1]
        # Ranks that meet from time to time, as in local SGD, are not apart for good.
        if not apart or not learns_together(traces) or apart != steps[-len(apart) :]:
            continue
        norms = [told[optimizer, apart[-1]].norm for told in by_rank]
        found.append(
            rule.finding(
                severity="error" if len(apart) > 1 or steps[-1] < 4 else "confirm",
                step=apart[0],
                what=f"The weights that all ranks should share are not the same at {len(apart)} "
                f"of {len(steps)} steps that were looked at; at step {apart[-1]} their norms are "
                f"{', '.join(f'{norm:.6g}' for norm in norms)}.",
                cause="Gradients are not averaged over the ranks: each trains a network of its own "
                "on its part of the rows.",
                fix="Call the wrapped network itself, ddp(x), not ddp.module(x).",
                num_apart=len(apart),
                num_steps=len(steps),
            )
        )
    return tuple(found)


RANKS_DIVERGE = RankRule(
    name="the weights stay the same on all ranks",
    fault="ranks diverge",
    requirement="TRACE-5",
    requires="A data parallel wrapper, or gradients reduced by hand, on each of two ranks.",
    contradicted_by="Equal weights at a later step.",
    abstains="Parameters are sharded, or ranks meet only from time to time.",
    judge=_judge,
)
