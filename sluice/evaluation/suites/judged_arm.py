"""One arm of a comparison, and on which rows it is wrong.

Shape legend: S = seeds, N = test rows, M = scored rows of a suite.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.evaluation.estimate import Arm
from sluice.evaluation.losses import LossTable
from sluice.evaluation.scoring import Scores
from sluice.evaluation.suites.suite import HighestLoss, Suite


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedArm:
    """One arm: its losses, and where it is wrong, in the candidate's order of rows."""

    name: str
    subject: str
    seeds: tuple[int, ...]
    arm: Arm
    wrong_SN: NDArray[np.bool_]
    threshold: float | None

    @property
    def wrong_N(self) -> NDArray[np.bool_]:
        """Where the arm as a whole is wrong."""
        wrong_N: NDArray[np.bool_]
        if self.threshold is None:
            wrong_N = self.wrong_SN.mean(axis=0) >= 0.5
        else:
            wrong_N = ~(self.arm.loss_SN.mean(axis=0) <= self.threshold)
        return wrong_N

    def on(self, at_M: NDArray[np.int64], suite: Suite) -> "tuple[JudgedArm, str]":
        """Return the arm on a suite's rows, by the seeds that did not choose them.

        Also what keeps that from being evidence, empty when nothing does.
        """
        chose = _choosers(suite, self.subject)
        fair = [at for at, seed in enumerate(self.seeds) if seed not in chose]
        lacking = ""
        if self.seeds and not fair:
            lacking = f"every seed of the {self.name} chose these rows"
            fair = list(range(len(self.seeds)))
        keep = np.ix_(np.array(fair if self.seeds else [0]), at_M)
        arm = Arm(loss_SN=self.arm.loss_SN[keep], is_deterministic=self.arm.is_deterministic)
        wrong = int((~np.isfinite(arm.loss_SN)).any(axis=0).sum())
        if wrong and not lacking:
            lacking = (
                f"the {self.name} has losses that are not finite ({wrong} of {at_M.size} rows)"
            )
        kept = JudgedArm(
            name=self.name,
            subject=self.subject,
            seeds=tuple(self.seeds[at] for at in fair) if self.seeds else (),
            arm=arm,
            wrong_SN=self.wrong_SN[keep],
            threshold=self.threshold,
        )
        return kept, lacking


def judge_arm(scores: Scores, rows: LossTable, threshold: float | None, name: str) -> JudgedArm:
    """Say where an arm is wrong.

    Args:
        scores: Of the arm.
        rows: The candidate's losses, whose order of rows is taken.
        threshold: A higher loss is wrong; None where mistakes are counted.
        name: Its role, for people.

    Raises:
        ContractError: The arm was scored on other rows.
    """
    losses = scores.losses.aligned_to(rows)
    arm = Arm.of(losses)
    if threshold is None:
        assert scores.mistakes is not None
        # Anything but a clear 0 is wrong, NaN included.
        wrong_SN = ~(scores.mistakes.aligned_to(rows).loss_SN == 0)
    else:
        wrong_SN = ~(arm.loss_SN <= threshold)
    return JudgedArm(
        name=name,
        subject=losses.subject,
        seeds=losses.seeds,
        arm=arm,
        wrong_SN=wrong_SN,
        threshold=threshold,
    )


def _choosers(suite: Suite, subject: str) -> tuple[int, ...]:
    origin = suite.origin
    if isinstance(origin, HighestLoss) and origin.subject == subject:
        return origin.chosen_by
    return ()
