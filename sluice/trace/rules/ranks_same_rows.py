"""Does every rank learn from rows of its own?"""

from collections.abc import Sequence

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, RankRule
from sluice.trace.rules.shards import Shards, learns_together, shards_in

_LEAST = 8
"""Rows; a sampler that evens out the shards gives a few of them twice."""
_SHARE = 0.03
_STEPS = 3


def is_overlapping(shards: Shards) -> bool:
    """Tell whether ranks have rows in common, beyond those that every rank has twice itself."""
    shared, of = shards.overlap
    return shared >= max(_LEAST, _SHARE * of) and shards.repeats < shared / of / 4


def _same_inputs(traces: Sequence[Trace]) -> tuple[int, int]:
    """Return the first step at which all ranks learned from the same rows, and how many did.

    (0, 0) when any step had others.
    """
    by_rank = [
        {seen.step: frozenset(seen.rows) for seen in trace.rows if seen.is_learning and seen.rows}
        for trace in traces
    ]
    steps = sorted(frozenset.intersection(*(frozenset(rows) for rows in by_rank)))
    same = [s for s in steps if len({rows[s] for rows in by_rank}) == 1]
    return (same[0], len(same)) if same and len(same) == len(steps) else (0, 0)


def _judge(rule: RankRule, traces: Sequence[Trace]) -> tuple[Finding, ...]:
    found = []
    together = learns_together(traces)
    shards = shards_in(traces)
    for part in shards:
        if not is_overlapping(part) or not part.are_copies:
            continue
        shared, of = part.overlap
        order = ", in the same order" if part.has_same_order else ""
        loader = part.loaders[0]
        found.append(
            rule.finding(
                severity="error" if together else "confirm",
                step=part.epochs[0].step + 1,
                what=f"Loader {loader.index} ({loader.sampler}): {shared} of {of} rows that one "
                f"rank learned from are those of another rank, too{order}.",
                cause=f"{len(traces)} ranks do the work of one: their gradients are averaged over "
                "copies of the same rows.",
                fix="Give the loader a DistributedSampler, and call its set_epoch() before each "
                "epoch.",
                num_shared=shared,
                num_rows=of,
                num_ranks=len(traces),
            )
        )
    # The first tensor of a batch may be a number of few values; networks are given the rest.
    first, steps = (0, 0) if found else _same_inputs(traces)
    if steps >= _STEPS:
        found.append(
            rule.finding(
                severity="error" if together else "confirm",
                step=first + 1,
                what=f"At each of {steps} steps that were looked at, the networks of all "
                f"{len(traces)} ranks learned from the same rows.",
                cause=f"{len(traces)} ranks do the work of one.",
                fix="Give every rank rows of its own, as rows[rank::ranks].",
                num_steps=steps,
                num_ranks=len(traces),
            )
        )
    return tuple(found)


RANKS_SAME_ROWS = RankRule(
    name="every rank learns from rows of its own",
    fault="ranks see the same rows",
    requirement="TRACE-5",
    requires="The traces of two ranks that learn from a loader, or from inputs on record.",
    contradicted_by="Ranks that share the work on one row, as in tensor parallel training.",
    abstains="Ranks draw rows with replacement, or random changes make every row another one.",
    judge=_judge,
)
