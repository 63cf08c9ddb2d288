"""Per-example test losses and metrics of models and rules, on the rows the gate compares.

Shape legend: S = seeds, N = test rows over all folds, B = test examples of one fold.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sluice.data.folds import Fold
from sluice.digests import digest_frame, digest_json
from sluice.errors import ContractError
from sluice.evaluation.losses import LossTable
from sluice.evaluation.metric_table import MetricTable
from sluice.evaluation.production import latest_unseen, row_labels
from sluice.training.members import Member
from sluice.workloads.workload import Examples, Workload

BATCH_ROWS = 4096
"""Examples per forward pass: bounds memory, decides nothing."""

LoadMember = Callable[[Member], nn.Module]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """What one subject reached on the test rows."""

    losses: LossTable

    mistakes: LossTable | None
    """0/1 losses of a classifier on the same rows; None where there are no classes."""

    metric_table: MetricTable
    """The workload's metrics for each seed and fold."""

    @property
    def metrics(self) -> dict[str, float]:
        """Mean over seeds and rows; NaN as soon as one seed is."""
        return self.metric_table.means


def score_members(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    members: Sequence[Member],
    load: LoadMember,
    *,
    subject: str,
) -> Scores:
    """Score a candidate: each member on the test rows of its own fold.

    Args:
        workload: Makes examples, losses and metrics.
        frame: Feature frame.
        folds: The folds the members were trained on.
        members: One per seed and fold.
        load: Returns a member's fitted network.
        subject: Digest of the candidate.

    Raises:
        ContractError: A seed lacks a fold, has it twice, or has one that is not planned; or a
            member has seen test rows.
    """
    seeds, parts_S = _member_outputs(workload, frame, folds, members, load)
    return _collect(workload, frame, folds, seeds, parts_S, subject)


def score_ensemble(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    members: Sequence[Member],
    load: LoadMember,
    *,
    subject: str,
) -> Scores:
    """Score the mean output of a candidate's seeds as one model, which has no seeds left.

    It is what serves when all seeds are deployed together; the mean of their losses is not.

    Raises:
        ContractError: As ``score_members``.
    """
    _, parts_S = _member_outputs(workload, frame, folds, members, load)
    mean_parts = [
        (*same[0][:2], torch.stack([output for *_, output in same]).mean(dim=0))
        for same in zip(*parts_S, strict=True)
    ]
    return _collect(workload, frame, folds, (), [mean_parts], subject)


def score_production(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    members: Sequence[Member],
    load: LoadMember,
    *,
    subject: str,
) -> Scores:
    """Score what is in production on the current folds' test rows.

    Production was trained on its own folds, perhaps of older data. For each seed and current
    fold the member is taken that had learned the most without having seen the test rows: the one
    with the latest ``trained_through`` that lies before the first test row by more than the
    horizon (targets look that far ahead).

    Raises:
        ContractError: A seed has no such member for a fold, so its rows cannot be compared.
    """
    seeds = sorted({member.seed for member in members})

    def pick(seed: int, fold: Fold) -> Member:
        own = [member for member in members if member.seed == seed]
        return latest_unseen(own, frame.index, fold, horizon_rows=workload.horizon_rows)

    parts_S = _outputs(workload, frame, folds, seeds, pick, load)
    return _collect(workload, frame, folds, tuple(seeds), parts_S, subject)


def score_baseline(
    workload: Workload, frame: pd.DataFrame, folds: Sequence[Fold], *, subject: str
) -> Scores:
    """Score the workload's own simple rule; it has no seeds."""
    parts = []
    for fold, examples in _test_examples(workload, frame, folds):
        output = workload.baseline(frame, fold)
        _require_shape(workload, output, examples, f"baseline of fold {fold.fold_id}")
        parts.append((fold, examples, output))
    return _collect(workload, frame, folds, (), [parts], subject)


def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Return the model's outputs (B, ...) in evaluation mode, without gradients, on the CPU."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        output = torch.cat([model(part.to(device)).cpu() for part in x.split(BATCH_ROWS)])
    model.train(was_training)
    return output


def window_digest(frame: pd.DataFrame, folds: Sequence[Fold]) -> str:
    """Return the digest of the data and of the test rows: what both arms must share."""
    tests = [[fold.fold_id, fold.test.start, fold.test.stop] for fold in folds]
    return digest_json({"data": digest_frame(frame), "test": tests})


_Part = tuple[Fold, Examples, Tensor]


