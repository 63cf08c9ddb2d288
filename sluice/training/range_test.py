"""The learning-rate range test: finds the learning rate that lowers the loss fastest.

Shape legend: N = steps.
"""

import copy
import itertools
import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from sluice.base.errors import ContractError, TrainingFailed
from sluice.base.seeding import RandomStream, derive_seed
from sluice.base.settings import Record
from sluice.data.rows.protocol import gather, gather_targets
from sluice.training.descent import (
    ROUNDING_SHARE,
    RangeTestSettings,
    WindowLines,
    find_steepest_descent,
)
from sluice.training.loop import LossFunction
from sluice.training.parameter_groups import ParameterGroups, make_optimizer
from sluice.training.row_order import shuffled_rows
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples

RangeTestEnd = Literal["highest rate reached", "loss diverged", "non-finite loss"]

_MEDIAN_STEPS = 5
"""Number of losses whose median decides whether the loss diverged, so that a single hard batch does
not decide."""


class RangePoint(Record):
    """One learning rate of the test, and the loss after a step at this rate."""

    rate: float
    loss: float = Field(description="Loss of the next batch, after the step at this rate.")
    smoothed: float | None = Field(
        description="Mean loss of the window around the rate; None at both ends of the range."
    )
    slope: float | None = Field(
        description="Slope of the line fitted to the window [loss per decade]."
    )


class RangeTest(Record):
    """The curve of loss over learning rate, and the selected rate."""

    rate: float | None = Field(description="Rate of the steepest descent; None without a descent.")
    lowest_loss_rate: float | None = Field(
        description="Rate of the lowest smoothed loss; too high to train with."
    )
    ended: RangeTestEnd = Field(description="Reason why the test ended.")
    ended_at_rate: float = Field(description="Last learning rate of the test.")
    start_loss: float = Field(description="Loss of the first batch, before the first step.")
    curve: tuple[RangePoint, ...] = Field(
        description="One point for each learning rate after which the loss was finite."
    )
    window_steps: int = Field(description="Width of the windows of ``curve`` [steps].")
    summary: str
    fix: str = Field(
        "", description="What to do; empty if a rate was found before the end of the range."
    )


