"""Does a loader that shuffles give another order in every epoch?"""

import itertools

from sluice.trace.evidence.batches import EpochPrint
from sluice.trace.evidence.trace import Trace
from sluice.trace.finding import Finding, Rule
from sluice.trace.rules.loaders import epochs_of, learning_loaders

_LEAST_ROWS = 8
"""Fewer may have the same order by chance."""


def _has_an_order(epoch: EpochPrint) -> bool:
    return len(set(epoch.first)) >= _LEAST_ROWS and epoch.num_batches > 1


def _is_same(one: EpochPrint, other: EpochPrint) -> bool:
    if one.num_indices == other.num_indices:
        return one.order == other.order
    # One of them was left early.
    common = min(len(one.first), len(other.first))
    return common >= _LEAST_ROWS and one.first[:common] == other.first[:common]


def _judge(rule: Rule, trace: Trace) -> tuple[Finding, ...]:
    found = []
    for loader in learning_loaders(trace):
        epochs = [e for e in epochs_of(trace, loader.index) if _has_an_order(e)]
        pairs = list(itertools.pairwise(epochs))
        same = [later for one, later in pairs if _is_same(one, later)]
        if not loader.shuffles or not same or len(same) < len(pairs) / 2:
            continue
        forgot = loader.sets_epoch and len({e.sampler_epoch for e in epochs}) == 1
        told = f", whose epoch stayed {epochs[0].sampler_epoch}" if forgot else ""
        found.append(
            rule.finding(
                severity="error" if forgot else "confirm",
                step=same[0].step + 1,
                what=f"Loader {loader.index} ({loader.sampler}{told}): {len(same) + 1} of "
                f"{len(epochs)} epochs that were looked at have the same order of rows.",
                cause="It shuffles once: every epoch has the same batches in the same order.",
                fix="Call sampler.set_epoch(epoch) before each epoch."
                if forgot
                else "Make the generator once, before the first epoch, and do not seed it again.",
                num_same=len(same) + 1,
                num_epochs=len(epochs),
            )
        )
    return tuple(found)


EPOCH_ORDER = Rule(
    name="a loader that shuffles gives another order in every epoch",
    fault="epoch order repeated",
    requirement="TRACE-5",
    requires="Two epochs of a loader that shuffles and that networks learn from.",
    contradicted_by="Two epochs whose row numbers differ in order.",
    abstains="An epoch is one batch or fewer than eight rows, or has no row numbers.",
    judge=_judge,
)
