"""Detects ranks whose shards overlap, usually because their samplers have different seeds.

All ranks must divide the same order of rows into shards, and each rank must take a different shard.
"""

from collections.abc import Sequence

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import RankRule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.shards import ShardSettings, find_shards, synchronizes_gradients


class SamplerSeedMismatchSettings(Settings):
    """Thresholds of the rule ``SAMPLER_SEED_MISMATCH``."""

    shards: ShardSettings = Field(
        ShardSettings(),
        description="Thresholds that decide whether ranks receive separate, overlapping or equal "
        "rows.",
    )


def _judge(
    rule: RankRule[SamplerSeedMismatchSettings], traces: Sequence[Trace]
) -> tuple[TraceFinding, ...]:
    findings = []
    for loader_shards in find_shards(traces, rule.settings.shards):
        seeds = [loader.seed for loader in loader_shards.loader_by_rank if loader.replicas > 1]
        have_different_seeds = len(set(seeds)) > 1 and all(
            loader.shuffles for loader in loader_shards.loader_by_rank
        )
        if loader_shards.may_be_copies or not loader_shards.is_overlapping:
            continue
        num_shared_rows, num_rows = loader_shards.overlap
        num_missing_rows, num_compared_rows = loader_shards.missing_rows
        seed_text = (
            f" The seeds of the samplers are {', '.join(map(str, seeds))}."
            if have_different_seeds
            else ""
        )
        missing_text = (
            f"; {num_missing_rows} of {num_compared_rows} compared rows are on no rank"
            if num_missing_rows
            else ""
        )
        findings.append(
            rule.finding(
                severity="error" if synchronizes_gradients(traces) else "confirm",
                step=loader_shards.epoch_by_rank[0].step + 1,
                what=f"Loader {loader_shards.loader_by_rank[0].index}: {num_shared_rows} of "
                f"{num_rows} rows of one rank are also on another rank{missing_text}.{seed_text}",
                cause="Ranks take their shards from different orders of the rows, so some rows are "
                "used twice per epoch and others never.",
                fix="Use the same seed for the samplers of all ranks.",
                num_shared=num_shared_rows,
                num_rows=num_rows,
                num_missing=num_missing_rows,
            )
        )
    return tuple(findings)


SAMPLER_SEED_MISMATCH = RankRule(
    name="all ranks take their shards from the same order of rows",
    fault="sampler seed mismatch",
    priority=40,
    requires="The traces of at least two ranks that train on a loader.",
    contradicted_by="Shards that intentionally overlap.",
    abstains="The ranks receive copies of the same rows, which another rule reports; the rows are "
    "not divided, and not all of them were recorded; or random augmentation changes every row.",
    settings=SamplerSeedMismatchSettings(),
    judge=_judge,
)
