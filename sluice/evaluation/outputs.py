"""Computes the outputs of trained networks on the test rows of the folds.

Shape legend: S = seeds, B = test examples of one fold.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.data.folds import Fold
from sluice.data.rows.protocol import RowSource
from sluice.evaluation.unseen_members import select_unseen_member
from sluice.training import prediction
from sluice.training.members import Member
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload

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


def ensemble_losses(
    workload: Workload, networks: Sequence[nn.Module], examples: Examples
) -> Tensor:
    """Return the loss of every example (B,) for the mean output of several networks."""
    if workload.keep_outputs:
        outputs = [predict(network, examples.x) for network in networks]
        output = outputs[0] if len(outputs) == 1 else torch.stack(outputs).mean(dim=0)
        return workload.losses(output, examples.targets)
    sources = [prediction.PredictedRows(network, examples.x) for network in networks]
    return torch.cat(
        [
            workload.losses(mean_output(chunk.outputs), chunk.y)
            for chunk in prediction.iter_outputs(sources, examples.y)
        ]
    )


def mean_output(outputs: Sequence[Tensor]) -> Tensor:
    """Return the output of an ensemble, the mean of the outputs of its networks (B, ...)."""
    return torch.stack(list(outputs)).mean(dim=0)


SelectMember = Callable[[int, Fold], Member]
"""Function of a seed and a fold that returns the member to be used for the fold's test rows."""


def require_complete_seeds(folds: Sequence[Fold], members: Sequence[Member]) -> tuple[int, ...]:
    """Return the seeds of members, after checking that each seed has one member for each fold.

    Raises:
        ContractError: A seed lacks a fold, has a fold twice, or has an unexpected fold.
    """
    member_by_fold_run = _index_by_fold_run(members)
    seeds = sorted({member.seed for member in members})
    expected_runs = {(seed, fold.fold_id) for seed in seeds for fold in folds}
    if member_by_fold_run.keys() != expected_runs or len(member_by_fold_run) != len(members):
        missing_runs = sorted(expected_runs - member_by_fold_run.keys())
        unexpected_runs = sorted(member_by_fold_run.keys() - expected_runs)
        raise ContractError(
            f"Every seed must have one member for each of {len(folds)} folds, got "
            f"{pluralize(len(members), 'member')} for {pluralize(len(seeds), 'seed')}; missing "
            f"(seed, fold) {missing_runs}, unexpected {unexpected_runs}, repeated "
            f"{len(members) - len(member_by_fold_run)}.",
            fix="Train the missing members on these folds.",
        )
    return tuple(seeds)


def own_member_selector(
    workload: Workload, frame: pd.DataFrame, members: Sequence[Member]
) -> SelectMember:
    """Return the function that selects the member that was trained with a seed on a fold.

    The function raises a ``ContractError`` if the member was trained on the fold's test rows.
    """
    member_by_fold_run = _index_by_fold_run(members)

    def select_member(seed: int, fold: Fold) -> Member:
        member = member_by_fold_run[seed, fold.fold_id]
        return select_unseen_member([member], frame.index, fold, horizon_rows=workload.horizon_rows)

    return select_member


def member_outputs(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    members: Sequence[Member],
    load: LoadMember,
) -> tuple[tuple[int, ...], list[list[FoldOutput]]]:
    """Return the seeds and, for each seed, the outputs of its members on their test rows."""
    seeds = require_complete_seeds(folds, members)
    select_member = own_member_selector(workload, frame, members)
    return seeds, outputs_of(workload, frame, folds, seeds, select_member, load)


def outputs_of(
    workload: Workload,
    frame: pd.DataFrame,
    folds: Sequence[Fold],
    seeds: Sequence[int],
    select_member: SelectMember,
    load: LoadMember,
) -> list[list[FoldOutput]]:
    """Return for each seed and fold the output of the member that ``select_member`` returns."""
    members = select_members(folds, seeds, select_member)
    outputs_by_seed: list[list[FoldOutput]] = [[] for _ in seeds]
    for fold, examples in examples_of(workload, frame, folds):
        for seed, outputs in zip(seeds, outputs_by_seed, strict=True):
            output = predict(load(members[seed, fold.fold_id]), examples.x)
            model_name = f"seed {seed}, fold {fold.fold_id}"
            require_output_shape(workload, output, examples.targets, model_name)
            outputs.append(FoldOutput(fold=fold, examples=examples, output=output))
    return outputs_by_seed


def select_members(
    folds: Sequence[Fold], seeds: Sequence[int], select_member: SelectMember
) -> Mapping[tuple[int, int], Member]:
    """Return the member for every seed and fold id; errors are raised before any prediction."""
    if not seeds:
        raise ContractError("At least one member is required, got none.", fix="Train first.")
    return {(seed, fold.fold_id): select_member(seed, fold) for seed in seeds for fold in folds}


def examples_of(
    workload: Workload, frame: pd.DataFrame, folds: Sequence[Fold]
) -> Iterator[tuple[Fold, Examples]]:
    """Yield each fold with its test examples."""
    for fold in folds:
        yield fold, workload.examples(frame, fold.test)


def require_output_shape(workload: Workload, output: Tensor, y: Tensor, model_name: str) -> None:
    """Raise an error unless the output has the shape that the workload requires for the targets.

    Args:
        workload: Workload with the required shape.
        output: Output for the examples with the targets ``y``.
        y: Targets.
        model_name: Name of the model that computed the output, for the message.
    """
    expected_shape = workload.output_shape(y)
    if tuple(output.shape) != expected_shape:
        raise ContractError(
            f"Predictions for {len(y)} test rows must have shape {expected_shape}, got "
            f"{tuple(output.shape)} from {model_name}.",
            fix="Return one prediction per test example, in row order.",
        )


def _index_by_fold_run(members: Sequence[Member]) -> dict[tuple[int, int], Member]:
    return {(member.seed, member.fold_id): member for member in members}
