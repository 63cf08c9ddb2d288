"""POC-5: does a training of a few seconds lower the loss by more than seeds explain?"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.errors import TrainingFailed
from sluice.failfast.instantiation import too_few
from sluice.failfast.probe import spread
from sluice.failfast.result import Finding
from sluice.failfast.settings import PocSettings
from sluice.models.scaled import prepare_model
from sluice.models.settings import ModelSettings
from sluice.training.loop import mean_loss, train
from sluice.training.seeds import derive_seed, deterministic
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Examples, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class FallBound:
    """How far the loss fell, as a share of its first value: mean over seeds and lower bound."""

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
    """Train briefly from several seeds on one small real slice; the loss must fall (POC-5).

    The first value is the loss on the slice before the first step, the last one that after the
    last epoch, both without dropout. Losses seen while weights move would hide a rate that is too
    high: its first epoch is so bad that the last one looks like progress. Two things must hold:

    - Fall: each seed gives one fall, as a share of its own first value. The one-sided lower t
      bound of their mean is above ``min_relative_fall``. A rate too low falls, but by too little.
    - No explosion: after no epoch of any seed is the loss more than ``max_rise_ratio`` times its
      first value. The cosine can bring even a rate of 10 back below the first value at the end,
      by luck; the epochs in between show it. On the packaged bars the largest ratio was at most 1
      for rates up to 0.1, and at least 50 for a rate of 10, over GRU, LSTM and linear.

    It says that the model learns from these rows, not that it knows others: evaluation does.

    Args:
        workload: Builds the model and has the losses.
        model_settings: Architecture and size.
        training: The real training's settings; only ``max_epochs`` and the patience differ here.
        examples: Train examples of a fold.
        settings: Size of the slice, epochs, seeds, required fall and confidence.
        seed: Base seed; each mini training derives its own.

    Raises:
        Exception: Whatever the model's or the loss's own code raises.

    Cost:
        ``mini_seeds * mini_epochs`` passes over ``mini_rows`` examples.

    Assumes:
        Relative falls of different seeds are independent and roughly normal, and the first loss
        is not close to 0, as one that changes sign may be.
    """
    if len(examples) < settings.mini_min_rows:
        return too_few(len(examples), settings.mini_min_rows)
    slice_ = spread(examples, settings.mini_rows)
    brief = training.model_copy(
        update={"max_epochs": settings.mini_epochs, "patience_epochs": settings.mini_epochs}
    )
    curves = []
    for index in range(settings.mini_seeds):
        own = derive_seed(seed, f"poc_mini_training_{index}")
        model = prepare_model(workload, model_settings, slice_, seed=own)
        epochs = train(model, workload.loss, workload.losses, slice_, slice_, brief, seed=own)
        try:
            # As in the real training; one thread is also the fastest for so few rows.
            with deterministic():
                first = mean_loss(model, workload.losses, slice_)
                curves.append([first, *(result.val_loss for result in epochs)])
        except TrainingFailed as error:
            return Finding(
                outcome="fail",
                summary=f"Mini training {index + 1} of {settings.mini_seeds}: {error.what}",
                kind="mini training diverged",
                cause=error.cause,
                fix=error.fix,
            )
    return _judge(np.array(curves), len(slice_), settings, learning_rate=training.learning_rate)


def fall_bound(relative_fall_S: NDArray[np.float64], *, confidence: float) -> FallBound:
    """Bound the mean relative fall of the loss over seeds from below, by Student's t.

    Shape legend: S = seeds, at least 2.

    Args:
        relative_fall_S: (first - last) / |first| of every seed.
        confidence: One-sided coverage of the bound.
    """
    # scipy.special, not scipy.stats: the same quantile without a second of import.
    from scipy.special import stdtrit

    num_seeds = len(relative_fall_S)
    mean = float(relative_fall_S.mean())
    error = float(relative_fall_S.std(ddof=1)) / math.sqrt(num_seeds)
    return FallBound(mean=mean, lower=mean - float(stdtrit(num_seeds - 1, confidence)) * error)


def _judge(
    loss_SE: NDArray[np.float64], num_rows: int, settings: PocSettings, *, learning_rate: float
) -> Finding:
    """Judge the losses of S seeds before training and after each epoch, (S, 1 + epochs)."""
    first_S, last_S = loss_SE[:, 0], loss_SE[:, -1]
    if not bool((first_S != 0).all()):
        return Finding(
            outcome="insufficient",
            summary="The loss is exactly 0 before training, so no fall can be measured.",
            cause="The loss ignores the output or the target, or the slice is trivial.",
            fix="Check losses() and the target column.",
        )
    bound = fall_bound((first_S - last_S) / np.abs(first_S), confidence=settings.fall_confidence)
    rise_SE = 1 + (loss_SE - first_S[:, None]) / np.abs(first_S[:, None])
    worst = float(rise_SE.max())
    seed_index, epoch = np.unravel_index(rise_SE.argmax(), rise_SE.shape)
    first, last = float(first_S.mean()), float(last_S.mean())
    required = settings.min_relative_fall
    seen = (
        f"In {settings.mini_epochs} epochs on {num_rows} examples the loss went from {first:.4g} "
        f"to {last:.4g} (mean of {settings.mini_seeds} seeds, learning_rate {learning_rate:g}), a "
        f"fall of {bound.mean:.2%} of its first value, at least {bound.lower:.2%} beyond seed "
        f"noise; more than {required:.2%} is required."
    )
    numbers: dict[str, float | int | str] = {
        "first_loss": first,
        "last_loss": last,
        "relative_fall": bound.mean,
        "relative_fall_lower_bound": bound.lower,
        "required_relative_fall": required,
        "largest_rise_ratio": worst,
        "num_rows": num_rows,
        "num_seeds": settings.mini_seeds,
    }
    if not worst <= settings.max_rise_ratio:
        return Finding(
            outcome="fail",
            summary=f"{seen} On the way, after epoch {epoch} of seed {seed_index + 1}, it was "
            f"{worst:.4g} times its first value; at most {settings.max_rise_ratio:g} is allowed.",
            numbers=numbers,
            kind="mini training diverged",
        )
    if bound.lower > required:
        return Finding(outcome="pass", summary=seen, numbers=numbers)
    return Finding(
        outcome="fail", summary=seen, numbers=numbers, kind="mini training without progress"
    )
