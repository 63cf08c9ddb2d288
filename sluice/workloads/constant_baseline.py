"""Measures the loss of the best constant output, and the unit in which losses are compared with it.

A loss value alone has little meaning: it may have an offset, be negative, or be large because of
the target's level. Therefore the loss of the best constant output serves as zero, and the gain from
knowing the target serves as unit.

Shape legend: N = examples, G = groups of examples, P = values of one target,
L = positions of a sequence.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.base.eager_optimizers import EagerAdam, EagerLBFGS
from sluice.workloads.workload import Workload

_UNIT_ROWS = 512
"""Maximum number of examples from which the unit is measured."""
_MAX_VALUES = 2**20
"""Maximum number of output values per evaluation of a loss. If outputs are larger, such as the
logits of all tokens of a block, fewer examples are used, but at least two."""
_MAX_TABLE_VALUES = 2**22
"""Maximum number of values in the table of constant outputs, which has one output per group. A
larger table is not optimised; only its initial values are evaluated."""
_MAX_EVALUATED_VALUES = 2**25
"""Approximate maximum number of output values that all evaluations of one search compute. For large
outputs, L-BFGS and Adam make fewer steps, but begin close to the best output if targets are
classes."""
_MAX_ITERATIONS = 60
"""Maximum number of iterations of L-BFGS."""
_NUM_REFINE_STEPS = 60
"""Number of steps of Adam after L-BFGS, for non-smooth losses."""
_MAX_STEPS = _MAX_ITERATIONS + _NUM_REFINE_STEPS

_HINT_ERROR_SHARE = 0.1
"""Share of wrong hints. A hint says on which side of the mean a target is. The share applies to the
side with fewer targets; on the other side, the same number of hints is wrong. With perfect hints, a
Gaussian likelihood would be unbounded for a target that is often exactly 0."""

_UNIT_PER_HINT = 3.0
"""Unit of the loss, as a multiple of the gain from hints. The gain from knowing the target is also
a multiple of the gain from hints: 2.6 for the squared error of a normal target, and 6 for ten
equally frequent classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantBaseline:
    """Zero and unit of a loss on given targets, both in the loss's own unit."""

    loss: float
    """Mean loss of the best constant output."""
    unit: float
    """Decrease of the loss for a predictor that knows the target; estimated if it is unbounded."""
    problem: str = ""
    """Reason why no baseline could be measured; empty if a baseline was measured."""


def measure_constant_baseline(workload: Workload, y: Tensor) -> ConstantBaseline:
    """Return the constant baseline and the unit of the workload's loss on the targets ``y``.

    The unit is the loss of the best constant output minus the loss of the best outputs that are
    chosen for each example separately. For a loss that can be negative, such as a Gaussian
    likelihood, this difference may be unbounded. The unit is then three times the gain from hints:
    the decrease of the loss with one constant output per hint. The hint for an example says whether
    its target is above the mean, and at least about nine of ten hints are correct.

    If a constant is added to a loss, the baseline changes. The unit does not change as long as the
    loss stays above 0. If a loss is multiplied by a factor, so are baseline and unit.

    Args:
        workload: Defines the losses and the shape of an output.
        y: Targets (N, ...).

    Raises:
        Exception: Any exception of the workload's code but RuntimeError, ValueError, TypeError and
            IndexError, which become the ``problem``.
    """
    sample = _sample_targets(y)
    if _all_equal(sample):
        return _unavailable_baseline("the targets are all equal")
    try:
        loss = constant_baseline_loss(workload, y)
        unit = _measure_unit(workload, sample)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return _unavailable_baseline(
            f"losses() does not accept a constant output for every example "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        )
    if not math.isfinite(loss):
        return _unavailable_baseline("no constant output has a finite loss")
    # A smaller unit may be a rounding error of a single-precision loss.
    if not unit > 1e-6 * abs(loss):
        return _unavailable_baseline("the loss is no lower for a predictor that knows the target")
    return ConstantBaseline(loss=loss, unit=unit)


def constant_baseline_loss(workload: Workload, y: Tensor) -> float:
    """Return the mean loss of the best constant output; NaN if none has a finite loss.

    Raises:
        Exception: Any exception of the workload's losses for an output of the declared shape.
    """
    return grouped_constant_loss(workload, y, np.zeros(len(y), np.int64))


