"""The learning-rate range test: finds the rate that lowers the loss fastest, before training.

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
    ROUNDING,
    RangeTestSettings,
    Slopes,
    steepest_descent,
)
from sluice.training.loop import LossFunction
from sluice.training.parameter_groups import ParameterGroups, make_optimizer
from sluice.training.row_order import shuffled_rows
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Examples

RangeTestEnd = Literal["highest rate reached", "loss diverged", "non-finite loss"]

_MEDIAN_STEPS = 5
"""The median of this many losses decides whether the loss diverged, so that one hard batch does
not."""


class RangePoint(Record):
    """One learning rate that was tried."""

    rate: float
    loss: float = Field(description="Loss of the next batch, after the step at this rate.")
    smoothed: float | None = Field(
        description="Mean of the window around the rate; None at both ends."
    )
    slope: float | None = Field(description="Change of the loss per decade in the window.")


class RangeTest(Record):
    """The curve of loss over learning rate, and the selected rate."""

    rate: float | None = Field(description="Rate of the steepest descent; None without a descent.")
    lowest_loss_rate: float | None = Field(
        description="Rate of the lowest smoothed loss; too high to train with."
    )
    ended: RangeTestEnd
    ended_at_rate: float = Field(description="Last rate tried.")
    start_loss: float = Field(description="Loss of the first batch, before the first step.")
    curve: tuple[RangePoint, ...] = Field(description="Rates after which the loss was finite.")
    window_steps: int = Field(description="Width of the windows of ``curve`` [steps].")
    summary: str
    fix: str = Field("", description="What to do; empty if a rate was found.")


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
    rate. The result is the rate at the centre of the steepest window that

    - is not to the right of the lowest smoothed loss, so that the recovery from a spike does not
      count as a descent, and
    - descends significantly: by a one-sided t test at ``confidence``, with the error probability
      divided by the number of windows and widths, and by more than rounding.

    If no window of ``window_decades`` does, windows of twice and four times the width are tried. If
    none of them does, the result is that there is no descent. The minimum is not selected: there
    the loss already stops decreasing, at the edge of stability.

    Everything runs on copies: model, optimizer, gradients and the caller's random generators are
    unchanged, bit for bit. For the same curve on every machine, run inside
    ``seeds.deterministic()``.

    Args:
        model: Maps ``train.x`` to predictions, in its state before training.
        loss_fn: Function of (output, y) to the scalar that is minimised.
        train: Train rows.
        settings: Rates, steps, and criteria for a descent.
        training: Batch size, clipping and weight decay, as in the real training.
        seed: Base seed, from which the seeds of row order and dropout are derived.
        groups: The parameters to fit, as for ``train``; one group of all if None.
        optimizer: Used instead of the optimizer of ``training``; groups keep the ratio of their
            rates.

    Raises:
        TrainingFailed: The loss is not finite before the first step.
        ContractError: There is nothing to train, the groups are invalid, or the optimizer has
            parameters of another model.

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
        own = [{"params": trainable}] if groups is None else groups
        optimizer = make_optimizer(own, training)
    _require_model_parameters(model, optimizer)
    # Copied together, so that the copied optimizer updates the copied parameters.
    model, optimizer = copy.deepcopy((model, optimizer))
    rate_N = np.geomspace(settings.lowest_rate, settings.highest_rate, settings.num_steps)
    with RandomStream(derive_seed(seed, "range_test_dropout")).active():
        losses = list(_losses(model, loss_fn, train, optimizer, rate_N, settings, training, seed))
    ended: RangeTestEnd = "highest rate reached"
    if not math.isfinite(losses[-1]):
        ended = "non-finite loss"
    elif _has_diverged(losses, settings):
        ended = "loss diverged"
    return _result(rate_N, losses, settings, ended=ended)


def _losses(
    model: nn.Module,
    loss_fn: LossFunction,
    train: Examples,
    optimizer: torch.optim.Optimizer,
    rate_N: NDArray[np.float64],
    settings: RangeTestSettings,
    training: TrainSettings,
    seed: int,
) -> Iterator[float]:
    """Yield the loss before any step and after the step at each rate, until it diverges."""
    model.train()
    shares = _shares(optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    batches = _batches(len(train), training.batch_rows, seed)
    seen: list[float] = []
    for rate in itertools.chain(rate_N, [None]):
        rows = next(batches)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(gather(train.x, rows)), gather_targets(train.y, rows))
        seen.append(float(loss.detach()))
        yield seen[-1]
        if len(seen) == 1 and not math.isfinite(seen[0]):
            raise TrainingFailed(
                f"The loss must be finite before the first step, got {seen[0]}.",
                cause="The rows or the loss function cause it: NaN or infinity in an input or "
                "target, the logarithm of zero or a division by zero.",
                fix="Check the batch's inputs and targets, then the loss function.",
            )
        if rate is None or not math.isfinite(seen[-1]) or _has_diverged(seen, settings):
            return
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, training.clip_norm)
        for group, share in zip(optimizer.param_groups, shares, strict=True):
            group["lr"] = float(rate) * share
        optimizer.step()


def _batches(num_rows: int, batch_rows: int, seed: int) -> Iterator[Tensor]:
    batch_rows = min(batch_rows, num_rows)
    for epoch in itertools.count(1):
        order = shuffled_rows(num_rows, seed=derive_seed(seed, f"range_test_order_{epoch}"))
        # Without a short last batch: it has a noisier loss, and noise hides a descent.
        for start in range(0, num_rows - batch_rows + 1, batch_rows):
            yield order.part(start, start + batch_rows)


def _shares(optimizer: torch.optim.Optimizer) -> list[float]:
    highest = max(float(group["lr"]) for group in optimizer.param_groups) or 1.0
    return [
        float(group.get("rate_share", float(group["lr"]) / highest))
        for group in optimizer.param_groups
    ]


def _require_model_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model_ids = {id(parameter) for parameter in model.parameters()}
    foreign = sum(
        id(p) not in model_ids for group in optimizer.param_groups for p in group["params"]
    )
    if foreign:
        raise ContractError(
            f"The optimizer must contain only parameters of the model, but {foreign} of its "
            f"parameters are not in {type(model).__name__}.",
            cause="The optimizer was created for another model, or the model was rebuilt after it.",
            fix="Create the optimizer from model.parameters().",
        )


def _has_diverged(losses: list[float], settings: RangeTestSettings) -> bool:
    """Compare the latest losses with the first window, whose rates are too low to matter."""
    window = settings.window_steps
    if len(losses) < window + _MEDIAN_STEPS:
        return False
    loss_N = np.array(losses)
    level, noise = loss_N[:window].mean(), loss_N[:window].std(ddof=1)
    median_N = np.median(sliding_window_view(loss_N, _MEDIAN_STEPS), axis=1)
    fall = max(level - median_N.min(), 0.0)
    rise = median_N[-1] - level
    return not rise <= settings.diverged_ratio * (fall + noise) + ROUNDING * abs(level)


def _result(
    rate_N: NDArray[np.float64],
    losses: list[float],
    settings: RangeTestSettings,
    *,
    ended: RangeTestEnd,
) -> RangeTest:
    finite_N = np.array(losses[1:] if ended != "non-finite loss" else losses[1:-1])
    fits, at = steepest_descent(finite_N, settings)
    half = fits.window // 2
    smoothed = dict(enumerate(fits.mean_C.tolist(), start=half))
    slopes = dict(enumerate(fits.slope_C.tolist(), start=half))
    ended_at = float(rate_N[len(losses) - 2])
    summary, fix = _summarize(rate_N, fits, at, settings, ended=ended, ended_at=ended_at)
    return RangeTest(
        rate=None if at is None else float(rate_N[half + at]),
        lowest_loss_rate=float(rate_N[min(smoothed, key=smoothed.__getitem__)])
        if smoothed
        else None,
        ended=ended,
        ended_at_rate=ended_at,
        start_loss=losses[0],
        curve=tuple(
            RangePoint(rate=float(rate), loss=loss, smoothed=smoothed.get(i), slope=slopes.get(i))
            for i, (rate, loss) in enumerate(zip(rate_N, finite_N.tolist(), strict=False))
        ),
        window_steps=fits.window,
        summary=summary,
        fix=fix,
    )


def _summarize(
    rate_N: NDArray[np.float64],
    fits: Slopes,
    at: int | None,
    settings: RangeTestSettings,
    *,
    ended: RangeTestEnd,
    ended_at: float,
) -> tuple[str, str]:
    """Return the observation and what to do."""
    tried = f"from {settings.lowest_rate:g} to {ended_at:.2g} ({ended})"
    if at is None:
        return f"No descent found for rates {tried}.", _no_descent_fix(ended, settings)
    seen = (
        f"Steepest descent at rate {rate_N[fits.window // 2 + at]:.2g}, by "
        f"{-fits.slope_C[at]:.3g} per decade; rates {tried}."
    )
    if ended == "highest rate reached" and at == len(fits.slope_C) - 1:
        seen = f"{seen} This is the end of the range: the loss may descend faster beyond it."
        return seen, f"Raise highest_rate above {settings.highest_rate:g}."
    return seen, ""


def _no_descent_fix(ended: RangeTestEnd, settings: RangeTestSettings) -> str:
    if ended == "highest rate reached":
        return (
            "Check that gradients reach the weights. If they do, the noise between batches hides "
            f"the descent: raise batch_rows, or num_steps above {settings.num_steps}."
        )
    return (
        f"Lower lowest_rate below {settings.lowest_rate:g} or scale inputs and target. If the "
        "curve increases from the start, the loss has the wrong sign."
    )
