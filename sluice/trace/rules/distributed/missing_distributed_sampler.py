"""Detects ranks that train on the same rows."""

from collections.abc import Sequence

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import RankRule, TraceFinding
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.shards import ShardSettings, find_shards, synchronizes_gradients


class MissingDistributedSamplerSettings(Settings):
    """Thresholds of the rule ``MISSING_DISTRIBUTED_SAMPLER``."""

    min_steps: int = Field(
        3,
        ge=1,
        description="If the loaders show no copies, a finding requires at least this number of "
        "sampled steps at which all ranks receive the same inputs.",
    )
    shards: ShardSettings = Field(
        ShardSettings(),
        description="Thresholds that decide whether ranks receive separate, overlapping or equal "
        "rows.",
    )


def _find_same_inputs(traces: Sequence[Trace]) -> tuple[int, int]:
    """Return the first step at which all ranks had the same rows, and the number of such steps.

    Only steps that were recorded on all ranks are compared. (0, 0) if there are no such steps, or
    if the rows differ at any of them.
    """
    rows_by_step_per_rank = [
        {
            record.step: frozenset(record.rows)
            for record in trace.rows
            if record.is_learning and record.rows
        }
        for trace in traces
    ]
    steps = sorted(frozenset.intersection(*map(frozenset, rows_by_step_per_rank)))
    has_differences = any(
        len({rows_by_step[step] for rows_by_step in rows_by_step_per_rank}) > 1 for step in steps
    )
    return (0, 0) if has_differences or not steps else (steps[0], len(steps))


def _judge(
    rule: RankRule[MissingDistributedSamplerSettings], traces: Sequence[Trace]
) -> tuple[TraceFinding, ...]:
    findings = []
    are_gradients_averaged = synchronizes_gradients(traces)
    for loader_shards in find_shards(traces, rule.settings.shards):
        # ``may_be_copies`` alone does not suffice: it is also True if rows were not recorded.
        if not loader_shards.is_overlapping or not loader_shards.may_be_copies:
            continue
        num_shared_rows, num_rows = loader_shards.overlap
        order_text = ", in the same order" if loader_shards.has_same_order else ""
        loader = loader_shards.loader_by_rank[0]
        findings.append(
            rule.finding(
                severity="error" if are_gradients_averaged else "confirm",
                step=loader_shards.epoch_by_rank[0].step + 1,
                what=f"Loader {loader.index} ({loader.sampler}): {num_shared_rows} of {num_rows} "
                f"rows that one rank trains on are also on another rank{order_text}.",
                cause="Ranks with the same rows do the work of one rank: they compute the same "
                "gradients.",
                fix="Use a DistributedSampler for the loader, and call its set_epoch() before "
                "each epoch.",
                num_shared=num_shared_rows,
                num_rows=num_rows,
                num_ranks=len(traces),
            )
        )
    # The rows of loaders are compared by the first tensor of a batch only. No copies are found if
    # this tensor has few distinct values. So the inputs of the networks are compared, too: they may
    # be another tensor of the batch.
    first_step, num_steps = (0, 0) if findings else _find_same_inputs(traces)
    if num_steps >= rule.settings.min_steps:
        findings.append(
            rule.finding(
                severity="error" if are_gradients_averaged else "confirm",
                step=first_step + 1,
                what=f"At each of {num_steps} sampled steps, the networks of all {len(traces)} "
                "ranks received the same rows.",
                cause=f"{len(traces)} ranks do the work of one rank: each rank computes the "
                "gradients of the same rows.",
                fix="Give every rank different rows, such as rows[rank::num_ranks].",
                num_steps=num_steps,
                num_ranks=len(traces),
            )
        )
    return tuple(findings)


MISSING_DISTRIBUTED_SAMPLER = RankRule(
    name="every rank trains on different rows",
    fault="missing distributed sampler",
    priority=30,
    requires="At least two ranks that train on a loader, or whose inputs are recorded at the same "
    "steps.",
    contradicted_by="Ranks that compute parts of the same batch, as in tensor parallel training.",
    abstains="Ranks sample rows with replacement, or random augmentation changes every row.",
    settings=MissingDistributedSamplerSettings(),
    judge=_judge,
)
