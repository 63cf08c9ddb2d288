"""Do all ranks hold the same mix of labels?"""

import math
from collections.abc import Sequence

from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, RankRule
from sluice.trace.rules.shards import learns_together, shards_in

_LEAST_EXPECTED = 5.0
_RARE = 20.0
_FAR = 0.2
_SIGMAS = 5.0


def _sigmas(counts: Sequence[Sequence[int]]) -> float:
    """Return how far counts (ranks, labels) are from one mix: Pearson's statistic as a normal one.

    Source: Wilson and Hilferty (1931), the cube root of a chi-square variable.
    """
    of_rank, of_label = (
        [sum(row) for row in counts],
        [sum(col) for col in zip(*counts, strict=True)],
    )
    total = sum(of_rank)
    told = [i for i, n in enumerate(of_label) if n * min(of_rank) / total >= _LEAST_EXPECTED]
    freedom = (len(told) - 1) * (len(counts) - 1)
    if freedom < 1:
        return 0.0
    statistic = sum(
        (row[i] - n * of_label[i] / total) ** 2 / (n * of_label[i] / total)
        for row, n in zip(counts, of_rank, strict=True)
        for i in told
    )
    spread = 2 / (9 * freedom)
    return (math.cbrt(statistic / freedom) - 1 + spread) / math.sqrt(spread)


def _judge(rule: RankRule, traces: Sequence[Trace]) -> tuple[Finding, ...]:
    found = []
    for part in shards_in(traces):
        labels = sorted({label for e in part.epochs for label in dict(e.labels)})
        counts = [[dict(e.labels).get(label, 0) for label in labels] for e in part.epochs]
        sizes = [sum(row) for row in counts]
        if len(labels) < 2 or not all(sizes) or not learns_together(traces):
            continue
        pooled = [sum(col) / sum(sizes) for col in zip(*counts, strict=True)]
        distance = max(
            sum(abs(n / size - p) for n, p in zip(row, pooled, strict=True)) / 2
            for row, size in zip(counts, sizes, strict=True)
        )
        sigmas = _sigmas(counts)
        if not (sigmas > _SIGMAS and distance > _FAR):
            continue
        lacking = [
            f"rank {rank} has no label {label}"
            for rank, (row, size) in enumerate(zip(counts, sizes, strict=True))
            for label, n, p in zip(labels, row, pooled, strict=True)
            if n == 0 and p * size >= _RARE
        ]
        told = f", such as: {lacking[0]}" if lacking else ""
        found.append(
            rule.finding(
                severity="confirm" if lacking else "warning",
                step=part.epochs[0].step + 1,
                what=f"Loader {part.loaders[0].index}: the labels of one rank are {distance:.0%} "
                f"away from those of all{told}.",
                cause="Rows were divided in an order that follows the labels: batch norm and each "
                "rank's metrics see a part of the world.",
                fix="Shuffle the rows before they are divided among ranks.",
                distance=distance,
                num_labels=len(labels),
            )
        )
    return tuple(found)


RANKS_LABELS = RankRule(
    name="all ranks hold the same mix of labels",
    fault="ranks hold different labels",
    requirement="TRACE-5",
    requires="Whole-numbered labels in the batches of two ranks.",
    contradicted_by="Ranks that are meant to hold different rows, as in federated training.",
    abstains="There are more than 64 labels, fewer than five rows of each, or chance explains it.",
    judge=_judge,
)
