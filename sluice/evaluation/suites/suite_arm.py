"""Losses of one arm for the evaluation of suites, with the rows on which it is wrong.

Shape legend: S = seeds, N = test rows, M = scored rows of a suite.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.evaluation.estimate import ArmLosses
from sluice.evaluation.losses import LossTable
from sluice.evaluation.scoring import Scores
from sluice.evaluation.suites.suite import HighestLoss, Suite


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SuiteArm:
    """Losses and mistakes of one arm, in the row order of the candidate."""

    name: str
    subject: str
    seeds: tuple[int, ...]
    arm: ArmLosses
    wrong_SN: NDArray[np.bool_]
    threshold: float | None

    @property
    def wrong_N(self) -> NDArray[np.bool_]:
        """Whether the arm is wrong on each row (N,), over all seeds."""
        wrong_N: NDArray[np.bool_]
        if self.threshold is None:
            wrong_N = self.wrong_SN.mean(axis=0) >= 0.5
        else:
            wrong_N = ~(self.arm.loss_SN.mean(axis=0) <= self.threshold)
        return wrong_N

    def on_suite(self, at_M: NDArray[np.int64], suite: Suite) -> "tuple[SuiteArm, str]":
        """Return the arm on a suite's rows, without the seeds that selected them.

        The second value is the reason why the result is not valid evidence; empty if it is.
        """
        choosing = _choosing_seeds(suite, self.subject)
        fair = [at for at, seed in enumerate(self.seeds) if seed not in choosing]
        lacking = ""
        if self.seeds and not fair:
            lacking = f"all seeds of the {self.name} were used to select these rows"
            fair = list(range(len(self.seeds)))
        keep = np.ix_(np.array(fair if self.seeds else [0]), at_M)
        arm = ArmLosses(loss_SN=self.arm.loss_SN[keep], is_deterministic=self.arm.is_deterministic)
        wrong = int((~np.isfinite(arm.loss_SN)).any(axis=0).sum())
        if wrong and not lacking:
            lacking = f"the {self.name} has non-finite losses ({wrong} of {at_M.size} rows)"
        selected = SuiteArm(
            name=self.name,
            subject=self.subject,
            seeds=tuple(self.seeds[at] for at in fair) if self.seeds else (),
            arm=arm,
            wrong_SN=self.wrong_SN[keep],
            threshold=self.threshold,
        )
        return selected, lacking


def mark_mistakes(scores: Scores, rows: LossTable, threshold: float | None, name: str) -> SuiteArm:
    """Return the arm with the rows on which it is wrong.

    Args:
        scores: Scores of the arm.
        rows: Losses of the candidate, which determine the row order.
        threshold: Loss above which a row is wrong; None for classifiers.
        name: Role of the arm, for messages.

    Raises:
        ContractError: The arm was scored on other rows.
    """
    losses = scores.losses.aligned_to(rows)
    arm = ArmLosses.of(losses)
    if threshold is None:
        assert scores.mistakes is not None
        # Everything except 0 is wrong, including NaN.
        wrong_SN = ~(scores.mistakes.aligned_to(rows).loss_SN == 0)
    else:
        wrong_SN = ~(arm.loss_SN <= threshold)
    return SuiteArm(
        name=name,
        subject=losses.subject,
        seeds=losses.seeds,
        arm=arm,
        wrong_SN=wrong_SN,
        threshold=threshold,
    )


def _choosing_seeds(suite: Suite, subject: str) -> tuple[int, ...]:
    origin = suite.origin
    if isinstance(origin, HighestLoss) and origin.subject == subject:
        return origin.chosen_by
    return ()
