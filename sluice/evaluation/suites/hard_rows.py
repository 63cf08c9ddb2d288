"""Creates the hard suite: the rows with the highest losses of a model, and their unusual features.

Shape legend: S = seeds, N = rows of the loss table.
"""

import numpy as np
import pandas as pd

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.evaluation.losses import LossTable
from sluice.evaluation.suites.suite import HighestLoss, Suite, make_suite
from sluice.evaluation.unseen_members import row_labels
from sluice.findings.check_outcome import UnusualFeature
from sluice.findings.hard_examples import find_unusual_features


def hard_suite(
    name: str,
    losses: LossTable,
    frame: pd.DataFrame,
    feature_columns: tuple[str, ...],
    *,
    share: float,
) -> Suite:
    """Return a suite with the rows of the highest losses, in descending order.

    Half of the model's seeds select the rows, and only the other half is used to evaluate the model
    on them. The reason is that the selecting seeds have high losses on these rows partly by chance.
    Compared with these losses, even the same model with new seeds would seem better. For a single
    seed, or a rule without seeds, there is no other half: all losses select the rows.

    Rows with equal losses are in row order. Rows that are no longer in the frame are excluded, and
    a row in several folds counts with its highest loss.

    Args:
        name: Name of the suite.
        losses: Losses of the model, usually of the version in production.
        frame: Feature frame.
        feature_columns: Columns in which unusual values are reported.
        share: Share of the window's rows to select, up to 0.5; at least one row is selected.

    Raises:
        ContractError: A loss is not finite, or no scored row is in the frame.
    """
    if not np.isfinite(losses.loss_SN).all():
        is_nonfinite_N = ~np.isfinite(losses.loss_SN).all(axis=0)
        seeds = ", ".join(map(str, losses.diverged_seeds)) or "none: a rule without seeds"
        raise ContractError(
            f"Suite '{name}' needs finite losses, got "
            f"{pluralize(int(is_nonfinite_N.sum()), 'row')} with non-finite losses, first row "
            f"{losses.label_N[is_nonfinite_N.argmax()]} (seeds: {seeds}).",
            cause="A diverged model is wrong on all rows, so its losses do not identify hard rows.",
            fix="Select the rows by a model whose seeds all converged.",
        )
    chosen_by = losses.seeds[: (len(losses.seeds) + 1) // 2]
    loss_N = losses.loss_SN[: max(1, len(chosen_by))].mean(axis=0)
    loss_by_label = pd.Series(loss_N, index=losses.label_N).groupby(level=0, sort=False).max()
    positions = pd.Index(row_labels(frame.index)).get_indexer(loss_by_label.index)
    is_in_frame = positions >= 0
    loss_by_label, frame_positions = (
        loss_by_label[is_in_frame],
        positions[is_in_frame].astype(np.int64),
    )
    if frame_positions.size == 0:
        raise ContractError(
            f"Suite '{name}' needs scored rows that are in the frame, got none of "
            f"{losses.num_rows}; first scored row {losses.label_N[0]}, first row of the frame "
            f"{row_labels(frame.index[:1])[0]}.",
            cause="The losses belong to another table.",
            fix="Score the model on this data first.",
        )
    num_hard_rows = max(1, int(frame_positions.size * share))
    hard_indices = np.argsort(-loss_by_label.to_numpy(), kind="stable")[:num_hard_rows].astype(
        np.int64
    )
    median_loss = float(np.median(loss_by_label))
    features_by_row = find_unusual_features(hard_indices, frame_positions, frame, feature_columns)
    return make_suite(
        name,
        {
            str(loss_by_label.index[index]): _describe_row(
                float(loss_by_label.iloc[index]), median_loss, features
            )
            for index, features in zip(hard_indices, features_by_row, strict=True)
        },
        HighestLoss(subject=losses.subject, window=losses.window, share=share, chosen_by=chosen_by),
    )


def describe_unusual_features(features: tuple[UnusualFeature, ...]) -> str:
    """Return the unusual features of a row as text; "" if there are no unusual features."""
    return ", ".join(
        f"{feature.feature} {feature.value:.3g} ({feature.deviations:+.1f} deviations)"
        for feature in features
    )


def _describe_row(loss: float, median_loss: float, features: tuple[UnusualFeature, ...]) -> str:
    ratio_text = f", {loss / median_loss:.1f} times the median" if median_loss > 0 else ""
    features_text = describe_unusual_features(features) or "no unusual features"
    return f"loss {loss:.4g}{ratio_text}; {features_text}"
