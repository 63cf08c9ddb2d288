"""POC-5: does a training of a few seconds lower the loss by more than seeds explain?

Shape legend: S = seeds, E = epochs.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sluice.errors import TrainingFailed
from sluice.failfast.learning.instantiation import too_few
from sluice.failfast.learning.probe import spread
from sluice.failfast.learning.settled import settled
from sluice.failfast.learning.trivial_predictor import Yardstick, measure_yardstick
from sluice.failfast.result import Finding, Number
from sluice.failfast.settings import PocSettings
from sluice.models.scaled import prepare_model
from sluice.models.settings import ModelSettings
from sluice.training.loop import mean_loss, train
from sluice.training.seeds import derive_seed, deterministic
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Examples, Workload

_LONGER = 10.0
"""A real training with more than this many times the steps may fall by less at the start."""

_SMALLEST_FALL = 1e-4
"""However long the real training is. A rate of 1e-9 reached at most 3e-6 here."""

_FAR_START = 2.0
"""A first loss this far above the best constant [units] is one of level; the initial weights of
the networks here are up to 1 unit above."""

_GOOD_START = 0.5
"""A model that begins this far below the best constant [units] was trained before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniTraining:
    """Brief trainings from several seeds on one small real slice, before anybody judges them."""

    loss_SE: NDArray[np.float64]
    """Loss on the slice before training and after each epoch, (S, 1 + E), without dropout."""
    model: nn.Module
    """The last seed's, with the weights of its best epoch; untrained when there was no slice."""
    examples: Examples
    """The slice: train examples, evenly spread."""
    yardstick: Yardstick
    step_share: float
    """Optimizer steps of one brief training over those of the real one at its longest."""
    failed: Finding | None = None
    """Why there is nothing to judge: too few examples, or a loss that was not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FallBound:
    """How far the loss fell, as a share of what matters: mean over seeds and lower bound."""

    mean: float
    lower: float


def check_mini_training(
    workload: Workload,
    model_settings: ModelSettings,
    training: TrainSettings,
    examples: Examples,
    settings: PocSettings,
    *,
    seed: int,
) -> Finding:
    """Run the mini training and judge it (POC-5); see the two functions that do so."""
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
    """Train briefly from several seeds on one small real slice.

    The first loss of a seed is that before the first step, the others those after each epoch,
    all on the slice and without dropout. Losses seen while weights move would hide a rate that is
    too high: its first epoch is so bad that the last one looks like progress. Running statistics
    have seen the slice before the first loss is taken, or batch norm's would lower it at any rate.

    Args:
        workload: Builds the model and has the losses.
        model_settings: Architecture and size.
        training: The real training's settings; only ``max_epochs`` and the patience differ here.
        examples: Train examples of a fold.
        settings: Size of the slice, epochs, seeds.
        seed: Base seed; each mini training derives its own.

    Raises:
        Exception: Whatever the model's or the loss's own code raises.

    Cost:
        ``mini_seeds * mini_epochs`` passes over ``mini_rows`` examples.
    """
    slice_ = spread(examples, settings.mini_rows)
    curves: list[list[float]] = []
    failed = None
    if len(examples) < settings.mini_min_rows:
        failed = too_few(len(examples), settings.mini_min_rows)
    brief = training.model_copy(
        update={"max_epochs": settings.mini_epochs, "patience_epochs": settings.mini_epochs}
    )
    num_steps = settings.mini_epochs * math.ceil(len(slice_) / training.batch_rows)
    real_steps = training.max_epochs * math.ceil(len(examples) / training.batch_rows)
    for index in range(settings.mini_seeds):
        own = derive_seed(seed, f"poc_mini_training_{index}")
        model = prepare_model(workload, model_settings, slice_, seed=own)
        if failed is not None:
            break
        epochs = train(
            model,
            workload.loss,
            workload.losses,
            slice_,
            slice_,
            brief,
            seed=own,
            groups=workload.parameter_groups(model.network),
        )
        # As in the real training; one thread is also the fastest for so few rows.
        with deterministic():
            start = settled(
                model, slice_, batch_rows=brief.batch_rows, num_passes=num_steps, seed=own
            )
            first = mean_loss(start, workload.losses, slice_)
            try:
                curves.append([first, *(result.val_loss for result in epochs)])
            except TrainingFailed as error:
                failed = _not_finite(error, index, settings)
    return MiniTraining(
        loss_SE=np.array(curves, np.float64).reshape(len(curves), 1 + settings.mini_epochs),
        model=model.eval(),
        examples=slice_,
        yardstick=measure_yardstick(workload, slice_.y),
        step_share=num_steps / real_steps if real_steps else 1.0,
        failed=failed,
    )


def judge_mini_training(
    mini: MiniTraining, settings: PocSettings, *, learning_rate: float
) -> Finding:
    """Judge whether the loss fell, did not explode, and ended below that of a constant (POC-5).

    Everything is measured in shares of what matters: the distance from the first loss down to
    the best constant output, plus that from there to a predictor that knows the target. So it
    matters neither what is added to a loss nor what it is multiplied by, and a fall that only
    brings predictions to the level of an unscaled target does not look like more than it is.

    - Fall: the one-sided lower t bound of the seeds' mean fall is above ``min_relative_fall``,
      or it fails. A rate too low falls, but by too little. What is too little depends on how long
      the real training is: beyond ten times the steps, less is required in proportion, down to
      0.01 %. A model that begins far below the best constant was trained before; then no further
      fall only warns.
    - No explosion: after no epoch of any seed is the loss above both its first value and the
      best constant by more than ``max_rise_ratio`` yardstick units, or it fails. The cosine can
      bring even a rate of 10 back below the first value at the end, by luck; the epochs in
      between show it.
    - Inputs: outputs that do not depend on the input are never below the best constant, but a
      slow training, or one on a hard problem, is not there after so few steps either. So it warns
      only where the first loss was far above: then all that is seen may be the target's level.

    Without a yardstick (the loss takes no constant outputs) the share is that of the first loss.

    Args:
        mini: The brief trainings.
        settings: Required fall, its confidence, largest rise.
        learning_rate: Peak rate they were run with, for the message.

    Assumes:
        Falls of different seeds are independent and roughly normal.
    """
    if mini.failed is not None:
        return mini.failed
    first_S, last_S = mini.loss_SE[:, 0], mini.loss_SE[:, -1]
    matters_S = _what_matters(first_S, mini.yardstick)
    if not bool((matters_S > 0).all()):
        return Finding(
            outcome="insufficient",
            summary="The loss is exactly 0 before training, so no fall can be measured.",
            cause="The loss ignores the output or the target, or the slice is trivial.",
            fix="Check losses() and the target column.",
        )
    bound = fall_bound((first_S - last_S) / matters_S, confidence=settings.fall_confidence)
    rise_SE = _rises(mini)
    worst = float(rise_SE.max())
    seed_index, epoch = np.unravel_index(rise_SE.argmax(), rise_SE.shape)
    below = (mini.yardstick.trivial - float(last_S.mean())) / mini.yardstick.unit
    started_below = (mini.yardstick.trivial - float(first_S.max())) / mini.yardstick.unit
    seen = _seen(mini, bound, settings, learning_rate=learning_rate)
    numbers = _numbers(mini, bound, settings) | {"largest_rise_ratio": worst}
    if not worst <= settings.max_rise_ratio:
        return Finding(
            outcome="fail",
            summary=f"{seen} On the way, after epoch {epoch} of seed {seed_index + 1}, it was "
            f"{mini.loss_SE[seed_index, epoch]:.4g}: it rose by {worst:.4g} times what knowing "
            f"the target is worth; at most {settings.max_rise_ratio:g} is allowed.",
            numbers=numbers,
            kind="mini training diverged",
        )
    if not bound.lower > _required(mini, settings):
        return Finding(
            outcome="warn" if started_below > _GOOD_START else "fail",
            summary=seen,
            numbers=numbers,
            kind="mini training without progress",
        )
    if not below <= 0:
        return Finding(outcome="pass", summary=seen, numbers=numbers)
    if not started_below < -_FAR_START:
        seen = f"{seen} It is not yet below that constant."
        return Finding(outcome="pass", summary=seen, numbers=numbers)
    return Finding(
        outcome="warn",
        summary=f"{seen} It is not below that constant: so far the level of the target was "
        "learned, and nothing from inputs.",
        numbers=numbers,
        kind="mini training without progress",
        cause="The target is not scaled, classes are rare, or learning_rate is low: outputs begin "
        "far from the target's level, and the way there hides what is learned from inputs.",
        fix="Scale the target (scale_target), begin the last bias at the target's mean or the "
        "classes' log shares, or raise learning_rate.",
    )


def fall_bound(relative_fall_S: NDArray[np.float64], *, confidence: float) -> FallBound:
    """Bound the mean relative fall of the loss over seeds from below, by Student's t.

    Args:
        relative_fall_S: Fall of every seed, at least 2, as a share of what matters.
        confidence: One-sided coverage of the bound.
    """
    # scipy.special, not scipy.stats: the same quantile without a second of import.
    from scipy.special import stdtrit

    num_seeds = len(relative_fall_S)
    mean = float(relative_fall_S.mean())
    error = float(relative_fall_S.std(ddof=1)) / math.sqrt(num_seeds)
    return FallBound(mean=mean, lower=mean - float(stdtrit(num_seeds - 1, confidence)) * error)


def _required(mini: MiniTraining, settings: PocSettings) -> float:
    shorter = settings.min_relative_fall * min(1.0, _LONGER * mini.step_share)
    return max(shorter, min(settings.min_relative_fall, _SMALLEST_FALL))


def _what_matters(first_S: NDArray[np.float64], yardstick: Yardstick) -> NDArray[np.float64]:
    if yardstick.problem:
        return np.abs(first_S)
    return np.maximum(first_S - yardstick.trivial, 0.0) + yardstick.unit


def _rises(mini: MiniTraining) -> NDArray[np.float64]:
    first_S1 = mini.loss_SE[:, :1]
    if mini.yardstick.problem:
        return (mini.loss_SE - first_S1) / np.abs(first_S1)
    above = np.maximum(first_S1, mini.yardstick.trivial)
    return (mini.loss_SE - above) / mini.yardstick.unit


def _not_finite(error: TrainingFailed, index: int, settings: PocSettings) -> Finding:
    return Finding(
        outcome="fail",
        summary=f"Mini training {index + 1} of {settings.mini_seeds}: {error.what}",
        kind="mini training diverged",
        cause=error.cause,
        fix=error.fix,
    )


def _seen(
    mini: MiniTraining, bound: FallBound, settings: PocSettings, *, learning_rate: float
) -> str:
    first, last = float(mini.loss_SE[:, 0].mean()), float(mini.loss_SE[:, -1].mean())
    share = (
        f"its first value ({mini.yardstick.problem})"
        if mini.yardstick.problem
        else f"what there is to learn (the best constant output has {mini.yardstick.trivial:.4g})"
    )
    seen = (
        f"In {settings.mini_epochs} epochs on {len(mini.examples)} examples the loss went from "
        f"{first:.4g} to {last:.4g} (mean of {settings.mini_seeds} seeds, learning_rate "
        f"{learning_rate:g})"
    )
    required = f"a fall of more than {_required(mini, settings):.2%} of {share} is required."
    if not bound.mean >= 0:
        return f"{seen}, a rise; {required}"
    return (
        f"{seen}, a fall of {bound.mean:.2%}, at least {bound.lower:.2%} beyond seed noise; "
        f"{required}"
    )


def _numbers(mini: MiniTraining, bound: FallBound, settings: PocSettings) -> dict[str, Number]:
    numbers: dict[str, Number] = {
        "first_loss": float(mini.loss_SE[:, 0].mean()),
        "last_loss": float(mini.loss_SE[:, -1].mean()),
        "relative_fall": bound.mean,
        "relative_fall_lower_bound": bound.lower,
        "required_relative_fall": _required(mini, settings),
        "num_rows": len(mini.examples),
        "num_seeds": settings.mini_seeds,
    }
    if not mini.yardstick.problem:
        numbers["trivial_loss"] = mini.yardstick.trivial
        numbers["loss_unit_of_target"] = mini.yardstick.unit
    return numbers
