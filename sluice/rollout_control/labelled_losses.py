"""Computes the losses of live predictions whose labels have arrived, for the promotion gate.

Shape legend: P = labelled pairs, M = networks of a model, O = outputs. A ``LossTable`` has N = P
rows and S = M seeds.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from sluice.base.digests import digest_frame, digest_json
from sluice.base.errors import ContractError
from sluice.data.folds import RowRange
from sluice.evaluation.losses import LossTable
from sluice.evaluation.suites.user_suites import find_positions
from sluice.evaluation.unseen_members import position_through, row_labels
from sluice.rollout.samples import ArmName, Outputs, Sample
from sluice.rollout.state import Rollout
from sluice.training.members import Member
from sluice.workloads.workload import Workload


def labelled_losses(
    rollout: Rollout,
    samples: Sequence[Sample],
    frame: pd.DataFrame,
    workload: Workload,
    *,
    first_unseen_position: int,
) -> tuple[LossTable, LossTable] | None:
    """Return the losses of challenger and production on the rows that both predicted live.

    The tables number the networks of a model as seeds, from 0. A row that was requested several
    times counts once, with its first predictions. Rows are in the order of the frame.

    Args:
        rollout: Rollout of the two arms.
        samples: Samples of the rollout, oldest first.
        frame: Newest feature frame, whose rows all have labels.
        workload: Workload that computes targets and losses.
        first_unseen_position: Position of the first row that neither model was trained on.

    Returns:
        The tables of challenger and production, or None if no row with both predictions has its
        label.

    Raises:
        ContractError: Outputs do not fit the workload, or two rows have the same index label.
    """
    pairs = pairs_by_position(samples, frame)
    row_pairs = [(row, pair) for row, pair in sorted(pairs.items()) if row >= first_unseen_position]
    if not row_pairs:
        return None
    row_range = RowRange(start=row_pairs[0][0], stop=row_pairs[-1][0] + 1)
    examples = workload.examples(frame, row_range)
    index_by_row = {row: index for index, row in enumerate(examples.rows.tolist())}
    # A workload may omit rows.
    row_pairs = [(row, pair) for row, pair in row_pairs if row in index_by_row]
    if not row_pairs:
        return None
    rows_P = np.array([row for row, _ in row_pairs])
    y = examples.targets[[index_by_row[row] for row, _ in row_pairs]]
    window_digest = digest_json({"rollout": rollout.id, "rows": digest_frame(frame.iloc[rows_P])})
    cluster_column = workload.cluster_column

    def loss_table(arm: ArmName, subject: str) -> LossTable:
        output_PMO = _stack_outputs([getattr(pair, arm) for _, pair in row_pairs], arm)
        losses = [_losses(workload, output_PO, y) for output_PO in output_PMO.swapaxes(0, 1)]
        return LossTable(
            subject=subject,
            window=window_digest,
            seeds=tuple(range(len(losses))),
            fold_N=np.zeros(len(rows_P), np.int64),
            label_N=row_labels(frame.index[rows_P]),
            loss_SN=np.stack(losses),
            cluster_N=None
            if cluster_column is None
            else frame[cluster_column].iloc[rows_P].astype(str).to_numpy(np.str_),
        )

    return (
        loss_table("challenger", rollout.candidate),
        loss_table("production", rollout.production),
    )


def find_first_unseen(members: Sequence[Member], frame: pd.DataFrame, *, horizon_rows: int) -> int:
    """Return the position of the first row after all rows on which members were trained.

    A member was trained on the rows up to ``trained_through``. The targets of these rows depend on
    the next ``horizon_rows`` rows, so the next rows do not count as unseen either.

    Raises:
        ContractError: A member was trained on a table with another kind of index.
    """
    last_position = max(position_through(frame.index, member.trained_through) for member in members)
    return last_position + horizon_rows + 1


def pairs_by_position(samples: Sequence[Sample], frame: pd.DataFrame) -> dict[int, Sample]:
    """Return the first sample of each row that both arms answered, by position in the frame.

    Raises:
        ContractError: Two rows of the frame have the same index label, so a key is ambiguous.
    """
    if not frame.index.is_unique:
        raise ContractError(
            "The keys of requests are index labels of rows, so each label must be unique, but the "
            "frame has two rows with the label "
            f"{row_labels(frame.index[frame.index.duplicated()][:1])[0]}.",
            fix="Give every row a unique index label.",
        )
    pairs = [
        (sample.key, sample)
        for sample in samples
        if sample.key is not None and sample.production and sample.challenger
    ]
    positions = find_positions([key for key, _ in pairs], frame.index)
    pair_by_position: dict[int, Sample] = {}
    for position, (_, sample) in zip(positions.tolist(), pairs, strict=True):
        if position >= 0:
            pair_by_position.setdefault(position, sample)
    return pair_by_position


def _stack_outputs(outputs: Sequence[Outputs], arm: ArmName) -> NDArray[np.float64]:
    """Return the outputs of each network of an arm (P, M, O)."""
    shapes = {(len(output), len(output[0])) for output in outputs}
    if len(shapes) > 1:
        raise ContractError(
            f"All samples of {arm} must have the same shape (networks, outputs), got "
            f"{' and '.join(map(str, sorted(shapes)))}.",
            cause="The servers run different versions of Sluice or of the workload's code.",
            fix="Install one version of Sluice on all servers, then start the rollout again.",
        )
    return np.array(outputs, np.float64)


def _losses(
    workload: Workload, output_PO: NDArray[np.float64], y: torch.Tensor
) -> NDArray[np.float64]:
    """Return the losses (P) of one network from its outputs, which samples store as (P, O)."""
    expected_shape = output_PO.shape
    if workload.serves_whole_output:
        expected_shape = workload.output_shape(y)
    if output_PO.size != math.prod(expected_shape):
        raise ContractError(
            f"Outputs for {len(y)} rows must have the workload's output shape {expected_shape}, "
            f"got {output_PO.shape}.",
            cause="The workload was changed after the version was trained.",
            fix="Use the workload that the version was trained with.",
        )
    output = torch.from_numpy(output_PO.reshape(expected_shape))
    output = output.to(y.dtype if y.is_floating_point() else torch.float32)
    losses: NDArray[np.float64] = workload.served_losses(output, y).detach().double().numpy()
    return losses
