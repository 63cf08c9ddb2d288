"""What predictors that never see the input reach: the yardstick of a loss.

A loss alone says little: it may be offset, cross 0, or be huge because of the target's level. The
best constant output gives it a zero, and what knowing the target would be worth gives it a unit.

Shape legend: N = examples, G = groups of examples, P = values of one target.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice.workloads.workload import Workload

_UNIT_ROWS = 512
_MAX_ITERATIONS = 60
_POLISH_STEPS = 60

_HINT_ERROR_SHARE = 0.1
"""How often a hint is wrong. One that never is makes a Gaussian likelihood of a target that is
often exactly 0 fall without end."""

_HINTS_PER_UNIT = 3.0
"""A unit is 2.6 hints for squared error of a normal target, 6 for ten equally frequent classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """The zero and the unit of a loss on given targets, both in the loss's own unit."""

    trivial: float
    """Mean loss of the best constant output."""
    unit: float
    """How much lower it would be for a predictor that knows the target."""
    problem: str = ""
    """Why there is no yardstick; empty when there is one."""


def measure_yardstick(workload: Workload, y: Tensor) -> Yardstick:
    """Return the zero and the unit of the workload's per-example loss on the targets ``y``.

    The unit is the distance from the best constant output to a table with one free output per
    example. A loss that goes below 0, such as a Gaussian likelihood, may have no lower end; its
    unit is three times what a hint is worth: to be told, right nine times in ten, whether the
    target is above its mean. Adding a constant to a loss moves the zero and not the unit, as long
    as it stays above 0; a factor scales both.

    Args:
        workload: Has the losses and the shape of an output.
        y: Targets (N, ...).

    Raises:
        Exception: Whatever the workload's ``output_shape`` raises.
    """
    sample = _sample(y)
    if _equal(sample):
        return _none("the targets are all equal")
    try:
        trivial = trivial_loss(workload, y)
        unit = _unit(workload, sample)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return _none(
            f"losses() does not take one constant output for every example "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        )
    if not math.isfinite(trivial):
        return _none("no constant output has a finite loss")
    # Rounding of a single-precision loss must not pass for knowledge.
    if not unit > 1e-6 * abs(trivial):
        return _none("the loss is no lower for a predictor that knows the target")
    return Yardstick(trivial=trivial, unit=unit)


def trivial_loss(workload: Workload, y: Tensor) -> float:
    """Return the mean loss of the best constant output; NaN when none has a finite loss.

    Raises:
        Exception: Whatever the workload's losses raise for an output of the declared shape.
    """
    return table_loss(workload, y, np.zeros(len(y), np.int64))


def table_loss(workload: Workload, y: Tensor, group_N: NDArray[np.int64]) -> float:
    """Return the lowest mean loss that one constant output per group of examples reaches.

    One group is the trivial predictor; a group per example is a table of answers, the best that
    any model could do. Starts from means, medians and class shares of the groups and goes down
    by L-BFGS, then by shrinking steps for losses with kinks. A loss without a lower end gives a
    large negative number.

    Args:
        workload: Has the losses and the shape of an output.
        y: Targets (N, ...).
        group_N: Group of each example, counted from 0 without gaps.

    Returns:
        NaN when no output tried has a finite loss.

    Raises:
        Exception: Whatever the workload's losses raise for an output of the declared shape.

    Cost:
        Some hundred evaluations of the loss; convex losses of up to 512 examples take 0.05 s.
    """
    try:
        return _search(workload, y.double() if y.is_floating_point() else y, group_N, torch.double)
    except RuntimeError:
        # Weights of the loss in single precision do not meet a double output.
        return _search(workload, y, group_N, torch.float)


def _unit(workload: Workload, y: Tensor) -> float:
    trivial = trivial_loss(workload, y)
    lowest = table_loss(workload, y, np.arange(len(y)))
    # Rounding is not below 0.
    if lowest >= -1e-9 * abs(trivial):
        return trivial - lowest
    return _HINTS_PER_UNIT * (trivial - table_loss(workload, y, _hint(y)))


def _sample(y: Tensor) -> Tensor:
    if len(y) <= _UNIT_ROWS:
        return y
    chosen = torch.linspace(0, len(y) - 1, _UNIT_ROWS, dtype=torch.double).round().long()
    sample = y[chosen.to(y.device)]
    # A class so rare that the sample has none of it is what there is to know.
    return y if _equal(sample) else sample


