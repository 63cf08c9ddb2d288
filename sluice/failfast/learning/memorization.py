"""POC-13: can the model learn a tiny batch by heart?

Shape legend: N = examples to choose from, B = examples of the tiny batch, P = values of an input.
"""

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sluice.base.seeding import Stream, derive_seed
from sluice.config.poc_settings import PocSettings
from sluice.failfast.learning.probe import spread
from sluice.failfast.learning.settled import settled
from sluice.findings.finding import Finding, Number
from sluice.models.settings import ModelSettings
from sluice.workloads.constant_baseline import measure_yardstick, table_loss, trivial_loss
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Examples, Workload

_CHOICE_ROWS = 512
_SETTLING_PASSES = 50
_SETTLING_ROWS = 64
_FAR = 3.0
"""Multiples of what memorising is worth; an ordinary start is less than one above a constant."""

_RATES = (1e-2, 1e-3, 1e-1)
"""Of Adam, in turn. The first one is enough for most; deep networks need the second, linear ones
on inputs that are nearly alike the third."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """How well one tiny batch was learned by heart."""

    num_rows: int
    trivial: float
    required: float
    reached: float
    steps: int
    rate: float

    @property
    def succeeded(self) -> bool:
        return self.reached <= self.required


def check_memorization(
    workload: Workload,
    model_settings: ModelSettings,
    examples: Examples,
    settings: PocSettings,
    *,
    seed: int,
) -> Finding:
    """Learn a tiny batch by heart; the loss must fall far below that of a constant (POC-13).

    No output that ignores the input can be below the best constant output, so a loss far below it
    shows that inputs reach the output, the output the loss, and the loss the weights. The
    model's ability is asked, not the user's settings: dropout is off, running statistics stand
    still, Adam tries several rates.

    The batch has as many examples as a linear model of one row could fit, at most
    ``memorize_rows``, different in inputs and targets. When they are too many for the model, half
    as many are tried, down to two: that warns, because a small model may be wanted.

    Required is ``memorize_share`` of the way from the lowest loss that any output could reach up
    to the best constant; a loss without a lower end must be one less that share of the
    yardstick's unit below the best constant.

    Args:
        workload: Builds the model and has the losses.
        model_settings: Architecture and size.
        examples: Train examples of a fold.
        settings: Size of the batch, steps, required share.
        seed: Base seed of the initial weights.

    Raises:
        Exception: Whatever the model's or the loss's own code raises.

    Cost:
        At most ``3 * memorize_steps`` steps per size of the batch; a healthy model needs one
        rate and one size.
    """
    candidates = spread(examples, _CHOICE_ROWS)
    yardstick = measure_yardstick(workload, candidates.y)
    if yardstick.problem and not _can_move(workload, candidates):
        return Finding(
            outcome="fail",
            summary="No output whatsoever changes the loss of these examples: "
            f"{yardstick.problem}.",
            kind="no memorization",
        )
    if yardstick.problem:
        return _not_measured(f"There is nothing to compare the loss with: {yardstick.problem}.")
    order = _different(candidates)
    if len(order) < 2:
        return _not_measured(
            f"Two examples that differ in input and target are required, {len(candidates)} "
            "examples hold none."
        )
    own = derive_seed(seed, "poc_memorization")
    fresh = prepare_model(workload, model_settings, examples, seed=own)
    model = settled(
        fresh,
        candidates,
        batch_rows=_SETTLING_ROWS,
        num_passes=_SETTLING_PASSES,
        seed=own,
    ).eval()
    attempts: list[_Attempt] = []
    size = min(settings.memorize_rows, len(order), examples.x.shape[-1] + 1)
    while size >= 2 and not (attempts and attempts[-1].succeeded):
        batch = _take(candidates, order[:size])
        attempts.append(_memorize(workload, model, batch, yardstick.unit, settings, seed=own))
        size = size // 2 if size > 3 else size - 1
    return _judge(attempts, settings)


def _can_move(workload: Workload, examples: Examples) -> bool:
    """Tell whether the loss is a function of the output at all."""
    output = torch.zeros(workload.output_shape(examples.y), requires_grad=True)
    return bool(workload.losses(output, examples.y).requires_grad)


def _memorize(
    workload: Workload,
    model: nn.Module,
    batch: Examples,
    unit: float,
    settings: PocSettings,
    *,
    seed: int,
) -> _Attempt:
    trivial = trivial_loss(workload, batch.y)
    lowest = table_loss(workload, batch.y, np.arange(len(batch)))
    depth = trivial - lowest
    if lowest < 0:
        depth = min(depth, unit)
    required = trivial - (1 - settings.memorize_share) * depth
    best = (math.inf, 0, _RATES[0])
    for rate in _RATES:
        with Stream(seed).active():
            reached, steps = _descend(
                copy.deepcopy(model), workload, batch, rate, required, settings.memorize_steps
            )
        best = min(best, (reached, steps, rate))
        if reached <= required:
            break
    return _Attempt(
        num_rows=len(batch),
        trivial=trivial,
        required=required,
        reached=best[0],
        steps=best[1],
        rate=best[2],
    )


def _descend(
    model: nn.Module,
    workload: Workload,
    batch: Examples,
    rate: float,
    required: float,
    max_steps: int,
) -> tuple[float, int]:
    """Return the lowest loss on the way and the step it was reached at."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    lowest = (math.inf, 0)
    if not parameters:
        return float(workload.losses(model(batch.x), batch.y).detach().mean()), 0
    optimizer = torch.optim.Adam(parameters, lr=rate)
    # cudnn refuses the backward pass of a recurrent layer in eval mode.
    with torch.backends.cudnn.flags(enabled=False), torch.enable_grad():
        for step in range(max_steps + 1):
            output = model(batch.x)
            value = float(workload.losses(output.detach(), batch.y).mean())
            loss = workload.loss(output, batch.y)
            if not math.isfinite(value) or not loss.requires_grad:
                break
            lowest = min(lowest, (value, step))
            if value <= required:
                break
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1e3)
            optimizer.step()
    return lowest


