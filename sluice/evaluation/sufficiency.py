"""Checks whether the evidence suffices for a decision, and reports what is missing."""

from dataclasses import dataclass

import numpy as np

from sluice.base.pluralize import pluralize
from sluice.evaluation.losses import LossTable
from sluice.evaluation.settings import GateSettings


@dataclass(frozen=True, slots=True)
class MissingEvidence:
    """One reason why a comparison cannot decide."""

    what: str
    """Reason why the comparison cannot decide, as a phrase."""
    fix: str
    """Action by which the user can obtain the evidence, as a sentence."""


def find_missing_evidence(
    candidate: LossTable,
    reference: LossTable,
    settings: GateSettings,
    block_length: int,
    *,
    is_constant: bool,
    is_dependent: bool,
    row_noun: str,
) -> tuple[MissingEvidence, ...]:
    """Return everything that is missing for a decision; empty if the evidence suffices.

    Args:
        candidate: Losses of the candidate.
        reference: Losses of the reference, aligned to the candidate.
        settings: Settings of the gate.
        block_length: Length of a block of dependent rows [rows].
        is_constant: Whether the gain is the same on all rows of each fold.
        is_dependent: Whether gains are autocorrelated although each row is a separate block.
        row_noun: Noun for a row of the tables, for messages: "test row" or "cluster".
    """
    missing_evidence = []
    if candidate.subject == reference.subject:
        missing_evidence.append(
            MissingEvidence(
                "candidate and reference are the same model", "There is nothing to promote."
            )
        )
    for arm_name, arm in (("candidate", candidate), ("reference", reference)):
        missing_evidence += _check_losses(arm_name, arm)
        # The reference may be a rule without seeds. The candidate needs seeds even if it is a rule,
        # because only a model with seeds can be promoted.
        if arm is candidate or not arm.is_deterministic:
            missing_evidence += _check_seeds(arm_name, arm, settings.min_seeds)
    missing_evidence += _check_rows(candidate, settings.min_rows, block_length, row_noun)
    if is_constant:
        missing_evidence.append(
            MissingEvidence(
                "the gain is the same on every row of a fold, so its variance is unknown",
                "Check that the two models have different predictions.",
            )
        )
    if is_dependent:
        missing_evidence.append(
            MissingEvidence(
                "rows are declared independent, but gains of neighbouring rows are significantly "
                "autocorrelated",
                "Declare a horizon of at least 1 row, so that the dependence is estimated, or set "
                "block_length to the number of dependent rows.",
            )
        )
    return tuple(missing_evidence)


def _check_losses(arm_name: str, arm: LossTable) -> list[MissingEvidence]:
    if np.isfinite(arm.loss_SN).all():
        return []
    seed_list = ", ".join(map(str, arm.diverged_seeds))
    where = f" in {len(arm.diverged_seeds)} of {len(arm.seeds)} seeds ({seed_list})"
    return [
        MissingEvidence(
            f"the {arm_name} has non-finite losses" + (where if arm.seeds else ""),
            f"Find out why the {arm_name} diverged. Diverged seeds must not be excluded.",
        )
    ]


def _check_seeds(arm_name: str, arm: LossTable, required_seeds: int) -> list[MissingEvidence]:
    num_distinct_seeds = arm.num_distinct_seeds
    if num_distinct_seeds >= required_seeds:
        return []
    num_copies = len(arm.seeds) - num_distinct_seeds
    if num_copies:
        return [
            MissingEvidence(
                f"the {arm_name} has {pluralize(len(arm.seeds), 'seed')} of which {num_copies} "
                f"{'has' if num_copies == 1 else 'have'} exactly the losses of another seed; "
                f"{required_seeds} distinct seeds are required",
                "Make sure that the seed is passed to the model.",
            )
        ]
    return [
        MissingEvidence(
            f"the {arm_name} has {pluralize(num_distinct_seeds, 'seed')}, required "
            f"{required_seeds}",
            f"Train the {arm_name} with "
            f"{pluralize(required_seeds - num_distinct_seeds, 'more seed')}.",
        )
    ]


def _check_rows(
    candidate: LossTable, required_rows: int, block_length: int, row_noun: str
) -> list[MissingEvidence]:
    missing_evidence = []
    short_name = row_noun.removeprefix("test ")
    if candidate.num_rows < required_rows:
        missing_evidence.append(
            MissingEvidence(
                f"the window has {pluralize(candidate.num_rows, row_noun)}, required "
                f"{required_rows}",
                f"Score {pluralize(required_rows - candidate.num_rows, f'more {short_name}')}.",
            )
        )
    min_fold_rows = int(np.unique(candidate.fold_N, return_counts=True)[1].min())
    if min_fold_rows < 2 * block_length:
        what = f"the smallest fold has {pluralize(min_fold_rows, row_noun)}, required "
        what += f"{2 * block_length}"
        if block_length > 1:
            what += (
                f": two blocks of the {block_length} {short_name}s over which gains depend on each "
                "other"
            )
        missing_evidence.append(MissingEvidence(what, "Use fewer folds or a longer test window."))
    return missing_evidence
