"""Do the ranks divide one order of the rows?"""

from collections.abc import Sequence

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, RankRule
from sluice.trace.rules.ranks_same_rows import is_overlapping
from sluice.trace.rules.shards import learns_together, shards_in


def _judge(rule: RankRule, traces: Sequence[Trace]) -> tuple[Finding, ...]:
    found = []
    for part in shards_in(traces):
        seeds = [loader.seed for loader in part.loaders if loader.replicas > 1]
        differ = len(set(seeds)) > 1 and all(loader.shuffles for loader in part.loaders)
        if not (is_overlapping(part) and not part.are_copies):
            continue
        shared, of = part.overlap
        missing, rows = part.missing
        told = f" Their seeds are {', '.join(map(str, seeds))}." if differ else ""
        lost = f"; {missing} of {rows} rows are on no rank" if missing else ""
        found.append(
            rule.finding(
                severity="error" if learns_together(traces) else "confirm",
                step=part.epochs[0].step + 1,
                what=f"Loader {part.loaders[0].index}: {shared} of {of} rows of one rank are "
                f"those of another rank, too{lost}.{told}",
                cause="Every rank takes its share of another order: some rows count twice in an "
                "epoch, others not at all.",
                fix="Give the samplers of all ranks one seed.",
                num_shared=shared,
                num_rows=of,
                num_missing=missing,
            )
        )
    return tuple(found)


RANKS_SHUFFLE = RankRule(
    name="the ranks divide one order of the rows",
    fault="ranks shuffle differently",
    requirement="TRACE-5",
    requires="The traces of two ranks that learn from a loader.",
    contradicted_by="Shards that are meant to overlap.",
    abstains="Nobody divides the rows, or random changes make every row another one.",
    judge=_judge,
)
