"""Detects shuffling loaders that repeat the same order in every epoch."""

import itertools

from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.batches import EpochRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.loaders import loader_epochs, training_loaders


class MissingSetEpochSettings(Settings):
    """Thresholds of the rule ``MISSING_SET_EPOCH``."""

    min_rows: int = Field(
        8,
        ge=2,
        description="Minimum number of distinct rows among the first 32 rows of an epoch, for a "
        "finding. Fewer rows may have the same order by chance.",
    )


def _has_enough_rows(settings: MissingSetEpochSettings, epoch: EpochRecord) -> bool:
    return len(set(epoch.first)) >= settings.min_rows and epoch.num_batches > 1


def _has_same_order(
    settings: MissingSetEpochSettings, earlier: EpochRecord, later: EpochRecord
) -> bool:
    if earlier.num_indices == later.num_indices:
        return earlier.order == later.order
    # One of the epochs was not completed, so only the rows that both began with are compared.
    num_common = min(len(earlier.first), len(later.first))
    return (
        num_common >= settings.min_rows and earlier.first[:num_common] == later.first[:num_common]
    )


def _judge(rule: Rule[MissingSetEpochSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for loader in training_loaders(trace):
        epochs = [
            e for e in loader_epochs(trace, loader.index) if _has_enough_rows(rule.settings, e)
        ]
        pairs = list(itertools.pairwise(epochs))
        repeated = [
            later for earlier, later in pairs if _has_same_order(rule.settings, earlier, later)
        ]
        if not loader.shuffles or not repeated or len(repeated) < len(pairs) / 2:
            continue
        is_set_epoch_missing = loader.sets_epoch and len({e.sampler_epoch for e in epochs}) == 1
        epoch_text = (
            f", whose epoch is always {epochs[0].sampler_epoch}" if is_set_epoch_missing else ""
        )
        findings.append(
            rule.finding(
                severity="error" if is_set_epoch_missing else "confirm",
                step=repeated[0].step + 1,
                what=f"Loader {loader.index} ({loader.sampler}{epoch_text}): in {len(repeated)} of "
                f"{pluralize(len(pairs), 'comparison')}, a recorded epoch has the same order of "
                "rows as the one recorded before it.",
                cause="The loader draws the same random order again, so these epochs have the same "
                "batches in the same order.",
                fix="Call sampler.set_epoch(epoch) at the start of each epoch."
                if is_set_epoch_missing
                else "Create the generator once, before the first epoch, and do not seed it again.",
                num_repeated=len(repeated),
                num_compared=len(pairs),
            )
        )
    return tuple(findings)


MISSING_SET_EPOCH = Rule(
    name="a shuffling loader changes its order in every epoch",
    fault="repeated epoch order",
    priority=330,
    requires="Two epochs of a shuffling loader that is used for training.",
    contradicted_by="A sampler that keeps one order intentionally, such as for a reproducible "
    "curriculum.",
    abstains="An epoch has one batch, or fewer than eight different row indices among its first "
    "32; its sampler yields none; or fewer than half of the recorded epochs repeat the order of "
    "the one before.",
    settings=MissingSetEpochSettings(),
    judge=_judge,
)
