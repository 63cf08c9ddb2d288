"""POC-5: does a training of a few seconds lower the loss by more than seeds explain?

Shape legend: S = seeds, E = epochs.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sluice.base.errors import TrainingFailed
from sluice.base.seeding import derive_seed, deterministic
from sluice.config.poc_settings import PocSettings
from sluice.failfast.learning.fall import (
    FallBound,
    fall_bound,
    look_confidence,
    required_fall,
    rises,
    what_matters,
)
from sluice.failfast.learning.instantiation import too_few
from sluice.failfast.learning.probe import spread
from sluice.failfast.learning.settled import settled
from sluice.findings.finding import Finding, Number
from sluice.models.scaled import Scaled
from sluice.models.settings import ModelSettings
from sluice.training.loop import mean_loss, train
from sluice.training.settings import TrainSettings
from sluice.workloads.constant_baseline import Yardstick, measure_yardstick
from sluice.workloads.prepare_model import prepare_model
from sluice.workloads.workload import Examples, Workload

_FAR_END = 10.0
"""A last loss this far above the best constant [units] is one of level. A rare class (2 %) and a
mixture density are up to 4.5 units above after a slow start, and learn from inputs."""

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

    Where the first ``mini_seeds`` show a mean fall that is enough and do not yet prove it, all
    ``mini_max_seeds`` are trained: a model that learns by a different amount from each seed is no
    defect. A fall that is too small, or a rise, is not asked again.

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
        ``mini_seeds * mini_epochs`` passes over ``mini_rows`` examples; ``mini_max_seeds`` instead
        of ``mini_seeds`` where the first ones leave it open.
    """
    slice_ = spread(examples, settings.mini_rows)
    num_steps = settings.mini_epochs * math.ceil(len(slice_) / training.batch_rows)
    real_steps = training.max_epochs * math.ceil(len(examples) / training.batch_rows)
    step_share = num_steps / real_steps if real_steps else 1.0
    yardstick = measure_yardstick(workload, slice_.y)
    brief = training.model_copy(
        update={"max_epochs": settings.mini_epochs, "patience_epochs": settings.mini_epochs}
    )
    loss_SE = np.empty((0, 1 + settings.mini_epochs))
    failed = None
    if len(examples) < settings.mini_min_rows:
        failed = too_few(len(examples), settings.mini_min_rows)
    for index in range(settings.mini_max_seeds):
        if index == settings.mini_seeds and not _is_open(loss_SE, yardstick, step_share, settings):
            break
        own = derive_seed(seed, f"poc_mini_training_{index}")
        model = prepare_model(workload, model_settings, slice_, seed=own)
        if failed is not None:
            break
        try:
            curve_E = _loss_curve(workload, model, slice_, brief, num_steps=num_steps, seed=own)
        except TrainingFailed as error:
            failed = _not_finite(error, index)
            break
        loss_SE = np.vstack([loss_SE, curve_E])
    return MiniTraining(
        loss_SE=loss_SE,
        model=model.eval(),
        examples=slice_,
        yardstick=yardstick,
        step_share=step_share,
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
      only where the last loss is still far above: then all that is seen may be the target's level.

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
    matters_S = what_matters(first_S, mini.yardstick)
    if not bool((matters_S > 0).all()):
        return Finding(
            outcome="insufficient",
            summary="The loss is exactly 0 before training, so no fall can be measured.",
            cause="The loss ignores the output or the target, or the slice is trivial.",
            fix="Check losses() and the target column.",
        )
    bound = fall_bound((first_S - last_S) / matters_S, confidence=look_confidence(settings))
    rise_SE = rises(mini.loss_SE, mini.yardstick)
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
    if not bound.lower > required_fall(mini.step_share, settings):
        return Finding(
            outcome="warn" if started_below > _GOOD_START else "fail",
            summary=seen,
            numbers=numbers,
            kind="mini training without progress",
        )
    if not below <= 0:
        return Finding(outcome="pass", summary=seen, numbers=numbers)
    if not below < -_FAR_END:
        seen = f"{seen} It is not yet below that constant."
        return Finding(outcome="pass", summary=seen, numbers=numbers)
    return Finding(
        outcome="warn",
        summary=f"{seen} It is still {-below:.4g} times what knowing the target is worth above "
        "that constant, so it shows no more than that outputs approach the level of the target.",
        numbers=numbers,
        kind="mini training without progress",
        cause="The target is not scaled, a class is very rare, or learning_rate is low: outputs "
        "begin far from the target's level, and the way there hides what is learned from inputs.",
        fix="Scale the target (scale_target), begin the last bias at the target's mean or the "
        "classes' log shares, or raise learning_rate.",
    )


def _loss_curve(
    workload: Workload,
    model: Scaled,
    slice_: Examples,
    brief: TrainSettings,
    *,
    num_steps: int,
    seed: int,
) -> list[float]:
    """Train ``model`` and return its loss on the slice before and after each epoch (1 + E)."""
    epochs = train(
        model,
        workload.loss,
        workload.losses,
        slice_,
        slice_,
        brief,
        seed=seed,
        groups=workload.parameter_groups(model.network),
    )
    # As in the real training; one thread is also the fastest for so few rows.
    with deterministic():
        start = settled(model, slice_, batch_rows=brief.batch_rows, num_passes=num_steps, seed=seed)
        first = mean_loss(start, workload.losses, slice_)
        return [first, *(result.val_loss for result in epochs)]


def _is_open(
    loss_SE: NDArray[np.float64], yardstick: Yardstick, step_share: float, settings: PocSettings
) -> bool:
    """Return whether more seeds could show a fall that the first ones leave in doubt."""
    first_S, last_S = loss_SE[:, 0], loss_SE[:, -1]
    matters_S = what_matters(first_S, yardstick)
    if not bool((matters_S > 0).all()):
        return False
    if not float(rises(loss_SE, yardstick).max()) <= settings.max_rise_ratio:
        return False
    bound = fall_bound((first_S - last_S) / matters_S, confidence=look_confidence(settings))
    required = required_fall(step_share, settings)
    return bound.mean > required and not bound.lower > required


def _not_finite(error: TrainingFailed, index: int) -> Finding:
    return Finding(
        outcome="fail",
        summary=f"Mini training {index + 1}: {error.what}",
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
        f"{first:.4g} to {last:.4g} (mean of {len(mini.loss_SE)} seeds, learning_rate "
        f"{learning_rate:g})"
    )
    needed = required_fall(mini.step_share, settings)
    required = f"a fall of more than {needed:.2%} of {share} is required."
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
        "required_relative_fall": required_fall(mini.step_share, settings),
        "num_rows": len(mini.examples),
        "num_seeds": len(mini.loss_SE),
    }
    if not mini.yardstick.problem:
        numbers["trivial_loss"] = mini.yardstick.trivial
        numbers["loss_unit_of_target"] = mini.yardstick.unit
    return numbers