def _judge(attempts: list[_Attempt], settings: PocSettings) -> Finding:
    first, last = attempts[0], attempts[-1]
    numbers: dict[str, Number] = {
        "num_rows": first.num_rows,
        "num_rows_memorized": last.num_rows if last.succeeded else 0,
        "reached_loss": last.reached,
        "required_loss": last.required,
        "trivial_loss": last.trivial,
        "steps": last.steps,
        "rate": last.rate,
    }
    seen = (
        f"A loss of {last.required:.4g} or less is required on {last.num_rows} examples (the best "
        f"constant output has {last.trivial:.4g}); the model reached {last.reached:.4g} after "
        f"{last.steps} of at most {settings.memorize_steps} steps."
    )
    if not last.succeeded and last.steps == 0:
        return Finding(
            outcome="fail",
            summary=f"{seen} Every step raised it.",
            numbers=numbers,
            kind="no memorization",
            cause="loss() and losses() disagree: what the steps minimise is not what is judged. "
            "Most often a sign is wrong.",
            fix="Check the sign of loss() against losses(); loss() should be their mean.",
        )
    if not last.succeeded and last.reached > last.trivial + _FAR * (last.trivial - last.required):
        return Finding(
            outcome="fail",
            summary=f"{seen} That is far above even the constant.",
            numbers=numbers,
            kind="no memorization",
            cause="Outputs begin so far from the targets' level that no step leads there, or "
            "loss() and losses() disagree.",
            fix="Scale the target (scale_target), or check the sign of loss() against losses().",
        )
    if not last.succeeded:
        return Finding(outcome="fail", summary=seen, numbers=numbers, kind="no memorization")
    if first.succeeded:
        return Finding(outcome="pass", summary=seen, numbers=numbers)
    return Finding(
        outcome="warn",
        summary=f"{seen} It could not memorise {first.num_rows} examples: {first.reached:.4g}, "
        f"where {first.required:.4g} is required.",
        numbers=numbers,
        kind="no memorization",
        cause="The model is very small, or its inputs are nearly alike; it does learn.",
        fix="Raise hidden or layers if the problem is not that simple.",
    )


def _not_measured(why: str) -> Finding:
    return Finding(
        outcome="insufficient",
        summary=why,
        cause="The targets do not vary, or losses() needs more than outputs and targets.",
        fix="Check the target column, and let losses() take any output of the declared shape.",
    )


def _take(examples: Examples, chosen: NDArray[np.int64]) -> Examples:
    index = torch.from_numpy(chosen)
    return Examples(x=examples.x[index], y=examples.y[index], rows=examples.rows[chosen])


def _different(examples: Examples) -> NDArray[np.int64]:
    """Return examples so that each is unlike those before it, in input and target.

    Farthest-first: the next example is the one whose nearest predecessor is farthest, by the
    product of both distances. An input that came before, or a third target where there are two
    classes, has distance 0; equal targets follow when no others are left.
    """
    x_NP, y_NP = _standardised_input(examples.x), _target(examples.y)
    gap_x_N = np.full(len(x_NP), np.inf)
    gap_y_N = np.full(len(x_NP), np.inf)
    chosen = [int(np.abs(y_NP - y_NP.mean(axis=0)).sum(axis=1).argmax())]
    while len(chosen) < min(len(x_NP), 64):
        latest = chosen[-1]
        gap_x_N = np.minimum(gap_x_N, np.linalg.norm(x_NP - x_NP[latest], axis=1))
        gap_y_N = np.minimum(gap_y_N, np.linalg.norm(y_NP - y_NP[latest], axis=1))
        score_N = gap_x_N * gap_y_N
        if not score_N.max() > 0:
            if len(chosen) < 2:
                break
            # Every target is there once. Equal ones repeat, for inputs that are new.
            gap_y_N = np.full(len(x_NP), 1.0)
            score_N = gap_x_N
            if not score_N.max() > 0:
                break
        chosen.append(int(score_N.argmax()))
    return np.array(chosen, np.int64)


def _standardised_input(x: Tensor) -> NDArray[np.float64]:
    """Return whole inputs beside their last row: a model may look at that alone."""
    whole_NP = x.detach().cpu().double().reshape(len(x), -1)
    if x.ndim == 3:
        last_NP = x[:, -1].detach().cpu().double()
        weight = math.sqrt(whole_NP.shape[1] / last_NP.shape[1])
        return np.hstack([_standardised(whole_NP), weight * _standardised(last_NP)])
    return _standardised(whole_NP)


def _target(y: Tensor) -> NDArray[np.float64]:
    if not y.is_floating_point():
        # Classes have no order: any two are equally far from each other.
        _, codes = torch.unique(y.cpu().reshape(len(y), -1), dim=0, return_inverse=True)
        return np.asarray(np.eye(int(codes.max()) + 1)[codes.numpy()])
    return _standardised(y.detach().cpu().double().reshape(len(y), -1))


def _standardised(values: Tensor) -> NDArray[np.float64]:
    deviation = values.std(dim=0, correction=0)
    deviation = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    return np.asarray(((values - values.mean(dim=0)) / deviation).nan_to_num().numpy())
