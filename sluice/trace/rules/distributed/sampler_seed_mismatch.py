"""Detects ranks that shuffle the rows with different seeds."""

from collections.abc import Sequence

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import RankRule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.shards import ShardSettings, find_shards, synchronizes_gradients


class SamplerSeedMismatchSettings(Settings):
    """Thresholds of the rule ``SAMPLER_SEED_MISMATCH``."""

    shards: ShardSettings = Field(
        ShardSettings(), description="Comparison of the rows that ranks receive."
    )


def _judge(
    rule: RankRule[SamplerSeedMismatchSettings], traces: Sequence[Trace]
) -> tuple[TraceFinding, ...]:
    findings = []
    for shard in find_shards(traces, rule.settings.shards):
        seeds = [loader.seed for loader in shard.loaders if loader.replicas > 1]
        differ = len(set(seeds)) > 1 and all(loader.shuffles for loader in shard.loaders)
        if not (shard.is_overlapping and not shard.are_copies):
            continue
        num_shared, num_rows = shard.overlap
        missing, rows = shard.missing
        seed_text = f" Their seeds are {', '.join(map(str, seeds))}." if differ else ""
        lost = f"; {missing} of {rows} rows are on no rank" if missing else ""
        findings.append(
            rule.finding(
                severity="error" if synchronizes_gradients(traces) else "confirm",
                step=shard.epochs[0].step + 1,
                what=f"Loader {shard.loaders[0].index}: {num_shared} of {num_rows} rows of one "
                f"rank are also on another rank{lost}.{seed_text}",
                cause="Every rank takes its shard from a different order: some rows are used "
                "twice per epoch, others never.",
                fix="Use the same seed for the samplers of all ranks.",
                num_shared=num_shared,
                num_rows=num_rows,
                num_missing=missing,
            )
        )
    return tuple(findings)


SAMPLER_SEED_MISMATCH = RankRule(
    name="all ranks divide the same order of rows",
    fault="sampler seed mismatch",
    priority=40,
    requires="The traces of two ranks that train on a loader.",
    contradicted_by="Shards that intentionally overlap.",
    abstains="The rows are not divided, or random augmentation changes every row.",
    settings=SamplerSeedMismatchSettings(),
    judge=_judge,
)