def grouped_constant_loss(workload: Workload, y: Tensor, group_N: NDArray[np.int64]) -> float:
    """Return the lowest mean loss with one constant output per group of examples.

    With one group this is the constant baseline, and with one group per example the best loss of
    any model. The search starts from means, medians and class shares of the groups. It minimises
    the loss by L-BFGS, and then by Adam with decreasing steps, for non-smooth losses. For a loss
    that is unbounded below, the result is a large negative number.

    Args:
        workload: Defines the losses and the shape of an output.
        y: Targets (N, ...).
        group_N: Group of each example, numbered from 0 without gaps.

    Returns:
        The lowest mean loss; NaN if no tested output has a finite loss.

    Raises:
        Exception: Any exception of the workload's losses for an output of the declared shape.

    Cost:
        A few hundred evaluations of the loss. Convex losses of up to 512 examples take 0.05 s.
        Losses of ``_MAX_VALUES`` output values take a few seconds.
    """
    y, group_N = _limit_examples(workload, y, group_N)
    try:
        return _find_lowest_loss(
            workload, y.double() if y.is_floating_point() else y, group_N, torch.double
        )
    except RuntimeError:
        # A loss with class weights in single precision does not accept an output in double
        # precision.
        return _find_lowest_loss(workload, y, group_N, torch.float)


