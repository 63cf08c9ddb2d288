"""Check that the model can overfit one tiny batch.

Shape legend: N = candidate examples, B = examples of the tiny batch, P = values of an input.
"""

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sluice.base.eager_optimizers import EagerAdam
from sluice.base.pluralize import pluralize
from sluice.base.seeding import RandomStream, derive_seed
from sluice.config.poc_settings import PocSettings
from sluice.data.rows.protocol import ModelInput, flat_input
from sluice.failfast.learning.buffer_calibration import calibrate_buffers
from sluice.failfast.learning.example_sampling import sample_evenly
from sluice.findings.check_outcome import CheckOutcome
from sluice.findings.finding import EvidenceValue
from sluice.models.settings import ModelSettings
from sluice.workloads.constant_baseline import (
    constant_baseline_loss,
    grouped_constant_loss,
    measure_constant_baseline,
)
from sluice.workloads.examples import Examples
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Workload

_CANDIDATE_ROWS = 512
"""Maximum number of evenly spaced train examples from which the tiny batch is selected."""

_CALIBRATION_PASSES = 50
"""Number of batches on which running statistics are calibrated before the overfitting."""

_CALIBRATION_ROWS = 64
"""Number of examples in each of these batches."""

_MAX_EXCESS_RATIO = 3.0
"""Maximum excess of the lowest loss over the constant baseline, relative to the distance of the
required loss below the baseline. A larger excess means that the outputs are far from the target's
level. Ordinary initialisations have a ratio below 1."""