def _equal(y: Tensor) -> bool:
    return bool((y == y[:1]).all())


def _none(problem: str) -> Yardstick:
    return Yardstick(trivial=math.nan, unit=math.nan, problem=problem)


def _hint(y: Tensor) -> NDArray[np.int64]:
    """Return which side of the mean each target is on, with a share of both sides exchanged."""
    told_N = _sides(y)
    positions = [np.flatnonzero(told_N == side) for side in (0, 1)]
    smaller = min(map(len, positions))
    exchanged = max(0, min(math.ceil(_HINT_ERROR_SHARE * smaller), smaller - 1))
    for side, rows in enumerate(positions):
        chosen = np.linspace(0, len(rows) - 1, exchanged).round().astype(np.int64)
        told_N[rows[chosen]] = 1 - side
    return told_N


def _sides(y: Tensor) -> NDArray[np.int64]:
    """Return 1 for targets above the mean, along the direction in which they vary most, else 0."""
    flat_NP = y.detach().cpu().double().reshape(len(y), -1)
    flat_NP = flat_NP - flat_NP.mean(dim=0)
    direction_P = flat_NP[int(flat_NP.square().sum(dim=1).argmax())]
    for _ in range(20):
        moved_P = flat_NP.T @ (flat_NP @ direction_P)
        direction_P = moved_P / moved_P.norm()
    return (flat_NP @ direction_P > 0).numpy().astype(np.int64)


def _search(workload: Workload, y: Tensor, group_N: NDArray[np.int64], dtype: torch.dtype) -> float:
    index_N = torch.from_numpy(group_N).to(y.device)
    num_groups = int(group_N.max()) + 1
    cell = workload.output_shape(y)[1:]
    lowest = math.nan

    def evaluate(table: Tensor) -> Tensor:
        nonlocal lowest
        value = workload.losses(table.index_select(0, index_N), y).mean()
        seen = float(value.detach())
        if math.isfinite(seen) and not lowest <= seen:
            lowest = seen
        return value

    starts = _starts(y, index_N, num_groups, cell, dtype)
    with torch.no_grad():
        values = [float(evaluate(start)) for start in starts]
    finite = [(value, i) for i, value in enumerate(values) if math.isfinite(value)]
    if finite:
        table = starts[min(finite)[1]].clone().requires_grad_()
        with torch.enable_grad():
            _descend(table, evaluate)
    return lowest


def _starts(
    y: Tensor, index_N: Tensor, num_groups: int, cell: tuple[int, ...], dtype: torch.dtype
) -> list[Tensor]:
    zeros = torch.zeros(num_groups, *cell, dtype=dtype, device=y.device)
    if y.is_floating_point() and tuple(y.shape[1:]) == cell:
        if num_groups == len(y):
            return [zeros, y[index_N.argsort()].to(dtype)]
        groups = [y[index_N == group] for group in range(num_groups)]
        means = torch.stack([group.mean(dim=0) for group in groups]).to(dtype)
        medians = torch.stack([group.median(dim=0).values for group in groups]).to(dtype)
        return [zeros, means, medians]
    classes = cell[0] if cell else 0
    if not y.is_floating_point() and y.ndim == 1 and int(y.min()) >= 0 and int(y.max()) < classes:
        counts = torch.zeros(num_groups, classes, dtype=dtype, device=y.device)
        counts.index_put_((index_N, y.long()), counts.new_ones(()), accumulate=True)
        shares = (counts + 1e-3) / (counts + 1e-3).sum(dim=1, keepdim=True)
        if len(cell) == 1:
            return [zeros, shares.log(), shares]
    return [zeros]


def _descend(table: Tensor, evaluate: Callable[[Tensor], Tensor]) -> None:
    """Lower ``evaluate(table)`` in place; ``evaluate`` remembers the lowest value."""
    if not evaluate(table).requires_grad:
        return
    optimizer = torch.optim.LBFGS(
        [table],
        max_iter=_MAX_ITERATIONS,
        history_size=10,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = evaluate(table)
        value.backward()
        return value

    optimizer.step(closure)
    if not bool(torch.isfinite(table).all()):
        return
    step = 0.1 * float(table.detach().abs().mean() + 0.1)
    polish = torch.optim.Adam([table], lr=step)
    for index in range(_POLISH_STEPS):
        polish.param_groups[0]["lr"] = step * 0.9**index
        polish.zero_grad()
        evaluate(table).backward()
        polish.step()
