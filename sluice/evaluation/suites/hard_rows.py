"""The hard suite: the rows a model does worst on, each with what is unusual about it.

Shape legend: S = seeds, N = rows of the loss table.
"""

import numpy as np
import pandas as pd

from sluice.base.errors import ContractError
from sluice.evaluation.losses import LossTable
from sluice.evaluation.production import row_labels
from sluice.evaluation.suites.suite import HighestLoss, Suite, suite_of
from sluice.findings.finding import Standout
from sluice.findings.hard_examples import find_standouts


def hard_suite(
    name: str,
    losses: LossTable,
    frame: pd.DataFrame,
    feature_columns: tuple[str, ...],
    *,
    share: float,
) -> Suite:
    """Return the rows with the highest loss as a suite, the worst first.

    Half of the model's seeds choose, so that the other half can measure the model on the rows
    chosen: seeds that chose were unlucky there, and against them the same recipe trained anew
    would seem to fix rows. A rule without seeds, or a single seed, chooses alone.

    Equal losses are taken in row order. Rows that have left the frame are not taken, and a row of
    several folds counts by its highest loss.

    Args:
        name: Of the suite.
        losses: Of the model, usually the one in production.
        frame: Feature frame.
        feature_columns: Where to look for what is unusual.
        share: Of the window's rows, in 0..0.5; at least one row is taken.

    Raises:
        ContractError: A loss is not finite, or no scored row is in the frame.
    """
    if not np.isfinite(losses.loss_SN).all():
        bad_N = ~np.isfinite(losses.loss_SN).all(axis=0)
        seeds = ", ".join(map(str, losses.diverged_seeds)) or "none: a rule without seeds"
        raise ContractError(
            f"Suite '{name}' needs finite losses, got {int(bad_N.sum())} rows with others, first "
            f"row {losses.label_N[bad_N.argmax()]} (seeds: {seeds}).",
            cause="A diverged model is wrong everywhere and says nothing about rows.",
            fix="Choose the rows by a model whose seeds all converged.",
        )
    chosen_by = losses.seeds[: (len(losses.seeds) + 1) // 2]
    loss_N = losses.loss_SN[: max(1, len(chosen_by))].mean(axis=0)
    by_label = pd.Series(loss_N, index=losses.label_N).groupby(level=0, sort=False).max()
    place = pd.Index(row_labels(frame.index)).get_indexer(by_label.index)
    by_label, rows = by_label[place >= 0], place[place >= 0].astype(np.int64)
    if rows.size == 0:
        raise ContractError(
            f"Suite '{name}' needs scored rows that the frame holds, got none of "
            f"{losses.num_rows}; first scored row {losses.label_N[0]}, first of the frame "
            f"{row_labels(frame.index[:1])[0]}.",
            cause="The losses are of another table.",
            fix="Score the model on this data first.",
        )
    count = max(1, int(rows.size * share))
    worst = np.argsort(-by_label.to_numpy(), kind="stable")[:count].astype(np.int64)
    median = float(np.median(by_label))
    unusual = find_standouts(worst, rows, frame, feature_columns)
    return suite_of(
        name,
        {
            str(by_label.index[at]): _reason(float(by_label.iloc[at]), median, found)
            for at, found in zip(worst, unusual, strict=True)
        },
        HighestLoss(subject=losses.subject, window=losses.window, share=share, chosen_by=chosen_by),
    )


def standout_words(standouts: tuple[Standout, ...]) -> str:
    """Say what is unusual about a row, for people; empty when nothing is."""
    return ", ".join(
        f"{s.feature} {s.value:.3g} ({s.deviations:+.1f} deviations)" for s in standouts
    )


def _reason(loss: float, median: float, standouts: tuple[Standout, ...]) -> str:
    times = f", {loss / median:.1f} times the median" if median > 0 else ""
    unusual = standout_words(standouts) or "no feature stands out"
    return f"loss {loss:.4g}{times}; {unusual}"