_LEARNING_RATES = (1e-2, 1e-3, 1e-1)
"""Learning rates of Adam, tried in turn until the batch is overfitted. The first rate is sufficient
for most networks. Deep networks need the second rate, and linear networks on nearly equal inputs
the third."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """Result of overfitting one tiny batch."""

    num_rows: int
    baseline_loss: float
    """Loss of the best constant output."""
    required_loss: float
    """Maximum loss that counts as success."""
    lowest_loss: float
    """Lowest loss of the model over all learning rates."""
    num_steps: int
    """Number of steps after which the lowest loss was reached."""
    learning_rate: float
    """Learning rate with which the lowest loss was reached."""

    @property
    def has_succeeded(self) -> bool:
        return self.lowest_loss <= self.required_loss


def check_overfit_one_batch(
    workload: Workload,
    model_settings: ModelSettings,
    examples: Examples,
    settings: PocSettings,
    *,
    seed: int,
) -> CheckOutcome:
    """Overfit a tiny batch; the loss must fall far below that of the best constant output.

    Outputs that ignore the input cannot have a lower loss than the best constant output. A much
    lower loss shows that the inputs affect the output, that the output affects the loss, and that
    gradients of the loss change the weights. The check tests the model and not the user's training
    settings: dropout is off, running statistics are fixed, and several learning rates are tried.

    The batch has as many examples as a linear model of one row could fit, but at most
    ``overfit_rows``. The examples differ in inputs and targets. If the model cannot fit the batch,
    smaller batches are tried, down to two examples. A success with a smaller batch only warns,
    because a small model may be intended.

    The distance of the constant baseline to the lowest possible loss must be reduced to the share
    ``overfit_loss_share``. If the lowest possible loss is negative, as for densities, this distance
    is limited to one unit of the baseline (``ConstantBaseline.unit``).

    Args:
        workload: Builds the model and defines the losses.
        model_settings: Architecture and size.
        examples: Train examples of a fold.
        settings: Size of the batch, number of steps, required share.
        seed: Base seed of the initial weights.

    Raises:
        Exception: Any exception of the model's or the loss's own code.

    Cost:
        At most ``3 * overfit_steps`` steps for each size of the batch. A healthy model needs one
        learning rate and one size.
    """
    candidates = sample_evenly(examples, _CANDIDATE_ROWS)
    baseline = measure_constant_baseline(workload, candidates.targets)
    if baseline.problem and not _depends_on_output(workload, candidates):
        return CheckOutcome(
            outcome="fail",
            summary="The loss of these examples does not depend on the output: "
            f"{baseline.problem}.",
            fault="cannot overfit one batch",
        )
    if baseline.problem:
        return _not_measured_outcome(
            f"The loss cannot be compared with a constant output: {baseline.problem}."
        )
    positions = _select_distinct(candidates, settings.overfit_rows)
    if len(positions) < 2:
        return _not_measured_outcome(
            "Two examples that differ in input and target are required, but no two of "
            f"{pluralize(len(candidates), 'example')} differ in both."
        )
    model_seed = derive_seed(seed, "poc_memorization")
    untrained_model = prepare_model(workload, model_settings, examples, seed=model_seed)
    model = calibrate_buffers(
        untrained_model,
        candidates,
        batch_rows=_CALIBRATION_ROWS,
        num_passes=_CALIBRATION_PASSES,
        seed=model_seed,
    ).eval()
    attempts: list[_Attempt] = []
    num_rows = min(settings.overfit_rows, len(positions), _linear_capacity(candidates))
    while num_rows >= 2 and not (attempts and attempts[-1].has_succeeded):
        batch = candidates.take(positions[:num_rows])
        attempts.append(_overfit(workload, model, batch, baseline.unit, settings, seed=model_seed))
        num_rows = num_rows // 2 if num_rows > 3 else num_rows - 1
    return _judge_attempts(attempts, settings)


def _depends_on_output(workload: Workload, examples: Examples) -> bool:
    """Return whether the loss is a differentiable function of the output."""
    output = torch.zeros(workload.output_shape(examples.targets), requires_grad=True)
    return bool(workload.losses(output, examples.targets).requires_grad)


def _overfit(
    workload: Workload,
    model: nn.Module,
    batch: Examples,
    baseline_unit: float,
    settings: PocSettings,
    *,
    seed: int,
) -> _Attempt:
    baseline_loss = constant_baseline_loss(workload, batch.targets)
    lowest_possible_loss = grouped_constant_loss(workload, batch.targets, np.arange(len(batch)))
    max_decrease = baseline_loss - lowest_possible_loss
    if lowest_possible_loss < 0:
        max_decrease = min(max_decrease, baseline_unit)
    required_loss = baseline_loss - (1 - settings.overfit_loss_share) * max_decrease
    best = (math.inf, 0, _LEARNING_RATES[0])
    for learning_rate in _LEARNING_RATES:
        with RandomStream(seed).active():
            lowest_loss, num_steps = _minimise(
                copy.deepcopy(model),
                workload,
                batch,
                learning_rate,
                required_loss,
                settings.overfit_steps,
            )
        best = min(best, (lowest_loss, num_steps, learning_rate))
        if lowest_loss <= required_loss:
            break
    return _Attempt(
        num_rows=len(batch),
        baseline_loss=baseline_loss,
        required_loss=required_loss,
        lowest_loss=best[0],
        num_steps=best[1],
        learning_rate=best[2],
    )


def _minimise(
    model: nn.Module,
    workload: Workload,
    batch: Examples,
    learning_rate: float,
    required_loss: float,
    max_steps: int,
) -> tuple[float, int]:
    """Return the lowest loss during the minimisation and the number of steps that reached it.

    Args:
        model: Model in eval mode, which is changed.
        workload: Defines the losses.
        batch: The tiny batch.
        learning_rate: Learning rate of Adam.
        required_loss: Loss at or below which the minimisation ends.
        max_steps: Maximum number of steps.
    """
    x, y = batch.inputs, batch.targets
    parameters = [p for p in model.parameters() if p.requires_grad]
    lowest = (math.inf, 0)
    if not parameters:
        return float(workload.losses(model(x), y).detach().mean()), 0
    optimizer = EagerAdam(parameters, lr=learning_rate)
    # Disable cudnn, which does not support the backward pass of a recurrent layer in eval mode.
    with torch.backends.cudnn.flags(enabled=False), torch.enable_grad():
        for step in range(max_steps + 1):
            output = model(x)
            value = float(workload.losses(output.detach(), y).mean())
            loss = workload.loss(output, y)
            if not math.isfinite(value):
                break
            lowest = min(lowest, (value, step))
            if value <= required_loss or not loss.requires_grad:
                break
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1e3)
            optimizer.step()
    return lowest


def _judge_attempts(attempts: list[_Attempt], settings: PocSettings) -> CheckOutcome:
    first, last = attempts[0], attempts[-1]
    numbers: dict[str, EvidenceValue] = {
        "num_rows": first.num_rows,
        "num_rows_overfitted": last.num_rows if last.has_succeeded else 0,
        "reached_loss": last.lowest_loss,
        "required_loss": last.required_loss,
        "constant_baseline_loss": last.baseline_loss,
        "steps": last.num_steps,
        "rate": last.learning_rate,
    }
    if not math.isfinite(last.lowest_loss):
        return CheckOutcome(
            outcome="fail",
            summary=f"The loss of {pluralize(last.num_rows, 'example')} is not finite before the "
            "first step.",
            numbers=numbers,
            fault="non-finite loss",
        )
    observation = (
        f"A loss of {last.required_loss:.4g} or less is required on "
        f"{pluralize(last.num_rows, 'example')} (the best constant output has a loss of "
        f"{last.baseline_loss:.4g}); the model reached {last.lowest_loss:.4g} after "
        f"{last.num_steps} of at most {settings.overfit_steps} steps."
    )
    if not last.has_succeeded and last.num_steps == 0:
        return CheckOutcome(
            outcome="fail",
            summary=f"{observation} No step decreased the loss.",
            numbers=numbers,
            fault="cannot overfit one batch",
            cause="loss() and losses() disagree: the steps minimise loss(), and the check measures "
            "losses(). Most often a sign is wrong.",
            fix="Check the sign of loss() against losses(); loss() should be their mean.",
        )
    if not last.has_succeeded and last.lowest_loss > last.baseline_loss + _MAX_EXCESS_RATIO * (
        last.baseline_loss - last.required_loss
    ):
        return CheckOutcome(
            outcome="fail",
            summary=f"{observation} This loss is far above the loss of the best constant output.",
            numbers=numbers,
            fault="cannot overfit one batch",
            cause="The initial outputs are too far from the level of the targets, or loss() and "
            "losses() disagree.",
            fix="Scale the target (scale_target), or check the sign of loss() against losses().",
        )
    if not last.has_succeeded:
        return CheckOutcome(
            outcome="fail", summary=observation, numbers=numbers, fault="cannot overfit one batch"
        )
    if first.has_succeeded:
        return CheckOutcome(outcome="pass", summary=observation, numbers=numbers)
    return CheckOutcome(
        outcome="warn",
        summary=f"{observation} On {pluralize(first.num_rows, 'example')}, the model reached only "
        f"{first.lowest_loss:.4g}, but {first.required_loss:.4g} is required.",
        numbers=numbers,
        fault="cannot overfit one batch",
        cause="The model learns, but is very small, or its inputs are nearly equal.",
        fix="Increase hidden or layers if the problem needs a larger model.",
    )


def _not_measured_outcome(summary: str) -> CheckOutcome:
    return CheckOutcome(
        outcome="insufficient",
        summary=summary,
        cause="The targets do not vary, or losses() needs more than outputs and targets.",
        fix="Check the target column, and let losses() accept any output of the declared shape.",
    )


def _linear_capacity(examples: Examples) -> int:
    """Return the number of examples that a linear model of one row of the input can fit.

    This is the length of the input's last axis plus one for the bias. For a dict of tensors, the
    number of values replaces this length.
    """
    x = examples.inputs
    return (x.shape[-1] if isinstance(x, Tensor) else flat_input(x).shape[1]) + 1


def _select_distinct(examples: Examples, max_rows: int) -> NDArray[np.int64]:
    """Return positions of examples, each of which differs from the previous in input and target.

    Farthest-first selection: the next example has the largest product of two distances, from its
    input to the nearest selected input and from its target to the nearest selected target. A
    repeated input or target has distance 0. Examples with repeated targets are selected only after
    all distinct targets.

    Args:
        examples: Candidates.
        max_rows: Maximum number of selected examples.
    """
    x_NP, y_NP = _standardised_input(examples.inputs), _standardised_target(examples.targets)
    distance_x_N = np.full(len(x_NP), np.inf)
    distance_y_N = np.full(len(x_NP), np.inf)
    positions = [int(np.abs(y_NP - y_NP.mean(axis=0)).sum(axis=1).argmax())]
    while len(positions) < min(len(x_NP), max_rows):
        last = positions[-1]
        distance_x_N = np.minimum(distance_x_N, np.linalg.norm(x_NP - x_NP[last], axis=1))
        distance_y_N = np.minimum(distance_y_N, np.linalg.norm(y_NP - y_NP[last], axis=1))
        score_N = distance_x_N * distance_y_N
        if not score_N.max() > 0:
            if len(positions) < 2:
                break
            # Every distinct target was selected once. Continue with repeated targets.
            distance_y_N = np.full(len(x_NP), 1.0)
            score_N = distance_x_N
            if not score_N.max() > 0:
                break
        positions.append(int(score_N.argmax()))
    return np.array(positions, np.int64)


def _standardised_input(x: ModelInput) -> NDArray[np.float64]:
    """Return whole inputs concatenated with their last rows, because a model may use only these."""
    whole_NP = flat_input(x).detach().cpu().double()
    if isinstance(x, Tensor) and x.ndim == 3:
        last_NP = x[:, -1].detach().cpu().double()
        weight = math.sqrt(whole_NP.shape[1] / last_NP.shape[1])
        return np.hstack([_standardised(whole_NP), weight * _standardised(last_NP)])
    return _standardised(whole_NP)


def _standardised_target(y: Tensor) -> NDArray[np.float64]:
    if not y.is_floating_point():
        # Classes have no order: all pairs have the same distance.
        _, codes = torch.unique(y.cpu().reshape(len(y), -1), dim=0, return_inverse=True)
        return np.asarray(np.eye(int(codes.max()) + 1)[codes.numpy()])
    return _standardised(y.detach().cpu().double().reshape(len(y), -1))


def _standardised(values: Tensor) -> NDArray[np.float64]:
    deviation = values.std(dim=0, correction=0)
    deviation = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    return np.asarray(((values - values.mean(dim=0)) / deviation).nan_to_num().numpy())
