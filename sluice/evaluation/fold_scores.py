"""Losses and metrics of one model on the test rows of one fold.

Losses and metrics are computed from a whole output or, if the workload does not keep its outputs,
chunk by chunk.

Shape legend: B = test examples of one fold.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.base.errors import ContractError
from sluice.data.folds import Fold
from sluice.data.rows.protocol import RowSource
from sluice.evaluation.outputs import FoldOutput, mean_output, require_output_shape
from sluice.findings.user_code import wrap_user_errors
from sluice.training.prediction import iter_outputs
from sluice.workloads.examples import Examples
from sluice.workloads.workload import Workload

_ExampleFunction = Callable[[Tensor, Tensor], Tensor | None]
"""Function of outputs and targets that returns one number for each example, or None."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoldScores:
    """Scores of one model on the test rows of one fold."""

    fold: Fold
    examples: Examples
    loss_B: NDArray[np.float64]

    mistake_B: NDArray[np.float64] | None
    """Mistake on each example: 1 for a wrong class, else 0; None for a target without classes."""

    metrics: Mapping[str, float]


def score_output(workload: Workload, frame: pd.DataFrame, fold_output: FoldOutput) -> FoldScores:
    """Return the scores of a whole output.

    Raises:
        ContractError: The workload's losses or mistakes are not one number for each example.
    """
    y = fold_output.examples.targets
    with wrap_user_errors("mistakes() of the workload"):
        has_classes = workload.mistakes(fold_output.output, y) is not None
    loss_B = _compute_per_example(workload.losses, "losses", fold_output.output, y)
    mistake_B = (
        _compute_per_example(workload.mistakes, "mistakes", fold_output.output, y)
        if has_classes
        else None
    )
    with wrap_user_errors("metrics() of the workload"):
        metrics = workload.metrics(fold_output.output, fold_output.examples, frame)
    return FoldScores(
        fold=fold_output.fold,
        examples=fold_output.examples,
        loss_B=loss_B,
        mistake_B=mistake_B,
        metrics=metrics,
    )


def score_chunks(
    workload: Workload,
    frame: pd.DataFrame,
    fold: Fold,
    examples: Examples,
    sources: Mapping[str, Tensor | RowSource],
    *,
    with_ensemble: bool,
) -> list[FoldScores]:
    """Return the scores of several models, and of their mean output, computed chunk by chunk.

    Args:
        workload: Workload with ``losses``, ``mistakes`` and ``metrics_from_losses``.
        frame: Feature frame.
        fold: Fold of the test rows.
        examples: Test examples; their inputs are not read.
        sources: Outputs of each model for these examples, by the model's name in messages.
        with_ensemble: Whether to append the scores of the models' mean output.

    Raises:
        ContractError: An output has the wrong shape, or the workload's losses or mistakes are not
            one number for each example.
    """
    num_models = len(sources) + with_ensemble
    chunk_losses: list[list[NDArray[np.float64]]] = [[] for _ in range(num_models)]
    chunk_mistakes: list[list[NDArray[np.float64]]] = [[] for _ in range(num_models)]
    for chunk in iter_outputs(list(sources.values()), examples.y):
        for name, output in zip(sources, chunk.outputs, strict=True):
            require_output_shape(workload, output, chunk.y, name)
        outputs = [*chunk.outputs, *([mean_output(chunk.outputs)] if with_ensemble else [])]
        for index, output in enumerate(outputs):
            chunk_losses[index].append(
                _compute_per_example(workload.losses, "losses", output, chunk.y)
            )
            with wrap_user_errors("mistakes() of the workload"):
                has_classes = workload.mistakes(output, chunk.y) is not None
            if has_classes:
                chunk_mistakes[index].append(
                    _compute_per_example(workload.mistakes, "mistakes", output, chunk.y)
                )
    return [
        _scores_from_chunks(workload, frame, fold, examples, losses, mistakes)
        for losses, mistakes in zip(chunk_losses, chunk_mistakes, strict=True)
    ]


def _scores_from_chunks(
    workload: Workload,
    frame: pd.DataFrame,
    fold: Fold,
    examples: Examples,
    losses: Sequence[NDArray[np.float64]],
    mistakes: Sequence[NDArray[np.float64]],
) -> FoldScores:
    """Return the scores of a fold from the losses and mistakes of its chunks."""
    loss_B = np.concatenate(losses)
    with wrap_user_errors("metrics_from_losses() of the workload"):
        metrics = workload.metrics_from_losses(torch.from_numpy(loss_B), examples, frame)
    return FoldScores(
        fold=fold,
        examples=examples,
        loss_B=loss_B,
        mistake_B=np.concatenate(mistakes) if mistakes else None,
        metrics=metrics,
    )


def _compute_per_example(
    function: _ExampleFunction, name: str, output: Tensor, y: Tensor
) -> NDArray[np.float64]:
    """Return the numbers that a workload function computes; raise an error for a wrong shape."""
    with wrap_user_errors(f"{name}() of the workload"):
        values, count = function(output, y), len(y)
    if values is None or values.shape != (count,):
        raise ContractError(
            f"The workload's {name} must have shape ({count},), one per example, got "
            f"{None if values is None else tuple(values.shape)}.",
            fix=f"Return one number per example from '{name}'"
            + ("; average in 'loss'." if name == "losses" else "."),
        )
    value_B: NDArray[np.float64] = values.detach().numpy().astype(np.float64)
    return value_B