def range_test(
    model: nn.Module,
    loss_fn: LossFunction,
    train: Examples,
    settings: RangeTestSettings,
    *,
    training: TrainSettings,
    seed: int,
    groups: ParameterGroups | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> RangeTest:
    """Raise the learning rate step by step and select the rate of the steepest descent.

    A straight line is fitted to the losses in a window around every rate, over the logarithm of the
    rate. The result is the rate at the centre of the steepest window for which two conditions hold:

    1. The window is not to the right of the lowest smoothed loss, so that the recovery from a spike
       does not count as a descent.
    2. The descent is larger than rounding errors, and significant by a one-sided t test at
       ``confidence``. The error probability is divided by the number of windows and widths.

    If both hold for no window of width ``window_decades``, windows of twice and four times the
    width are tried. If both hold for no window at all, the curve has no descent. The rate of the
    lowest loss is not selected, because a training at this rate is close to instability.

    Everything runs on copies: model, optimizer, gradients and the caller's random generators do not
    change. For the same curve on every machine, run inside
    ``sluice.base.seeding.deterministic()``.

    Args:
        model: Maps ``train.x`` to predictions, in its state before training.
        loss_fn: Function of (output, y) to the scalar that is minimised.
        train: Train rows.
        settings: Rates, steps, and criteria for a descent.
        training: Batch size, optimizer, clipping and weight decay, as in the real training.
        seed: Base seed, from which the seeds of row order and dropout are derived.
        groups: The parameters to fit, as for ``train``; one group of all trainable parameters if
            None.
        optimizer: Optimizer to use instead of the optimizer of ``training``. The ratios between the
            learning rates of its groups are kept.

    Raises:
        TrainingFailed: The loss is not finite before the first step.
        ContractError: There is nothing to train, the groups are invalid, or the optimizer has
            parameters of another model.
        SettingsError: As for ``make_optimizer``.

    Cost:
        At most ``num_steps`` optimizer steps; the memory of one more model and optimizer.

    Assumes:
        The optimizer's ``step`` takes no closure. ``loss_fn`` does not contain parameters.

    Source:
        Smith (2017), "Cyclical Learning Rates for Training Neural Networks", WACV; the steepest
        point in place of the minimum follows Howard & Gugger (2020), "fastai", Information 11(2).
    """
    if optimizer is None:
        trainable = [p for p in model.parameters() if p.requires_grad]
        groups = [{"params": trainable}] if groups is None else groups
        optimizer = make_optimizer(groups, training)
    _require_model_parameters(model, optimizer)
    # One call copies model and optimizer, so that the copied optimizer updates the copied model.
    model, optimizer = copy.deepcopy((model, optimizer))
    rate_N = np.geomspace(settings.lowest_rate, settings.highest_rate, settings.num_steps)
    with RandomStream(derive_seed(seed, "range_test_dropout")).active():
        losses = list(
            _run_steps(model, loss_fn, train, optimizer, rate_N, settings, training, seed)
        )
    ended: RangeTestEnd = "highest rate reached"
    if not math.isfinite(losses[-1]):
        ended = "non-finite loss"
    elif _has_diverged(losses, settings):
        ended = "loss diverged"
    return _build_result(rate_N, losses, settings, ended=ended)


def _run_steps(
    model: nn.Module,
    loss_fn: LossFunction,
    train: Examples,
    optimizer: torch.optim.Optimizer,
    rate_N: NDArray[np.float64],
    settings: RangeTestSettings,
    training: TrainSettings,
    seed: int,
) -> Iterator[float]:
    """Yield the loss before the first step and after the step at each rate, until it diverges."""
    model.train()
    rate_factors = _rate_factors(optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    batches = _iter_batch_rows(len(train), training.batch_rows, seed)
    losses: list[float] = []
    for rate in itertools.chain(rate_N, [None]):
        rows = next(batches)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(gather(train.x, rows)), gather_targets(train.y, rows))
        losses.append(float(loss.detach()))
        yield losses[-1]
        if len(losses) == 1 and not math.isfinite(losses[0]):
            raise TrainingFailed(
                f"The loss must be finite before the first step, got {losses[0]}.",
                cause="The error is in the rows, the network or the loss function: NaN or infinity "
                "in an input or target, the logarithm of zero, or a division by zero.",
                fix="Check the batch's inputs and targets, then the network and the loss function.",
            )
        if rate is None or not math.isfinite(losses[-1]) or _has_diverged(losses, settings):
            return
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, training.clip_norm)
        for group, factor in zip(optimizer.param_groups, rate_factors, strict=True):
            group["lr"] = float(rate) * factor
        optimizer.step()


def _iter_batch_rows(num_rows: int, batch_rows: int, seed: int) -> Iterator[Tensor]:
    batch_rows = min(batch_rows, num_rows)
    for epoch in itertools.count(1):
        order = shuffled_rows(num_rows, seed=derive_seed(seed, f"range_test_order_{epoch}"))
        # A smaller last batch is skipped, because its loss is noisier, and noise hides a descent.
        for start in range(0, num_rows - batch_rows + 1, batch_rows):
            yield order.part(start, start + batch_rows)


def _rate_factors(optimizer: torch.optim.Optimizer) -> list[float]:
    highest_rate = max(float(group["lr"]) for group in optimizer.param_groups) or 1.0
    return [
        float(group.get("rate_share", float(group["lr"]) / highest_rate))
        for group in optimizer.param_groups
    ]


def _require_model_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model_ids = {id(parameter) for parameter in model.parameters()}
    num_foreign_parameters = sum(
        id(p) not in model_ids for group in optimizer.param_groups for p in group["params"]
    )
    if num_foreign_parameters:
        raise ContractError(
            "The optimizer must contain only parameters of the model, but "
            f"{num_foreign_parameters} of its parameters are not in {type(model).__name__}.",
            cause="The optimizer was created for another model, or before the model was rebuilt.",
            fix="Create the optimizer from model.parameters().",
        )


