"""Check that a training of a few seconds lowers the loss by more than the seed variation.

The constant baseline is the loss of the best constant output. A baseline unit is the constant
baseline minus the loss of a predictor that knows the target (``ConstantBaseline.unit``).

Shape legend: S = seeds, E = epochs.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sluice.base.errors import TrainingFailed
from sluice.base.pluralize import pluralize
from sluice.base.seeding import derive_seed, deterministic
from sluice.config.poc_settings import PocSettings
from sluice.failfast.learning.buffer_calibration import calibrate_buffers
from sluice.failfast.learning.example_sampling import sample_evenly
from sluice.failfast.learning.instantiation import too_few_examples
from sluice.failfast.learning.loss_decrease import (
    LossDecreaseBound,
    bound_loss_decrease,
    interim_confidence,
    learnable_loss,
    loss_increases,
    required_loss_decrease,
)
from sluice.findings.check_outcome import CheckOutcome
from sluice.findings.finding import EvidenceValue
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.loop import mean_loss, train
from sluice.training.settings import TrainSettings
from sluice.workloads.constant_baseline import ConstantBaseline, measure_constant_baseline
from sluice.workloads.examples import Examples
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Workload

_BASELINE_UNIT_TEXT = (
    "the difference between the losses of the best constant output and of perfect predictions"
)

_MAX_UNITS_ABOVE = 10.0
"""Maximum excess of the last loss over the constant baseline for a pass [baseline units]. A larger
excess causes a warning, because the decrease may only show that outputs approach the target's
level. Models of a rare class (2 %) and of a mixture density learned slowly, but without a fault;
their losses were up to 4.5 units above the baseline."""

_MIN_UNITS_BELOW = 0.05
"""Minimum distance of the last loss below the constant baseline [baseline units]. With a smaller
distance, the summary says that the loss does not show whether the model uses its inputs."""

_PRETRAINED_UNITS_BELOW = 0.5
"""A model counts as pretrained if its first loss is more than this distance below the constant
baseline [baseline units]. If the loss of such a model does not decrease, the check only warns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniTraining:
    """Results of short trainings from several seeds on one subset of the real data."""

    loss_SE: NDArray[np.float64]
    """Loss on the subset before training and after each epoch, (S, 1 + E), without dropout."""
    model: nn.Module
    """Model of the last seed with the weights of its best epoch. If ``failure`` is not None, this
    model is not fully trained."""
    examples: Examples
    """The subset: evenly spaced train examples."""
    baseline: ConstantBaseline
    step_share: float
    """Optimizer steps of one mini training divided by the maximum number of steps of the real
    training."""
    failure: CheckOutcome | None = None
    """Finding that explains why a training is missing: too few examples, or a non-finite loss."""


def check_mini_training(
    workload: Workload,
    model_settings: ModelSettings,
    training: TrainSettings,
    examples: Examples,
    settings: PocSettings,
    *,
    seed: int,
) -> CheckOutcome:
    """Run the mini training and check its losses.

    ``run_mini_training`` explains the arguments, errors and cost, ``judge_mini_training`` the
    outcomes.
    """
    mini = run_mini_training(workload, model_settings, training, examples, settings, seed=seed)
    return judge_mini_training(mini, settings, learning_rate=training.learning_rate)


def run_mini_training(
    workload: Workload,
    model_settings: ModelSettings,
    training: TrainSettings,
    examples: Examples,
    settings: PocSettings,
    *,
    seed: int,
) -> MiniTraining:
    """Train from several seeds for a few epochs on one subset of the real data.

    The losses of a seed are measured before the first step and after each epoch, on the subset
    and without dropout. Mean losses of whole epochs would hide a learning rate that is too high:
    the first epoch would have such a high loss that the last epoch would look like progress.

    Running statistics are calibrated on the subset before the first loss is measured. Without the
    calibration, the updates of batch norm would lower the loss at any learning rate.

    If the mean decrease of the first ``mini_seeds`` is sufficient but not yet significant, all
    ``mini_max_seeds`` are trained, because different decreases of different seeds are not a fault.
    If the mean decrease is too small or negative, no more seeds are trained.

    Args:
        workload: Builds the model and defines the losses.
        model_settings: Architecture and size.
        training: Settings of the real training; only ``max_epochs`` and the patience are changed.
        examples: Train examples of a fold.
        settings: Size of the subset, number of epochs and seeds.
        seed: Base seed, from which the seed of each mini training is derived.

    Raises:
        Exception: Any exception of the model's or the loss's own code.

    Cost:
        ``mini_seeds * mini_epochs`` passes over ``mini_rows`` examples. If the first seeds are
        inconclusive, ``mini_max_seeds * mini_epochs`` passes.
    """
    subset = sample_evenly(examples, settings.mini_rows)
    num_steps = settings.mini_epochs * math.ceil(len(subset) / training.batch_rows)
    num_real_steps = training.max_epochs * math.ceil(len(examples) / training.batch_rows)
    step_share = num_steps / num_real_steps if num_real_steps else 1.0
    baseline = measure_constant_baseline(workload, subset.targets)
    short_training = training.model_copy(
        update={"max_epochs": settings.mini_epochs, "patience_epochs": settings.mini_epochs}
    )
    loss_SE = np.empty((0, 1 + settings.mini_epochs))
    failure = None
    if len(examples) < settings.mini_min_rows:
        failure = too_few_examples(len(examples), settings.mini_min_rows)
    for index in range(settings.mini_max_seeds):
        if index == settings.mini_seeds and not _needs_more_seeds(
            loss_SE, baseline, step_share, settings
        ):
            break
        model_seed = derive_seed(seed, f"poc_mini_training_{index}")
        model = prepare_model(workload, model_settings, subset, seed=model_seed)
        if failure is not None:
            break
        try:
            curve_E = _loss_curve(
                workload, model, subset, short_training, num_steps=num_steps, seed=model_seed
            )
        except TrainingFailed as error:
            failure = _divergence_outcome(error, index)
            break
        loss_SE = np.vstack([loss_SE, curve_E])
    return MiniTraining(
        loss_SE=loss_SE,
        model=model.eval(),
        examples=subset,
        baseline=baseline,
        step_share=step_share,
        failure=failure,
    )


