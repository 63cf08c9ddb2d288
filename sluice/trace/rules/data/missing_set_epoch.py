"""Detects shuffling loaders that repeat the same order in every epoch."""

import itertools

from pydantic import Field

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
        description="Minimum number of rows of an epoch for a finding. Fewer rows may have the "
        "same order by chance.",
    )


def _has_enough_rows(settings: MissingSetEpochSettings, epoch: EpochRecord) -> bool:
    return len(set(epoch.first)) >= settings.min_rows and epoch.num_batches > 1


def _has_same_order(
    settings: MissingSetEpochSettings, earlier: EpochRecord, later: EpochRecord
) -> bool:
    if earlier.num_indices == later.num_indices:
        return earlier.order == later.order
    # One of the epochs was not completed.
    common = min(len(earlier.first), len(later.first))
    return common >= settings.min_rows and earlier.first[:common] == later.first[:common]


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
        is_epoch_missing = loader.sets_epoch and len({e.sampler_epoch for e in epochs}) == 1
        epoch_text = (
            f", whose epoch is always {epochs[0].sampler_epoch}" if is_epoch_missing else ""
        )
        findings.append(
            rule.finding(
                severity="error" if is_epoch_missing else "confirm",
                step=repeated[0].step + 1,
                what=f"Loader {loader.index} ({loader.sampler}{epoch_text}): {len(repeated)} of "
                f"{len(pairs)} sampled epochs have the same order of rows as the sampled epoch "
                "before.",
                cause="The loader draws the same random order again, so these epochs have the same "
                "batches in the same order.",
                fix="Call sampler.set_epoch(epoch) at the start of each epoch."
                if is_epoch_missing
                else "Create the generator once, before the first epoch, and do not seed it again.",
                num_same=len(repeated) + 1,
                num_epochs=len(epochs),
            )
        )
    return tuple(findings)


MISSING_SET_EPOCH = Rule(
    name="a shuffling loader changes its order in every epoch",
    fault="repeated epoch order",
    priority=330,
    requires="Two epochs of a shuffling loader that is used for training.",
    contradicted_by="Two epochs with different orders of row numbers.",
    abstains="An epoch has one batch or fewer than eight rows, or no row numbers.",
    settings=MissingSetEpochSettings(),
    judge=_judge,
)
