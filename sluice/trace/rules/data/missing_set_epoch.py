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
        description="An epoch is compared only if its first 32 row indices contain at least this "
        "number of distinct indices. Fewer rows may have the same order by chance.",
    )


def _is_comparable(settings: MissingSetEpochSettings, epoch: EpochRecord) -> bool:
    return len(set(epoch.first)) >= settings.min_rows and epoch.num_batches > 1


def _has_same_order(
    settings: MissingSetEpochSettings, earlier: EpochRecord, later: EpochRecord
) -> bool:
    if earlier.num_indices == later.num_indices:
        return earlier.order == later.order
    # One of the epochs was not completed, so only the recorded first rows of both are compared.
    num_compared = min(len(earlier.first), len(later.first))
    return (
        num_compared >= settings.min_rows
        and earlier.first[:num_compared] == later.first[:num_compared]
    )


def _judge(rule: Rule[MissingSetEpochSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for loader in training_loaders(trace):
        epochs = [e for e in loader_epochs(trace, loader.index) if _is_comparable(rule.settings, e)]
        pairs = list(itertools.pairwise(epochs))
        repeated_epochs = [
            later for earlier, later in pairs if _has_same_order(rule.settings, earlier, later)
        ]
        if not loader.shuffles or not repeated_epochs or len(repeated_epochs) < len(pairs) / 2:
            continue
        has_set_epoch = loader.sets_epoch  # True even if the program never calls it
        is_set_epoch_missing = has_set_epoch and len({e.sampler_epoch for e in epochs}) == 1
        epoch_text = (
            f", whose epoch is always {epochs[0].sampler_epoch}" if is_set_epoch_missing else ""
        )
        findings.append(
            rule.finding(
                severity="error" if is_set_epoch_missing else "confirm",
                step=repeated_epochs[0].step + 1,
                what=f"Loader {loader.index} ({loader.sampler}{epoch_text}): in "
                f"{len(repeated_epochs)} of {pluralize(len(pairs), 'comparison')}, a recorded "
                "epoch has the same order of rows as the epoch recorded before it.",
                cause="The loader draws the same random order again, so these epochs have the same "
                "batches in the same order.",
                fix="Call sampler.set_epoch(epoch) at the start of each epoch."
                if is_set_epoch_missing
                else "Create the generator once, before the first epoch, and do not seed it again.",
                num_repeated=len(repeated_epochs),
                num_compared=len(pairs),
            )
        )
    return tuple(findings)


MISSING_SET_EPOCH = Rule(
    name="a shuffling loader changes its order in every epoch",
    fault="repeated epoch order",
    priority=330,
    requires="Two epochs of a shuffling loader that is used for training.",
    contradicted_by="A sampler that intentionally keeps one order, such as for a reproducible "
    "curriculum.",
    abstains="Fewer than two epochs can be compared (an epoch of one batch, or with fewer than "
    "eight distinct row indices among the first 32, is not compared); or more than half of the "
    "compared epochs have another order than the compared epoch before them.",
    settings=MissingSetEpochSettings(),
    judge=_judge,
)
