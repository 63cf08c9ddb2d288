"""Whether the evidence can carry a decision at all; what it lacks, when it cannot."""

from dataclasses import dataclass

import numpy as np

from sluice.base.pluralize import counted
from sluice.evaluation.losses import LossTable
from sluice.evaluation.settings import GateSettings


@dataclass(frozen=True, slots=True)
class Lack:
    """One thing that keeps a comparison from deciding."""

    what: str
    fix: str


def find_lacking(
    candidate: LossTable,
    reference: LossTable,
    settings: GateSettings,
    block_length: int,
    *,
    is_constant: bool,
    is_dependent: bool,
    unit_of_rows: str,
) -> tuple[Lack, ...]:
    """Return everything the evidence lacks; empty when it can carry a decision.

    Args:
        candidate: Losses of the model that asks to be promoted.
        reference: Losses of what it would replace, aligned.
        settings: Thresholds.
        block_length: Rows of a bootstrap block [rows].
        is_constant: The gain is the same on all rows of each fold.
        is_dependent: Every row is a block of its own, and gains of neighbours correlate.
        unit_of_rows: What a row of the losses is, in plural, for people.
    """
    lacking = []
    if candidate.subject == reference.subject:
        lacking.append(
            Lack("candidate and reference are the same model", "There is nothing to promote.")
        )
    for name, arm in (("candidate", candidate), ("reference", reference)):
        lacking += _lacking_finite(name, arm)
        # A rule without seeds may be replaced, but not promoted: STAT-1 asks for seeds.
        if arm is candidate or not arm.is_deterministic:
            lacking += _lacking_seeds(name, arm, settings.min_seeds)
    lacking += _lacking_rows(candidate, settings.min_rows, block_length, unit_of_rows)
    if is_constant:
        lacking.append(
            Lack(
                "the gain is the same on every row of a fold, so its spread is unknown",
                "Check that the two models really predict differently.",
            )
        )
    if is_dependent:
        lacking.append(
            Lack(
                "every row counts as independent, and gains of neighbouring rows correlate by more "
                "than chance explains",
                "Declare a horizon of at least 1 row, or leave out block_length, to have the "
                "dependence estimated.",
            )
        )
    return tuple(lacking)


def _lacking_finite(name: str, arm: LossTable) -> list[Lack]:
    if np.isfinite(arm.loss_SN).all():
        return []
    diverged = arm.diverged_seeds
    who = f" in {len(diverged)} of {len(arm.seeds)} seeds ({', '.join(map(str, diverged))})"
    return [
        Lack(
            f"the {name} has losses that are not finite" + (who if arm.seeds else ""),
            f"Find out why the {name} diverged; its bad seeds are part of its recipe.",
        )
    ]


def _lacking_seeds(name: str, arm: LossTable, required: int) -> list[Lack]:
    distinct = arm.num_distinct_seeds
    if distinct >= required:
        return []
    copies = len(arm.seeds) - distinct
    if copies:
        return [
            Lack(
                f"the {name} has {len(arm.seeds)} seeds of which {copies} "
                f"{'repeats' if copies == 1 else 'repeat'} the losses of another to "
                f"the last bit, required {required} that differ",
                "Make sure the seed reaches the model.",
            )
        ]
    return [
        Lack(
            f"the {name} has {counted(distinct, 'seed')}, required {required}",
            f"Train it with {required - distinct} more.",
        )
    ]


def _lacking_rows(candidate: LossTable, required: int, block_length: int, unit: str) -> list[Lack]:
    lacking = []
    if candidate.num_rows < required:
        lacking.append(
            Lack(
                f"the window has {candidate.num_rows} {unit}, required {required}",
                f"Score {required - candidate.num_rows} more {unit.removeprefix('test ')}.",
            )
        )
    smallest = int(np.unique(candidate.fold_N, return_counts=True)[1].min())
    if smallest < 2 * block_length:
        lacking.append(
            Lack(
                f"the smallest fold has {smallest} {unit}, required {2 * block_length}: two "
                f"blocks of the {block_length} {unit.removeprefix('test ')} over which gains "
                f"depend on each other",
                "Use fewer folds or a longer test window.",
            )
        )
    return lacking