def _has_diverged(losses: list[float], settings: RangeTestSettings) -> bool:
    """Return whether the latest losses are far above the losses of the first window.

    The rates of the first window are too low to change the loss. So this window shows the initial
    loss and the noise between batches.
    """
    window = settings.window_steps
    if len(losses) < window + _MEDIAN_STEPS:
        return False
    loss_N = np.array(losses)
    initial_loss, noise = loss_N[:window].mean(), loss_N[:window].std(ddof=1)
    median_N = np.median(sliding_window_view(loss_N, _MEDIAN_STEPS), axis=1)
    largest_decrease = max(initial_loss - median_N.min(), 0.0)
    increase = median_N[-1] - initial_loss
    rounding_error = ROUNDING_SHARE * abs(initial_loss)
    max_increase = settings.diverged_ratio * (largest_decrease + noise) + rounding_error
    return not increase <= max_increase


def _build_result(
    rate_N: NDArray[np.float64],
    losses: list[float],
    settings: RangeTestSettings,
    *,
    ended: RangeTestEnd,
) -> RangeTest:
    finite_loss_N = np.array(losses[1:] if ended != "non-finite loss" else losses[1:-1])
    lines, steepest_index = find_steepest_descent(finite_loss_N, settings)
    half_window = lines.window_steps // 2
    smoothed = dict(enumerate(lines.mean_C.tolist(), start=half_window))
    slopes = dict(enumerate(lines.slope_C.tolist(), start=half_window))
    ended_at_rate = float(rate_N[len(losses) - 2])
    summary, fix = _describe_result(
        rate_N, lines, steepest_index, settings, ended=ended, ended_at_rate=ended_at_rate
    )
    return RangeTest(
        rate=None if steepest_index is None else float(rate_N[half_window + steepest_index]),
        lowest_loss_rate=float(rate_N[min(smoothed, key=smoothed.__getitem__)])
        if smoothed
        else None,
        ended=ended,
        ended_at_rate=ended_at_rate,
        start_loss=losses[0],
        curve=tuple(
            RangePoint(rate=float(rate), loss=loss, smoothed=smoothed.get(i), slope=slopes.get(i))
            for i, (rate, loss) in enumerate(zip(rate_N, finite_loss_N.tolist(), strict=False))
        ),
        window_steps=lines.window_steps,
        summary=summary,
        fix=fix,
    )


def _describe_result(
    rate_N: NDArray[np.float64],
    lines: WindowLines,
    steepest_index: int | None,
    settings: RangeTestSettings,
    *,
    ended: RangeTestEnd,
    ended_at_rate: float,
) -> tuple[str, str]:
    """Return the summary of a range test, and what to do; "" if nothing needs to be done."""
    tried_rates = f"from {settings.lowest_rate:g} to {ended_at_rate:.2g} ({ended})"
    if steepest_index is None:
        return f"No descent found for rates {tried_rates}.", _no_descent_fix(ended, settings)
    summary = (
        f"Steepest descent at rate {rate_N[lines.window_steps // 2 + steepest_index]:.2g}, by "
        f"{-lines.slope_C[steepest_index]:.3g} per decade; rates {tried_rates}."
    )
    if ended == "highest rate reached" and steepest_index == len(lines.slope_C) - 1:
        summary += " This is the end of the range: the loss may descend faster beyond it."
        return summary, f"Raise highest_rate above {settings.highest_rate:g}."
    return summary, ""


def _no_descent_fix(ended: RangeTestEnd, settings: RangeTestSettings) -> str:
    if ended == "highest rate reached":
        return (
            "Check that gradients reach the weights. If they do, the noise between batches hides "
            f"the descent: raise batch_rows, or num_steps above {settings.num_steps}."
        )
    return (
        f"Lower lowest_rate below {settings.lowest_rate:g} or scale inputs and target. If the "
        "curve increases from the start, check the sign of the loss."
    )