def judge_mini_training(
    mini: MiniTraining, settings: PocSettings, *, learning_rate: float
) -> CheckOutcome:
    """Check that the loss decreased, did not explode, and is not far above the constant baseline.

    The decrease is relative to the learnable loss: the first loss (or the constant baseline if it
    is higher) minus the loss of a predictor that knows the target. So the result does not depend on
    the offset and scale of the loss, and a decrease that only moves predictions to the level of an
    unscaled target is not overrated.

    - Decrease: the one-sided lower t bound of the mean decrease over seeds must be above
      ``min_loss_decrease``. Otherwise the check fails; the usual cause is a learning rate that is
      too low. If the real training has more than ten times the steps of the mini training, the
      required decrease is reduced in proportion, down to 0.01 %. For a model whose first loss is
      far below the baseline (pretrained), a missing decrease only warns.
    - No explosion: the check fails if the loss after any epoch of any seed exceeds both its first
      value and the baseline by more than ``max_loss_increase_ratio`` baseline units. All epochs are
      checked, because with cosine decay the last loss can be low even for a learning rate of 10.
    - Use of inputs: outputs that do not depend on the input never have a loss below the baseline.
      After so few steps, the loss of a slow training or a hard problem is not below the baseline
      either. So the check warns only if the last loss is still far above the baseline: then the
      model may have learned only the target's level.

    Without a baseline (the loss does not accept constant outputs), changes are relative to the
    first loss.

    Args:
        mini: Results of the mini training.
        settings: ``min_loss_decrease``, ``loss_decrease_confidence`` and
            ``max_loss_increase_ratio``.
        learning_rate: Peak learning rate of the mini training, for the message.

    Assumes:
        Decreases of different seeds are independent and approximately normal.
    """
    if mini.failure is not None:
        return mini.failure
    first_S, last_S = mini.loss_SE[:, 0], mini.loss_SE[:, -1]
    learnable_S = learnable_loss(first_S, mini.baseline)
    if not bool((learnable_S > 0).all()):
        return CheckOutcome(
            outcome="insufficient",
            summary="The loss is exactly 0 before training, so no decrease can be measured.",
            cause="The loss ignores the output or the target, or the data subset is trivial.",
            fix="Check losses() and the target column.",
        )
    bound = bound_loss_decrease(
        (first_S - last_S) / learnable_S, confidence=interim_confidence(settings)
    )
    increase_SE = loss_increases(mini.loss_SE, mini.baseline)
    largest_increase = float(increase_SE.max())
    seed_index, epoch = np.unravel_index(increase_SE.argmax(), increase_SE.shape)
    last_units_below = (mini.baseline.loss - float(last_S.mean())) / mini.baseline.unit
    first_units_below = (mini.baseline.loss - float(first_S.max())) / mini.baseline.unit
    summary = _describe_losses(mini, bound, settings, learning_rate=learning_rate)
    numbers = _loss_numbers(mini, bound, settings) | {"largest_rise_ratio": largest_increase}
    if not largest_increase <= settings.max_loss_increase_ratio:
        unit_text = "the first loss" if mini.baseline.problem else _BASELINE_UNIT_TEXT
        return CheckOutcome(
            outcome="fail",
            summary=f"{summary} After epoch {epoch} of seed {seed_index + 1} the loss was "
            f"{mini.loss_SE[seed_index, epoch]:.4g}: an increase of {largest_increase:.4g} times "
            f"{unit_text}; at most {settings.max_loss_increase_ratio:g} is allowed.",
            numbers=numbers,
            fault="learning rate too high",
        )
    if not bound.lower > required_loss_decrease(mini.step_share, settings):
        return CheckOutcome(
            outcome="warn" if first_units_below > _PRETRAINED_UNITS_BELOW else "fail",
            summary=summary,
            numbers=numbers,
            fault="loss not decreasing",
        )
    if 0 < last_units_below < _MIN_UNITS_BELOW:
        summary = (
            f"{summary} The last loss is hardly below the loss of the best constant output, so the "
            "decrease does not show that the inputs are used."
        )
    # Without a baseline, last_units_below is NaN, and the check passes.
    if not last_units_below <= 0:
        return CheckOutcome(outcome="pass", summary=summary, numbers=numbers)
    if not last_units_below < -_MAX_UNITS_ABOVE:
        summary = f"{summary} The last loss is not yet below the loss of the best constant output."
        return CheckOutcome(outcome="pass", summary=summary, numbers=numbers)
    return CheckOutcome(
        outcome="warn",
        summary=f"{summary} The last loss exceeds the loss of the best constant output by "
        f"{-last_units_below:.4g} times {_BASELINE_UNIT_TEXT}. The decrease only shows that the "
        "outputs approach the target's level.",
        numbers=numbers,
        fault="loss not decreasing",
        cause="The target is not scaled, a class is very rare, or learning_rate is low: the "
        "initial outputs are far from the target's level, and the decrease of this distance hides "
        "what is learned from the inputs.",
        fix="Scale the target (scale_target), initialise the last bias with the target's mean or "
        "the log class shares, or raise learning_rate.",
    )


