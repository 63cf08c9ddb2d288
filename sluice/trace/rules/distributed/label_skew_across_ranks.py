"""Detects ranks whose label distributions differ."""

import math
from collections.abc import Sequence

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import RankRule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.shards import ShardSettings, find_shards, synchronizes_gradients


class LabelSkewAcrossRanksSettings(Settings):
    """Thresholds of the rule ``LABEL_SKEW_ACROSS_RANKS``."""

    min_expected_count: float = Field(
        5.0,
        gt=0,
        description="A label counts in the z-score if the expected number of its rows, on the rank "
        "with the fewest rows, is at least this. The expected number is computed under the "
        "assumption that all ranks have the same label distribution.",
    )
    min_expected_count_if_missing: float = Field(
        20.0,
        gt=0,
        description="The absence of a label on a rank is reported if the expected number of its "
        "rows on this rank is at least this.",
    )
    min_distance: float = Field(
        0.2,
        gt=0,
        le=1,
        description="A finding requires that the total variation distance between the labels of "
        "one rank and the labels of all ranks exceeds this.",
    )
    min_z_score: float = Field(
        5.0,
        gt=0,
        description="A finding requires that the z-score of the label counts of all ranks exceeds "
        "this.",
    )


def _z_score(
    settings: LabelSkewAcrossRanksSettings, label_counts: Sequence[Sequence[int]]
) -> float:
    """Return the z-score of label counts (ranks, labels), assuming one distribution for all ranks.

    Pearson's chi-square statistic is transformed to an approximately standard normal variable.

    Source:
        Wilson and Hilferty (1931), "The Distribution of Chi-Square".
    """
    rank_totals = [sum(row) for row in label_counts]
    label_totals = [sum(column) for column in zip(*label_counts, strict=True)]
    total = sum(rank_totals)
    label_indices = [
        i
        for i, n in enumerate(label_totals)
        if n * min(rank_totals) / total >= settings.min_expected_count
    ]
    degrees_of_freedom = (len(label_indices) - 1) * (len(label_counts) - 1)
    if degrees_of_freedom < 1:
        return 0.0
    statistic = sum(
        (row[i] - n * label_totals[i] / total) ** 2 / (n * label_totals[i] / total)
        for row, n in zip(label_counts, rank_totals, strict=True)
        for i in label_indices
    )
    variance = 2 / (9 * degrees_of_freedom)
    return (math.cbrt(statistic / degrees_of_freedom) - 1 + variance) / math.sqrt(variance)


def _judge(
    rule: RankRule[LabelSkewAcrossRanksSettings], traces: Sequence[Trace]
) -> tuple[TraceFinding, ...]:
    findings = []
    # The thresholds of shards do not matter here: they only decide whether shards overlap.
    for loader_shards in find_shards(traces, ShardSettings()):
        labels = sorted({label for e in loader_shards.epoch_by_rank for label in e.labels})
        label_counts = [
            [e.labels.get(label, 0) for label in labels] for e in loader_shards.epoch_by_rank
        ]
        rank_sizes = [sum(row) for row in label_counts]
        if len(labels) < 2 or not all(rank_sizes) or not synchronizes_gradients(traces):
            continue
        pooled_shares = [
            sum(column) / sum(rank_sizes) for column in zip(*label_counts, strict=True)
        ]
        distance = max(
            sum(abs(n / size - p) for n, p in zip(row, pooled_shares, strict=True)) / 2
            for row, size in zip(label_counts, rank_sizes, strict=True)
        )
        z_score = _z_score(rule.settings, label_counts)
        if z_score <= rule.settings.min_z_score or distance <= rule.settings.min_distance:
            continue
        missing_labels = [
            f"rank {rank} has no label {label}"
            for rank, (row, size) in enumerate(zip(label_counts, rank_sizes, strict=True))
            for label, n, p in zip(labels, row, pooled_shares, strict=True)
            if n == 0 and p * size >= rule.settings.min_expected_count_if_missing
        ]
        example_text = f"; for example, {missing_labels[0]}" if missing_labels else ""
        findings.append(
            rule.finding(
                severity="confirm" if missing_labels else "warning",
                step=loader_shards.epoch_by_rank[0].step + 1,
                what=f"Loader {loader_shards.loader_by_rank[0].index}: the label distribution of "
                f"one rank differs by {distance:.0%} from the distribution of all ranks"
                f"{example_text}.",
                cause="Rows were divided in an order that depends on the labels: on each rank, "
                "batch norm and metrics are computed from rows that do not represent the data.",
                fix="Shuffle the rows before they are divided among the ranks.",
                distance=distance,
                num_labels=len(labels),
            )
        )
    return tuple(findings)


LABEL_SKEW_ACROSS_RANKS = RankRule(
    name="all ranks have the same label distribution",
    fault="label skew across ranks",
    priority=20,
    requires="Integer labels in the batches of at least two ranks.",
    contradicted_by="Ranks that intentionally have different rows, as in federated learning.",
    abstains="There are more than 64 labels; fewer than two labels have five expected rows on "
    "every rank; or chance explains the difference.",
    settings=LabelSkewAcrossRanksSettings(),
    judge=_judge,
)