def _member_outputs(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    members: Sequence[Member],
    load: LoadMember,
) -> tuple[tuple[int, ...], list[list[_Part]]]:
    """Return the seeds and, for each, its own members' outputs on the folds' test rows."""
    by_place = {(member.seed, member.fold_id): member for member in members}
    seeds = sorted({member.seed for member in members})
    wanted = {(seed, fold.fold_id) for seed in seeds for fold in folds}
    if by_place.keys() != wanted or len(by_place) != len(members):
        missing, extra = sorted(wanted - by_place.keys()), sorted(by_place.keys() - wanted)
        raise ContractError(
            f"Every seed must have one member for each of {len(folds)} folds, got "
            f"{len(members)} members for {len(seeds)} seeds; missing (seed, fold) {missing}, not "
            f"planned {extra}, repeated {len(members) - len(by_place)}.",
            fix="Train the missing members on these folds.",
        )

    def pick(seed: int, fold: Fold) -> Member:
        own = [by_place[seed, fold.fold_id]]
        return latest_unseen(own, frame.index, fold, horizon_rows=workload.horizon_rows)

    return tuple(seeds), _outputs(workload, frame, folds, seeds, pick, load)


def _outputs(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    seeds: Sequence[int],
    pick: Callable[[int, Fold], Member],
    load: LoadMember,
) -> list[list[_Part]]:
    if not seeds:
        raise ContractError("At least one member is required, got none.", fix="Train first.")
    chosen = {(seed, fold.fold_id): pick(seed, fold) for seed in seeds for fold in folds}
    parts_S: list[list[_Part]] = [[] for _ in seeds]
    for fold, examples in _test_examples(workload, frame, folds):
        for seed, parts in zip(seeds, parts_S, strict=True):
            output = predict(load(chosen[seed, fold.fold_id]), examples.x)
            _require_shape(workload, output, examples, f"seed {seed}, fold {fold.fold_id}")
            parts.append((fold, examples, output))
    return parts_S


def _test_examples(
    workload: Workload, frame: pd.DataFrame, folds: Sequence[Fold]
) -> Iterator[tuple[Fold, Examples]]:
    for fold in folds:
        yield fold, workload.examples(frame, fold.test)


def _collect(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    seeds: tuple[int, ...],
    parts_S: Sequence[Sequence[_Part]],
    subject: str,
) -> Scores:
    labels = row_labels(frame.index)
    first = parts_S[0]
    losses = LossTable(
        subject=subject,
        window=window_digest(frame, folds),
        seeds=seeds,
        fold_N=np.concatenate([np.full(len(e), fold.fold_id, np.int64) for fold, e, _ in first]),
        label_N=np.concatenate([labels[examples.rows] for _, examples, _ in first]),
        loss_SN=_stack(workload.losses, "losses", parts_S),
    )
    has_classes = workload.mistakes(first[0][2], first[0][1].y) is not None
    return Scores(
        losses=losses,
        mistakes=replace(losses, loss_SN=_stack(workload.mistakes, "mistakes", parts_S))
        if has_classes
        else None,
        metric_table=_metric_table(workload, frame, parts_S, losses),
    )


def _stack(
    measure: Callable[[Tensor, Tensor], Tensor | None],
    name: str,
    parts_S: Sequence[Sequence[_Part]],
) -> NDArray[np.float64]:
    return np.stack(
        [
            np.concatenate([_per_example(measure, name, output, e) for _, e, output in parts])
            for parts in parts_S
        ]
    )


def _per_example(
    measure: Callable[[Tensor, Tensor], Tensor | None],
    name: str,
    output: Tensor,
    examples: Examples,
) -> NDArray[np.float64]:
    found = measure(output, examples.y)
    if found is None or found.shape != (len(examples),):
        raise ContractError(
            f"The workload's {name} must be one per example, ({len(examples)},), got "
            f"{None if found is None else tuple(found.shape)}.",
            fix=f"Return a number per example from '{name}'; average in 'loss'.",
        )
    values: NDArray[np.float64] = found.detach().numpy().astype(np.float64)
    return values


def _metric_table(
    workload: Workload, frame: pd.DataFrame, parts_S: Sequence[Sequence[_Part]], losses: LossTable
) -> MetricTable:
    found_SF = [
        [workload.metrics(output, examples, frame) for _, examples, output in parts]
        for parts in parts_S
    ]
    return MetricTable(
        subject=losses.subject,
        window=losses.window,
        seeds=losses.seeds,
        fold_rows=tuple(len(examples) for _, examples, _ in parts_S[0]),
        values={
            name: tuple(tuple(float(fold[name]) for fold in found_F) for found_F in found_SF)
            for name in found_SF[0][0]
        },
    )


def _require_shape(workload: Workload, output: Tensor, examples: Examples, who: str) -> None:
    want = workload.output_shape(examples.y)
    if tuple(output.shape) != want:
        raise ContractError(
            f"Predictions for {len(examples)} test rows must be {want}, got "
            f"{tuple(output.shape)} from {who}.",
            fix="Return one prediction per test example, in row order.",
        )