def _loss_curve(
    workload: Workload,
    model: Scaled,
    subset: Examples,
    short_training: TrainSettings,
    *,
    num_steps: int,
    seed: int,
) -> list[float]:
    """Train ``model`` and return its loss on the subset before and after each epoch (1 + E)."""
    epochs = train(
        model,
        workload.loss,
        workload.losses,
        subset,
        subset,
        short_training,
        seed=seed,
        groups=workload.parameter_groups(model.network),
        augment=workload.augmentation,
    )
    # deterministic() is used as in the real training. Its single thread is fastest for few rows.
    with deterministic():
        calibrated_model = calibrate_buffers(
            model, subset, batch_rows=short_training.batch_rows, num_passes=num_steps, seed=seed
        )
        initial_loss = mean_loss(calibrated_model, workload.losses, subset)
        return [initial_loss, *(result.val_loss for result in epochs)]


def _needs_more_seeds(
    loss_SE: NDArray[np.float64],
    baseline: ConstantBaseline,
    step_share: float,
    settings: PocSettings,
) -> bool:
    """Return whether more seeds could show that the mean decrease is large enough.

    True if the mean decrease is large enough, its lower bound is not, and no loss exploded.
    """
    first_S, last_S = loss_SE[:, 0], loss_SE[:, -1]
    learnable_S = learnable_loss(first_S, baseline)
    if not bool((learnable_S > 0).all()):
        return False
    if not float(loss_increases(loss_SE, baseline).max()) <= settings.max_loss_increase_ratio:
        return False
    bound = bound_loss_decrease(
        (first_S - last_S) / learnable_S, confidence=interim_confidence(settings)
    )
    required_decrease = required_loss_decrease(step_share, settings)
    return bound.mean > required_decrease and not bound.lower > required_decrease


def _divergence_outcome(error: TrainingFailed, seed_index: int) -> CheckOutcome:
    return CheckOutcome(
        outcome="fail",
        summary=f"Mini training {seed_index + 1}: {error.what}",
        fault="learning rate too high",
        cause=error.cause,
        fix=error.fix,
    )


def _describe_losses(
    mini: MiniTraining, bound: LossDecreaseBound, settings: PocSettings, *, learning_rate: float
) -> str:
    first, last = float(mini.loss_SE[:, 0].mean()), float(mini.loss_SE[:, -1].mean())
    reference_loss = (
        f"the first loss ({mini.baseline.problem})"
        if mini.baseline.problem
        else f"the learnable loss (the best constant output has a loss of {mini.baseline.loss:.4g})"
    )
    summary = (
        f"In {settings.mini_epochs} epochs on {len(mini.examples):,} examples the loss went from "
        f"{first:.4g} to {last:.4g} (mean of {pluralize(len(mini.loss_SE), 'seed')}, learning_rate "
        f"{learning_rate:g})"
    )
    required_decrease = required_loss_decrease(mini.step_share, settings)
    requirement = (
        f"a decrease of more than {required_decrease:.2%} of {reference_loss} is required."
    )
    if not bound.mean >= 0:
        return f"{summary}, an increase; {requirement}"
    return (
        f"{summary}, a decrease of {bound.mean:.2%} with a lower confidence bound of "
        f"{bound.lower:.2%}; {requirement}"
    )


def _loss_numbers(
    mini: MiniTraining, bound: LossDecreaseBound, settings: PocSettings
) -> dict[str, EvidenceValue]:
    numbers: dict[str, EvidenceValue] = {
        "first_loss": float(mini.loss_SE[:, 0].mean()),
        "last_loss": float(mini.loss_SE[:, -1].mean()),
        "relative_fall": bound.mean,
        "relative_fall_lower_bound": bound.lower,
        "required_relative_fall": required_loss_decrease(mini.step_share, settings),
        "num_rows": len(mini.examples),
        "num_seeds": len(mini.loss_SE),
    }
    if not mini.baseline.problem:
        numbers["constant_baseline_loss"] = mini.baseline.loss
        numbers["loss_unit_of_target"] = mini.baseline.unit
    return numbers
