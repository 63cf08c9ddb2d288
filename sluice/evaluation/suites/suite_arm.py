"""Losses of one arm for the evaluation of suites, with the rows on which the arm is wrong.

Shape legend: S = seeds, N = test rows, M = scored rows of a suite.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.evaluation.estimate import ArmLosses
from sluice.evaluation.losses import LossTable
from sluice.evaluation.scoring import Scores
from sluice.evaluation.suites.suite import HighestLoss, Suite

SELECTION_MESSAGE = "were used to select these rows"
"""End of the message about an arm whose losses on a suite are biased, because the losses of all its
seeds were used to select the rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SuiteArm:
    """Losses and mistakes of one arm, in the row order of the candidate."""

    name: str
    """Role of the arm, such as 'reference'."""
    subject: str
    """Digest of the model or rule."""
    seeds: tuple[int, ...]
    losses: ArmLosses
    is_wrong_SN: NDArray[np.bool_]
    """Whether the network of each seed is wrong on each row."""
    threshold: float | None
    """Loss above which the arm is wrong on a row; None for classifiers."""

    @property
    def is_wrong_N(self) -> NDArray[np.bool_]:
        """Whether the arm is wrong on each row (N,).

        A classifier is wrong on a row if at least half of its seeds are wrong. Any other arm is
        wrong on a row if its mean loss over the seeds is above the threshold, or is NaN.
        """
        is_wrong_N: NDArray[np.bool_]
        if self.threshold is None:
            is_wrong_N = self.is_wrong_SN.mean(axis=0) >= 0.5
        else:
            is_wrong_N = ~(self.losses.loss_SN.mean(axis=0) <= self.threshold)  # True for NaN
        return is_wrong_N

    def select_suite_rows(
        self, position_M: NDArray[np.int64], suite: Suite
    ) -> "tuple[SuiteArm, str]":
        """Return the arm on the rows of a suite, without the seeds that selected these rows.

        If all seeds selected the rows, all seeds are kept, and a reason is returned.

        Args:
            position_M: Positions of the scored rows of the suite.
            suite: The suite.

        Returns:
            The arm, and the reason why its losses are not valid evidence ("" if they are valid).
        """
        selecting_seeds = _selecting_seeds(suite, self.subject)
        unbiased_indices = [i for i, seed in enumerate(self.seeds) if seed not in selecting_seeds]
        problem = ""
        if self.seeds and not unbiased_indices:
            problem = f"all seeds of the {self.name} {SELECTION_MESSAGE}"
            unbiased_indices = list(range(len(self.seeds)))
        selected_SM = np.ix_(np.array(unbiased_indices if self.seeds else [0]), position_M)
        losses = ArmLosses(
            loss_SN=self.losses.loss_SN[selected_SM], is_deterministic=self.losses.is_deterministic
        )
        num_nonfinite = int((~np.isfinite(losses.loss_SN)).any(axis=0).sum())
        if num_nonfinite and not problem:
            problem = (
                f"the {self.name} has non-finite losses ({num_nonfinite} of {position_M.size} rows)"
            )
        arm = SuiteArm(
            name=self.name,
            subject=self.subject,
            seeds=tuple(self.seeds[i] for i in unbiased_indices) if self.seeds else (),
            losses=losses,
            is_wrong_SN=self.is_wrong_SN[selected_SM],
            threshold=self.threshold,
        )
        return arm, problem


def make_suite_arm(
    scores: Scores, candidate_losses: LossTable, threshold: float | None, name: str
) -> SuiteArm:
    """Return the arm with the rows on which it is wrong.

    Args:
        scores: Scores of the arm.
        candidate_losses: Losses of the candidate, which determine the row order.
        threshold: Loss above which the arm is wrong on a row; None for classifiers.
        name: Role of the arm, for messages.

    Raises:
        ContractError: The arm was scored on other rows.
    """
    aligned_losses = scores.losses.aligned_to(candidate_losses)
    losses = ArmLosses.of(aligned_losses)
    if threshold is None:
        assert scores.mistakes is not None
        # A diverged network is wrong, even if the first class, which argmax returns for NaN, is
        # the true class.
        mistake_SN = scores.mistakes.aligned_to(candidate_losses).loss_SN
        is_wrong_SN = (mistake_SN != 0) | ~np.isfinite(losses.loss_SN)
    else:
        is_wrong_SN = ~(losses.loss_SN <= threshold)
    return SuiteArm(
        name=name,
        subject=aligned_losses.subject,
        seeds=aligned_losses.seeds,
        losses=losses,
        is_wrong_SN=is_wrong_SN,
        threshold=threshold,
    )


def _selecting_seeds(suite: Suite, subject: str) -> tuple[int, ...]:
    origin = suite.origin
    if isinstance(origin, HighestLoss) and origin.subject == subject:
        return origin.chosen_by
    return ()
