"""Computes the outputs of trained networks on the test rows of the folds.

Shape legend: S = seeds, B = test examples of one fold.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.out_of_memory import explain_out_of_memory, prediction_memory_advice
from sluice.data.folds import Fold
from sluice.data.rows.protocol import RowSource, move_input, read_in_parts
from sluice.evaluation.unseen_members import latest_unseen
from sluice.training.members import Member
from sluice.workloads.workload import Examples, Workload

BATCH_ROWS = 4096
"""Examples per forward pass; it limits memory and does not affect the outputs."""

LoadMember = Callable[[Member], nn.Module]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoldOutput:
    """Test examples of one fold, and the output of one model for them (B, ...)."""

    fold: Fold
    examples: Examples
    output: Tensor


def predict(model: nn.Module, x: Tensor | RowSource) -> Tensor:
    """Return the model's outputs (B, ...) in evaluation mode, without gradients, on the CPU."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    was_training = model.training
    model.eval()
    work = f"predicting {len(x)} rows, {min(len(x), BATCH_ROWS)} at once"
    with torch.inference_mode(), explain_out_of_memory(work, prediction_memory_advice):
        output = torch.cat(
            [
                model(move_input(part, device)).cpu()
                for part in read_in_parts(x, max_rows=BATCH_ROWS)
            ]
        )
    model.train(was_training)
    return output


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
    wanted = {(seed, fold.fold_id) for seed in seeds for fold in folds}
    if by_fold_run.keys() != wanted or len(by_fold_run) != len(members):
        missing, extra = sorted(wanted - by_fold_run.keys()), sorted(by_fold_run.keys() - wanted)
        raise ContractError(
            f"Every seed must have one member for each of {len(folds)} folds, got "
            f"{len(members)} members for {len(seeds)} seeds; missing (seed, fold) {missing}, "
            f"unexpected {extra}, repeated {len(members) - len(by_fold_run)}.",
            fix="Train the missing members on these folds.",
        )

    def pick(seed: int, fold: Fold) -> Member:
        own = [by_fold_run[seed, fold.fold_id]]
        return latest_unseen(own, frame.index, fold, horizon_rows=workload.horizon_rows)

    return tuple(seeds), outputs_of(workload, frame, folds, seeds, pick, load)


def outputs_of(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    seeds: Sequence[int],
    pick: Callable[[int, Fold], Member],
    load: LoadMember,
) -> list[list[FoldOutput]]:
    """Return for each seed and fold the output of the member that ``pick`` selects."""
    if not seeds:
        raise ContractError("At least one member is required, got none.", fix="Train first.")
    chosen = {(seed, fold.fold_id): pick(seed, fold) for seed in seeds for fold in folds}
    parts_S: list[list[FoldOutput]] = [[] for _ in seeds]
    for fold, examples in examples_of(workload, frame, folds):
        for seed, parts in zip(seeds, parts_S, strict=True):
            output = predict(load(chosen[seed, fold.fold_id]), examples.x)
            require_shape(workload, output, examples, f"seed {seed}, fold {fold.fold_id}")
            parts.append(FoldOutput(fold=fold, examples=examples, output=output))
    return parts_S


def examples_of(
    workload: Workload, frame: pd.DataFrame, folds: Sequence[Fold]
) -> Iterator[tuple[Fold, Examples]]:
    """Yield each fold with its test examples."""
    for fold in folds:
        yield fold, workload.examples(frame, fold.test)


def require_shape(workload: Workload, output: Tensor, examples: Examples, who: str) -> None:
    """Raise an error unless the output has the expected shape; ``who`` is for the message."""
    want = workload.output_shape(examples.targets)
    if tuple(output.shape) != want:
        raise ContractError(
            f"Predictions for {len(examples)} test rows must have shape {want}, got "
            f"{tuple(output.shape)} from {who}.",
            fix="Return one prediction per test example, in row order.",
        )
