"""Losses of live predictions whose labels have arrived, as tables for the promotion gate.

Shape legend: P = labelled pairs, M = networks of a model, O = outputs.
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
    first_unseen: int,
) -> tuple[LossTable, LossTable] | None:
    """Return the losses of challenger and production on the rows that both predicted live.

    Each network is one seed, numbered from 0. A row that was requested several times counts
    once, with its first prediction. Rows are in the order of the frame.

    Args:
        rollout: Rollout of the two arms.
        samples: Samples of that rollout, oldest first.
        frame: Newest feature frame; a row in it has its label.
        workload: Computes targets and losses.
        first_unseen: Position of the first row that neither model was trained on.

    Returns:
        Both tables, or None while no pair has its label.

    Raises:
        ContractError: Outputs do not fit the workload, or a row's label is not unique.
    """
    pairs = labelled_pairs(samples, frame)
    known = [(at, pair) for at, pair in sorted(pairs.items()) if at >= first_unseen]
    if not known:
        return None
    span = RowRange(start=known[0][0], stop=known[-1][0] + 1)
    examples = workload.examples(frame, span)
    nth = {row: n for n, row in enumerate(examples.rows.tolist())}
    known = [found for found in known if found[0] in nth]  # a workload may leave rows out
    if not known:
        return None
    rows_P = np.array([at for at, _ in known])
    y = examples.targets[[nth[at] for at, _ in known]]
    window = digest_json({"rollout": rollout.id, "rows": digest_frame(frame.iloc[rows_P])})
    cluster = workload.cluster_column

    def table(arm: ArmName, subject: str) -> LossTable:
        output_PMO = _stack([getattr(pair, arm) for _, pair in known], arm)
        losses = [_losses(workload, each_PO, y) for each_PO in output_PMO.swapaxes(0, 1)]
        return LossTable(
            subject=subject,
            window=window,
            seeds=tuple(range(len(losses))),
            fold_N=np.zeros(len(rows_P), np.int64),
            label_N=row_labels(frame.index[rows_P]),
            loss_SN=np.stack(losses),
            cluster_N=None
            if cluster is None
            else frame[cluster].iloc[rows_P].astype(str).to_numpy(np.str_),
        )

    return table("challenger", rollout.candidate), table("production", rollout.production)


def first_unseen(members: Sequence[Member], frame: pd.DataFrame, *, horizon_rows: int) -> int:
    """Return the position of the first row that no member was trained on.

    A member has seen the rows up to ``trained_through`` and, through the targets, the next
    ``horizon_rows`` rows.

    Raises:
        ContractError: A member was trained on a table with another kind of index.
    """
    through = max(position_through(frame.index, member.trained_through) for member in members)
    return through + horizon_rows + 1


def labelled_pairs(samples: Sequence[Sample], frame: pd.DataFrame) -> dict[int, Sample]:
    """Return the first sample that both arms answered, by its row's position in the frame.

    Raises:
        ContractError: Two rows of the frame have the same label, so a key is ambiguous.
    """
    if not frame.index.is_unique:
        raise ContractError(
            "Keys name rows by their index label, and the frame has two rows "
            f"{row_labels(frame.index[frame.index.duplicated()][:1])[0]}.",
            fix="Give every row a unique label.",
        )
    pairs = [
        (sample.key, sample)
        for sample in samples
        if sample.key is not None and sample.production and sample.challenger
    ]
    places = find_positions([key for key, _ in pairs], frame.index)
    found: dict[int, Sample] = {}
    for at, (_, sample) in zip(places.tolist(), pairs, strict=True):
        if at >= 0:
            found.setdefault(at, sample)
    return found


def _stack(outputs: Sequence[Outputs], arm: ArmName) -> NDArray[np.float64]:
    """Return the outputs of each network of an arm (P, M, O)."""
    shapes = {(len(each), len(each[0])) for each in outputs}
    if len(shapes) > 1:
        raise ContractError(
            f"Every sample must have the same number of networks and outputs of {arm}, got "
            f"{' and '.join(map(str, sorted(shapes)))}.",
            cause="The servers run different builds of one version.",
            fix="Install one version of Sluice on all servers, then start the rollout again.",
        )
    return np.array(outputs, np.float64)


def _losses(
    workload: Workload, output_PO: NDArray[np.float64], y: torch.Tensor
) -> NDArray[np.float64]:
    want = workload.output_shape(y)
    if output_PO.size != math.prod(want):
        raise ContractError(
            f"Outputs for {len(y)} rows must have the workload's output shape {want}, got "
            f"{output_PO.shape}.",
            cause="The workload changed since the version was trained.",
            fix="Use the workload that the version was trained with.",
        )
    output = torch.from_numpy(output_PO.reshape(want))
    output = output.to(y.dtype if y.is_floating_point() else torch.float32)
    losses: NDArray[np.float64] = workload.losses(output, y).detach().double().numpy()
    return losses