def _limit_examples(
    workload: Workload, y: Tensor, group_N: NDArray[np.int64]
) -> tuple[Tensor, NDArray[np.int64]]:
    """Return evenly spaced examples, at least two, with up to ``_MAX_VALUES`` output values."""
    max_rows = max(2, _MAX_VALUES // max(1, math.prod(workload.output_shape(y)[1:])))
    if len(y) <= max_rows:
        return y, group_N
    rows = np.linspace(0, len(y) - 1, max_rows).round().astype(np.int64)
    _, group_N = np.unique(group_N[rows], return_inverse=True)
    return y[torch.from_numpy(rows).to(y.device)], group_N.astype(np.int64)


def _measure_unit(workload: Workload, y: Tensor) -> float:
    loss = constant_baseline_loss(workload, y)
    lowest_loss = grouped_constant_loss(workload, y, np.arange(len(y)))
    # A negative value of the size of rounding errors counts as 0.
    if lowest_loss >= -1e-9 * abs(loss):
        return loss - lowest_loss
    return _UNIT_PER_HINT * (loss - grouped_constant_loss(workload, y, _noisy_hints(y)))


def _sample_targets(y: Tensor) -> Tensor:
    if len(y) <= _UNIT_ROWS:
        return y
    positions = torch.linspace(0, len(y) - 1, _UNIT_ROWS, dtype=torch.double).round().long()
    sample = y[positions.to(y.device)]
    # If all sampled targets are equal, use all targets: only the rare other values can be learned.
    return y if _all_equal(sample) else sample


def _all_equal(y: Tensor) -> bool:
    return bool((y == y[:1]).all())


def _unavailable_baseline(problem: str) -> ConstantBaseline:
    return ConstantBaseline(loss=math.nan, unit=math.nan, problem=problem)


def _noisy_hints(y: Tensor) -> NDArray[np.int64]:
    """Return on which side of the mean each target is (0 or 1), with a few wrong sides."""
    side_N = _side_of_mean(y)
    rows_by_side = [np.flatnonzero(side_N == side) for side in (0, 1)]
    num_on_smaller_side = min(map(len, rows_by_side))
    num_exchanged = max(
        0, min(math.ceil(_HINT_ERROR_SHARE * num_on_smaller_side), num_on_smaller_side - 1)
    )
    for side, rows in enumerate(rows_by_side):
        exchanged_positions = np.linspace(0, len(rows) - 1, num_exchanged).round().astype(np.int64)
        side_N[rows[exchanged_positions]] = 1 - side
    return side_N


def _side_of_mean(y: Tensor) -> NDArray[np.int64]:
    """Return 1 for targets above the mean along the direction of largest variance, else 0."""
    flat_NP = y.detach().cpu().double().reshape(len(y), -1)
    flat_NP = flat_NP - flat_NP.mean(dim=0)
    direction_P = flat_NP[int(flat_NP.square().sum(dim=1).argmax())]
    for _ in range(20):  # power iteration
        product_P = flat_NP.T @ (flat_NP @ direction_P)
        direction_P = product_P / product_P.norm()
    return (flat_NP @ direction_P > 0).numpy().astype(np.int64)


def _find_lowest_loss(
    workload: Workload, y: Tensor, group_N: NDArray[np.int64], dtype: torch.dtype
) -> float:
    index_N = torch.from_numpy(group_N).to(y.device)
    num_groups = int(group_N.max()) + 1
    output_shape = workload.output_shape(y)[1:]
    lowest = math.nan

    def evaluate(table: Tensor) -> Tensor:
        nonlocal lowest
        value = workload.losses(table.index_select(0, index_N), y).mean()
        loss = float(value.detach())
        if math.isfinite(loss) and not lowest <= loss:  # also if lowest is NaN
            lowest = loss
        return value

    initial_tables = _initial_tables(y, index_N, num_groups, output_shape, dtype)
    with torch.no_grad():
        values = [float(evaluate(table)) for table in initial_tables]
    finite_values = [(value, i) for i, value in enumerate(values) if math.isfinite(value)]
    if finite_values and initial_tables[0].numel() <= _MAX_TABLE_VALUES:
        table = initial_tables[min(finite_values)[1]].clone().requires_grad_()
        with torch.enable_grad():
            num_values = math.prod(output_shape) * len(y)
            share = min(1.0, _MAX_EVALUATED_VALUES / (num_values * _MAX_STEPS))
            _minimise(table, evaluate, step_share=share)
    return lowest


def _initial_tables(
    y: Tensor, index_N: Tensor, num_groups: int, output_shape: tuple[int, ...], dtype: torch.dtype
) -> list[Tensor]:
    """Return the outputs from which the search starts, as tables with one output per group."""
    zeros = torch.zeros(num_groups, *output_shape, dtype=dtype, device=y.device)
    if y.is_floating_point() and tuple(y.shape[1:]) == output_shape:
        if num_groups == len(y):
            return [zeros, y[index_N.argsort()].to(dtype)]
        groups = [y[index_N == group] for group in range(num_groups)]
        means = torch.stack([group.mean(dim=0) for group in groups]).to(dtype)
        medians = torch.stack([group.median(dim=0).values for group in groups]).to(dtype)
        return [zeros, means, medians]
    classes = output_shape[0] if output_shape else 0
    if not y.is_floating_point() and y.ndim == 1 and int(y.min()) >= 0 and int(y.max()) < classes:
        counts = torch.zeros(num_groups, classes, dtype=dtype, device=y.device)
        counts.index_put_((index_N, y.long()), counts.new_ones(()), accumulate=True)
        shares = (counts + 1e-3) / (counts + 1e-3).sum(dim=1, keepdim=True)
        if len(output_shape) == 1:
            return [zeros, shares.log(), shares]
    if _are_tokens(y, output_shape):
        return [zeros, _token_log_shares(y, index_N, zeros)]
    return [zeros]


def _are_tokens(y: Tensor, output_shape: tuple[int, ...]) -> bool:
    """Return whether the targets are one class per position (N, L), and outputs (N, L, classes)."""
    return (
        not y.is_floating_point()
        and y.ndim == 2
        and len(output_shape) == 2
        and output_shape[0] == y.shape[1]
        and int(y.min()) >= 0
        and int(y.max()) < output_shape[1]
    )


def _token_log_shares(y: Tensor, index_N: Tensor, zeros: Tensor) -> Tensor:
    """Return the log of the share of each class at each position, by group (G, L, classes)."""
    counts = torch.full_like(zeros, 1e-3 / zeros.shape[2])
    position_L = torch.arange(y.shape[1], device=y.device)
    index = (index_N[:, None].expand_as(y), position_L.expand_as(y), y.long())
    counts.index_put_(index, counts.new_ones(()), accumulate=True)
    return (counts / counts.sum(dim=2, keepdim=True)).log()


def _minimise(table: Tensor, evaluate: Callable[[Tensor], Tensor], *, step_share: float) -> None:
    """Minimise ``evaluate(table)`` in place; ``evaluate`` records the lowest value.

    Args:
        table: Constant outputs, one per group.
        evaluate: Loss of a table.
        step_share: Share of the steps to make, in (0, 1].
    """
    if not evaluate(table).requires_grad:
        return
    lbfgs = EagerLBFGS(
        [table],
        max_iter=math.ceil(step_share * _MAX_ITERATIONS),
        history_size=10,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        lbfgs.zero_grad()
        value = evaluate(table)
        value.backward()
        return value

    lbfgs.step(closure)
    if not bool(torch.isfinite(table).all()):
        return
    initial_lr = 0.1 * float(table.detach().abs().mean() + 0.1)
    adam = EagerAdam([table], lr=initial_lr)
    for index in range(math.ceil(step_share * _NUM_REFINE_STEPS)):
        adam.param_groups[0]["lr"] = initial_lr * 0.9**index
        adam.zero_grad()
        evaluate(table).backward()
        adam.step()
