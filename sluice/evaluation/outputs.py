"""Computes the outputs of trained networks on the test rows of the folds.

Shape legend: S = seeds, B = test examples of one fold.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.data.folds import Fold
from sluice.data.rows.protocol import RowSource
from sluice.evaluation.unseen_members import latest_unseen
from sluice.training import prediction
from sluice.training.members import Member
from sluice.workloads.workload import Examples, Workload

LoadMember = Callable[[Member], nn.Module]
"""Function that returns the trained network of a member."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoldOutput:
    """Test examples of one fold, and the output of one model for them (B, ...)."""

    fold: Fold
    examples: Examples
    output: Tensor


def predict(model: nn.Module, x: Tensor | RowSource) -> Tensor:
    """Return the model's outputs (B, ...) in evaluation mode, without gradients, on the CPU."""
    return prediction.predict(model, x).cpu()


def member_outputs(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    members: Sequence[Member],
    load: LoadMember,
) -> tuple[tuple[int, ...], list[list[FoldOutput]]]:
    """Return the seeds and, for each seed, the outputs of its members on their test rows."""
    by_fold_run = {(member.seed, member.fold_id): member for member in members}
    seeds = sorted({member.seed for member in members})
    expected = {(seed, fold.fold_id) for seed in seeds for fold in folds}
    if by_fold_run.keys() != expected or len(by_fold_run) != len(members):
        missing = sorted(expected - by_fold_run.keys())
        extra = sorted(by_fold_run.keys() - expected)
        raise ContractError(
            f"Every seed must have one member for each of {len(folds)} folds, got "
            f"{len(members)} members for {len(seeds)} seeds; missing (seed, fold) {missing}, "
            f"unexpected {extra}, repeated {len(members) - len(by_fold_run)}.",
            fix="Train the missing members on these folds.",
        )

    def select_member(seed: int, fold: Fold) -> Member:
        candidates = [by_fold_run[seed, fold.fold_id]]
        # Raises an error if the member was trained on the test rows of its fold.
        return latest_unseen(candidates, frame.index, fold, horizon_rows=workload.horizon_rows)

    return tuple(seeds), outputs_of(workload, frame, folds, seeds, select_member, load)


def outputs_of(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    seeds: Sequence[int],
    select_member: Callable[[int, Fold], Member],
    load: LoadMember,
) -> list[list[FoldOutput]]:
    """Return for each seed and fold the output of the member that ``select_member`` returns."""
    if not seeds:
        raise ContractError("At least one member is required, got none.", fix="Train first.")
    # All members are selected first, so that errors are raised before any prediction.
    selected = {(seed, fold.fold_id): select_member(seed, fold) for seed in seeds for fold in folds}
    outputs_by_seed: list[list[FoldOutput]] = [[] for _ in seeds]
    for fold, examples in examples_of(workload, frame, folds):
        for seed, outputs in zip(seeds, outputs_by_seed, strict=True):
            output = predict(load(selected[seed, fold.fold_id]), examples.x)
            require_shape(workload, output, examples, f"seed {seed}, fold {fold.fold_id}")
            outputs.append(FoldOutput(fold=fold, examples=examples, output=output))
    return outputs_by_seed


def examples_of(
    workload: Workload, frame: pd.DataFrame, folds: Sequence[Fold]
) -> Iterator[tuple[Fold, Examples]]:
    """Yield each fold with its test examples."""
    for fold in folds:
        yield fold, workload.examples(frame, fold.test)


def require_shape(workload: Workload, output: Tensor, examples: Examples, source: str) -> None:
    """Raise an error unless the output has the expected shape; the message names ``source``."""
    expected = workload.output_shape(examples.targets)
    if tuple(output.shape) != expected:
        raise ContractError(
            f"Predictions for {len(examples)} test rows must have shape {expected}, got "
            f"{tuple(output.shape)} from {source}.",
            fix="Return one prediction per test example, in row order.",
        )
