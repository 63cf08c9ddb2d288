"""The learning-rate range test: which rate lowers the loss fastest, before training (TRAIN-2).

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
from sluice.base.seeding import Stream, derive_seed
from sluice.base.settings import Record
from sluice.training.descent import (
    ROUNDING,
    RangeTestSettings,
    Slopes,
    steepest_descent,
)
from sluice.training.loop import LossFunction
from sluice.training.parameter_groups import ParameterGroups, make_optimizer
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Examples

Ended = Literal["highest rate reached", "loss diverged", "loss not finite"]

_LATEST = 5
"""The median of this many losses says whether it diverged: one hard batch does not."""


class RangePoint(Record):
    """One rate that was tried."""

    rate: float
    loss: float = Field(description="Of the next batch, after the step at this rate.")
    smoothed: float | None = Field(description="Mean of the window around; None at both ends.")
    slope: float | None = Field(description="Loss gained per factor of ten in the window.")


class RangeTest(Record):
    """The curve of loss over rate, and the rate picked from it."""

    rate: float | None = Field(description="Where the loss falls most steeply; None if nowhere.")
    lowest_loss_rate: float | None = Field(
        description="Where the smoothed loss is lowest; too high to train with."
    )
    ended: Ended
    ended_at_rate: float = Field(description="Last rate tried.")
    start_loss: float = Field(description="Of the first batch, before the first step.")
    curve: tuple[RangePoint, ...] = Field(description="Rates after which the loss was finite.")
    window_steps: int = Field(description="Width of the windows of ``curve`` [steps].")
    summary: str
    fix: str = Field("", description="What to do; empty when a rate was found.")


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
    """Raise the rate step by step and pick where the loss falls most steeply.

    A straight line is fitted to the losses in a window around every rate, over the logarithm of
    the rate. The pick is the rate in the middle of the steepest of the windows that

    - lie no further right than the lowest smoothed loss, so that a recovery from a spike is not
      taken for a descent, and
    - fall beyond doubt: by a one-sided t test at ``confidence``, its doubt divided by the number
      of windows and widths, and by more than rounding.

    Where no window of ``window_decades`` does, those of twice and four times the width are tried.
    If there is still none the answer is that there is no descent, not a rate. The minimum is
    not picked: there the loss already stops falling, at the edge of what is stable.

    Everything runs on copies: model, optimizer, gradients and the caller's random generators are
    afterwards what they were, bit for bit. For the same curve everywhere, run inside
    ``seeds.deterministic()``.

    Args:
        model: From ``train.x`` to predictions, as training will begin with it.
        loss_fn: (output, y) to the scalar that is minimised.
        train: Rows to fit.
        settings: Rates, steps, and what counts as a descent.
        training: Rows of a batch, clipping, weight decay, as in the real training.
        seed: Base seed; row order and dropout have their own, derived from it.
        groups: The parameters to fit, as for ``train``; one group of all when absent.
        optimizer: To be used instead of the one of ``training``; groups keep the ratio of their
            rates.

    Raises:
        TrainingFailed: The loss is not finite before the first step.
        ContractError: Nothing to train, the groups are not well-formed, or the optimizer moves
            other parameters than the model's.

    Cost:
        ``num_steps`` optimizer steps at most; the memory of one more model and optimizer.

    Assumes:
        The optimizer's ``step`` takes no closure. ``loss_fn`` does not itself hold parameters.

    Source:
        Smith (2017), "Cyclical Learning Rates for Training Neural Networks", WACV; the steepest
        point in place of the minimum follows Howard & Gugger (2020), "fastai", Information 11(2).
    """
    if optimizer is None:
        trainable = [p for p in model.parameters() if p.requires_grad]
        own = [{"params": trainable}] if groups is None else groups
        optimizer = make_optimizer(own, training)
    _require_own(model, optimizer)
    # Together, so that the copied optimizer moves the copied parameters.
    model, optimizer = copy.deepcopy((model, optimizer))
    rate_N = np.geomspace(settings.lowest_rate, settings.highest_rate, settings.num_steps)
    with Stream(derive_seed(seed, "range_test_dropout")).active():
        losses = list(_losses(model, loss_fn, train, optimizer, rate_N, settings, training, seed))
    ended: Ended = "highest rate reached"
    if not math.isfinite(losses[-1]):
        ended = "loss not finite"
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
    """Yield the loss before any step and that after the step at each rate, until it diverges."""
    model.train()
    shares = _shares(optimizer)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    batches = _batches(len(train), training.batch_rows, seed)
    seen: list[float] = []
    for rate in itertools.chain(rate_N, [None]):
        rows = next(batches)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(train.x.index_select(0, rows)), train.y.index_select(0, rows))
        seen.append(float(loss.detach()))
        yield seen[-1]
        if len(seen) == 1 and not math.isfinite(seen[0]):
            raise TrainingFailed(
                f"The loss must be finite before the first step, got {seen[0]}.",
                cause="It comes from the rows or the loss function: NaN or infinity in an input "
                "or target, a logarithm or division by zero.",
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
    for epoch in itertools.count(1):
        order = torch.Generator().manual_seed(derive_seed(seed, f"range_test_order_{epoch}"))
        parts = torch.randperm(num_rows, generator=order).split(batch_rows)
        # A short last batch has a noisier loss, and the noise is what hides a descent.
        yield from (part for part in parts if len(part) == len(parts[0]))


def _shares(optimizer: torch.optim.Optimizer) -> list[float]:
    highest = max(float(group["lr"]) for group in optimizer.param_groups) or 1.0
    return [
        float(group.get("rate_share", float(group["lr"]) / highest))
        for group in optimizer.param_groups
    ]


def _require_own(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    foreign = sum(id(p) not in own for group in optimizer.param_groups for p in group["params"])
    if foreign:
        raise ContractError(
            f"The optimizer must move parameters of the model, {foreign} of its parameters are "
            f"not in {type(model).__name__}.",
            cause="The optimizer was made for another model, or the model was rebuilt since.",
            fix="Make the optimizer from model.parameters().",
        )


def _has_diverged(losses: list[float], settings: RangeTestSettings) -> bool:
    """Compare the latest losses with the first window, where rates are too low to matter."""
    window = settings.window_steps
    if len(losses) < window + _LATEST:
        return False
    loss_N = np.array(losses)
    level, noise = loss_N[:window].mean(), loss_N[:window].std(ddof=1)
    median_N = np.median(sliding_window_view(loss_N, _LATEST), axis=1)
    fall = max(level - median_N.min(), 0.0)
    rise = median_N[-1] - level
    return not rise <= settings.diverged_ratio * (fall + noise) + ROUNDING * abs(level)


def _result(
    rate_N: NDArray[np.float64], losses: list[float], settings: RangeTestSettings, *, ended: Ended
) -> RangeTest:
    finite_N = np.array(losses[1:] if ended != "loss not finite" else losses[1:-1])
    fits, at = steepest_descent(finite_N, settings)
    half = fits.window // 2
    smoothed = dict(enumerate(fits.mean_C.tolist(), start=half))
    slopes = dict(enumerate(fits.slope_C.tolist(), start=half))
    ended_at = float(rate_N[len(losses) - 2])
    summary, fix = _words(rate_N, fits, at, settings, ended=ended, ended_at=ended_at)
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


def _words(
    rate_N: NDArray[np.float64],
    fits: Slopes,
    at: int | None,
    settings: RangeTestSettings,
    *,
    ended: Ended,
    ended_at: float,
) -> tuple[str, str]:
    """Return what was seen and what to do."""
    tried = f"from {settings.lowest_rate:g} to {ended_at:.2g} ({ended})"
    if at is None:
        return f"No descent found over rates {tried}.", _no_descent_fix(ended, settings)
    seen = (
        f"Steepest descent at rate {rate_N[fits.window // 2 + at]:.2g}, by "
        f"{-fits.slope_C[at]:.3g} per factor of ten; rates {tried}."
    )
    if ended == "highest rate reached" and at == len(fits.slope_C) - 1:
        seen = f"{seen} That is the end of the range: it may fall faster beyond."
        return seen, f"Raise highest_rate above {settings.highest_rate:g}."
    return seen, ""


def _no_descent_fix(ended: Ended, settings: RangeTestSettings) -> str:
    if ended == "highest rate reached":
        return (
            "Check that gradients reach the weights; if they do, the batches differ more than the "
            f"loss falls: raise batch_rows, or num_steps above {settings.num_steps}."
        )
    return (
        f"Lower lowest_rate below {settings.lowest_rate:g} or scale inputs and target; if the "
        "curve rises from the start, the loss has the wrong sign."
    )
