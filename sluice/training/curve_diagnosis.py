"""Diagnoses the learning curves of a finished training: symptoms, and what to try first.

A symptom requires a trend over several epochs (``gap_epochs``, by default 5) or an extreme value,
so that an ordinary noisy curve has none. Losses may have any unit and sign, because a change is
compared with the total decrease of the train or validation loss.

Shape legend: E = epochs, T = epochs of the tail that a trend is fitted to.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.pluralize import pluralize
from sluice.base.settings import Record, Settings
from sluice.findings.finding import Finding
from sluice.training.loop import EpochResult

_MIN_EPOCHS = 6
"""Minimum number of epochs for symptoms that require a trend. It is one more than the default of
``gap_epochs``, because the decrease over five epochs needs the losses of six epochs."""

_SIGNIFICANT_T_RATIO = 4.0
"""Ratio of a trend to its standard error above which the trend is significant."""


class DiagnosisSettings(Settings):
    """Thresholds of the symptoms of a learning curve."""

    gap_epochs: int = Field(
        5,
        ge=3,
        description="Overfitting requires at least this number of epochs after the best epoch. "
        "'Stopped too early' measures the decrease over this number of last epochs.",
    )
    gap_share: float = Field(
        0.1,
        gt=0,
        description="A training counts as overfitting only if, after its best epoch, the "
        "validation loss increases by more than this share of the train loss's decrease.",
    )
    unfinished_share: float = Field(
        0.05,
        gt=0,
        description="A training counts as stopped too early only if, over the last epochs, the "
        "validation loss decreases by more than this share of its total decrease.",
    )
    common_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="The decision about a candidate gives advice about a symptom only if at least "
        "this share of trainings has the symptom. 'Stopped too early' is also found if the best "
        "epoch is max_epochs in at least this share of trainings.",
    )
    trivial_share: float = Field(
        0.99,
        gt=0,
        le=1,
        description="A training counts as underfitting if its lowest train loss is at least this "
        "multiple of the loss of the best constant prediction.",
    )
    min_loss_decrease: float = Field(
        1e-3,
        ge=0,
        description="The train loss counts as constant if its relative decrease is at most this "
        "value.",
    )
    max_gradient_norm: float = Field(
        100.0,
        gt=0,
        description="A training counts as exploding if a gradient norm exceeds this value after "
        "the first epoch. If the train loss is above 1, the limit is this value times the loss.",
    )
    max_gradient_jump: float = Field(
        30.0,
        gt=1,
        description="A training counts as exploding if a gradient norm exceeds this multiple of "
        "the largest mean norm of an earlier epoch.",
    )
    dead_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Dead units are reported if more than this share of the rectifier neurons is "
        "never active.",
    )


class CurveDiagnosis(Record):
    """Symptoms of one training's learning curves, most urgent first.

    An empty result does not prove a good training.
    """

    symptoms: tuple[Finding, ...]
    epochs: int = Field(description="Number of epochs that were analysed.")
    has_enough_epochs: bool = Field(
        description="Whether there are enough epochs for trends. Explosions, dead units and a "
        "change from fp16 to fp32 are detected with fewer."
    )

    @property
    def summary(self) -> str:
        """One or more sentences for reports."""
        if self.symptoms:
            return " ".join(f"{symptom.fault}: {symptom.what}" for symptom in self.symptoms)
        if not self.has_enough_epochs:
            epochs = pluralize(self.epochs, "epoch")
            return f"{epochs} of training, too few for a trend; no gradient exploded."
        return f"No symptom in {pluralize(self.epochs, 'epoch')}."


def diagnose_curves(
    history: Sequence[EpochResult],
    settings: DiagnosisSettings,
    *,
    max_epochs: int,
    expects_signal: bool,
    constant_loss: float | None = None,
    dead_units: tuple[int, int] | None = None,
) -> CurveDiagnosis:
    """Diagnose the learning curves of one training.

    Args:
        history: Epochs of the training, in order.
        settings: Thresholds of the symptoms.
        max_epochs: Maximum number of epochs in the training settings.
        expects_signal: Whether the target should be predictable (``Workload.expects_signal``). If
            not, a constant loss and underfitting are no symptoms.
        constant_loss: Mean train loss of the best constant prediction; None if unknown.
        dead_units: Number of neurons that were never active, and number of all neurons, as returned
            by ``count_dead_units``.
    """
    if not history:
        return CurveDiagnosis(symptoms=(), epochs=0, has_enough_epochs=False)
    has_enough_epochs = len(history) >= _MIN_EPOCHS
    explosion = _find_explosion(history, settings)
    symptoms = [
        explosion,
        _find_dead_units(dead_units, settings),
        _find_fp16_abandonment(history),
    ]
    if has_enough_epochs and explosion is None:
        not_learning = (
            _find_not_learning(history, settings, constant_loss) if expects_signal else None
        )
        symptoms.append(not_learning)
        if not_learning is None:
            symptoms.append(_find_overfitting(history, settings))
            symptoms.append(_find_unfinished(history, settings, max_epochs))
    return CurveDiagnosis(
        symptoms=tuple(symptom for symptom in symptoms if symptom is not None),
        epochs=len(history),
        has_enough_epochs=has_enough_epochs,
    )


def fit_trend(values_T: NDArray[np.float64]) -> tuple[float, bool]:
    """Return the change along a fitted straight line, and whether it is significant.

    A change is significant if it exceeds four times its standard error. For six independent values,
    that occurs by chance with a probability of 1.6 %.
    """
    x_T = np.arange(len(values_T)) - (len(values_T) - 1) / 2
    slope = float(x_T @ values_T / (x_T @ x_T))
    change = slope * (len(values_T) - 1)
    residual_T = values_T - values_T.mean() - slope * x_T
    variance = float(residual_T @ residual_T) / max(len(values_T) - 2, 1)
    standard_error = math.sqrt(variance / float(x_T @ x_T)) * (len(values_T) - 1)
    return change, abs(change) > _SIGNIFICANT_T_RATIO * standard_error


def _find_overfitting(
    history: Sequence[EpochResult], settings: DiagnosisSettings
) -> Finding | None:
    epoch_E, val_E, train_E = _curves(history)
    best_index = int(val_E.argmin())
    num_epochs_after = len(val_E) - 1 - best_index
    if num_epochs_after < settings.gap_epochs:
        return None
    # The tail excludes the best epoch, because its low loss would bias the slope.
    tail = slice(best_index + 1, None)
    increase, is_increase_significant = fit_trend(val_E[tail])
    gap_increase, is_gap_increase_significant = fit_trend((val_E - train_E)[tail])
    decrease = float(train_E[0] - train_E.min())
    is_large = gap_increase > 0 and increase > settings.gap_share * decrease > 0
    if not (is_increase_significant and is_gap_increase_significant and is_large):
        return None
    return Finding.of(
        "overfitting",
        what=f"the validation loss is lowest at epoch {epoch_E[best_index]} "
        f"({val_E[best_index]:.4g}) and increases by {increase:.3g} over the {num_epochs_after} "
        f"epochs after it, while the gap to the train loss grows by {gap_increase:.3g}.",
        evidence={
            "best_epoch": int(epoch_E[best_index]),
            "increase": increase,
            "gap_increase": gap_increase,
        },
        cause="The network memorises the train rows, because it is too large for their number.",
        fix="Try more rows first, then weight_decay times 10, dropout 0.1 to 0.3, or half of "
        "hidden. The training keeps the weights of the best epoch.",
    )


def _find_unfinished(
    history: Sequence[EpochResult], settings: DiagnosisSettings, max_epochs: int
) -> Finding | None:
    _, val_E, _ = _curves(history)
    if len(history) < max_epochs or int(val_E.argmin()) < len(val_E) - 2:
        return None
    tail_T = val_E[-settings.gap_epochs - 1 :]
    change, is_significant = fit_trend(tail_T)
    decrease = float(val_E[0] - val_E[-1])
    if not (is_significant and -change > settings.unfinished_share * decrease > 0):
        return None
    return Finding.of(
        "stopped too early",
        what=f"the validation loss still decreases at the last epoch, by {-change:.3g} over the "
        f"last {len(tail_T) - 1} epochs ({-change / decrease:.0%} of its total decrease).",
        evidence={"decrease": -change, "share": -change / decrease},
    )


def _find_not_learning(
    history: Sequence[EpochResult], settings: DiagnosisSettings, constant_loss: float | None
) -> Finding | None:
    epoch_E, _, train_E = _curves(history)
    lowest_loss = float(train_E.min())
    beats_constant = (
        constant_loss is not None and lowest_loss < settings.trivial_share * constant_loss
    )
    late_loss = float(np.median(train_E[1:]))
    min_decrease = settings.min_loss_decrease * abs(float(train_E[0]))
    if not beats_constant and not train_E[0] - late_loss > min_decrease:
        return Finding.of(
            "loss not decreasing",
            what=f"the train loss is {train_E[0]:.4g} in epoch {epoch_E[0]}, and its median over "
            f"the later epochs is {late_loss:.4g}; gradient norm {history[-1].grad_norm_mean:.3g}.",
            evidence={"first_loss": float(train_E[0]), "median_loss": late_loss},
            cause="The learning rate is far too low or too high, layers are frozen, or the "
            "features carry no information about the target.",
            fix="Run the learning-rate range test first; then check that every layer requires "
            "gradients, and compare features with targets.",
        )
    if constant_loss is None or not constant_loss > 0 or beats_constant:
        return None
    return Finding.of(
        "underfitting",
        what=f"the lowest train loss is {lowest_loss:.4g}, {lowest_loss / constant_loss:.0%} of "
        f"the loss of the best constant prediction ({constant_loss:.4g}).",
        evidence={"lowest_loss": lowest_loss, "constant_loss": constant_loss},
    )


def _find_explosion(history: Sequence[EpochResult], settings: DiagnosisSettings) -> Finding | None:
    for index, result in enumerate(history):
        has_skipped_steps = result.skipped_steps > 0  # only fp16 skips steps
        is_finite = math.isfinite(result.train_loss) and math.isfinite(result.val_loss)
        if not is_finite and not has_skipped_steps:
            return _non_finite_finding(result)
        norm = result.grad_norm_max
        norm_limit = settings.max_gradient_norm * max(1.0, abs(result.train_loss))
        means = (r.grad_norm_mean for r in history[:index])
        largest_earlier_mean = max(
            (mean for mean in means if math.isfinite(mean)), default=math.inf
        )
        # The first epoch is not checked, because gradients may be large at the start of a training.
        if index and not has_skipped_steps and not norm <= norm_limit:
            return _explosion_finding(
                f"the gradient norm reached {norm:.3g} at epoch {result.epoch}; the limit is "
                f"{norm_limit:.3g} for a loss of {result.train_loss:.3g}.",
                result,
            )
        jump_limit = settings.max_gradient_jump * max(largest_earlier_mean, 1e-12)
        if not has_skipped_steps and not norm <= jump_limit:
            return _explosion_finding(
                f"the gradient norm reached {norm:.3g} at epoch {result.epoch}; the largest mean "
                f"of the earlier epochs is {largest_earlier_mean:.3g}.",
                result,
            )
    return None


def _non_finite_finding(result: EpochResult) -> Finding:
    return Finding.of(
        "non-finite loss",
        what=f"at epoch {result.epoch} the train loss is {result.train_loss:.4g} and the "
        f"validation loss {result.val_loss:.4g}; largest gradient norm {result.grad_norm_max:.3g}.",
        evidence={"epoch": result.epoch, "gradient_norm": result.grad_norm_max},
        cause="The loss takes the logarithm of 0, divides by 0, or overflows on extreme outputs; "
        "or the learning rate is too high.",
        fix="Clamp the arguments of log, exp and division in the loss first. If the gradient norm "
        "was increasing, divide learning_rate by 3.",
    )


def _explosion_finding(what: str, result: EpochResult) -> Finding:
    return Finding.of(
        "explosion",
        what=what,
        evidence={"epoch": result.epoch, "gradient_norm": result.grad_norm_max},
        cause="The learning rate is too high, clip_norm too large, or a row is far out of range.",
        fix="Divide learning_rate by 3 first. Then lower clip_norm (usual values: 0.5 to 1 for a "
        "Transformer, 5 to 10 for a recurrent network), and inspect the rows with the highest "
        "loss.",
    )


def _find_dead_units(
    dead_units: tuple[int, int] | None, settings: DiagnosisSettings
) -> Finding | None:
    if dead_units is None or not dead_units[1]:
        return None
    num_dead, num_neurons = dead_units
    if num_dead / num_neurons <= settings.dead_share:
        return None
    return Finding.of(
        "dead units",
        what=f"{num_dead} of {num_neurons} rectifier neurons ({num_dead / num_neurons:.0%}) are "
        "not active on any row.",
        evidence={"dead_units": num_dead, "units": num_neurons},
        cause="A neuron whose input is never above 0 gets no gradient. A too high learning rate "
        "or a bad initialisation causes that.",
        fix="Divide learning_rate by 3 first, check the initial bias, or use GELU or LeakyReLU.",
    )


def _find_fp16_abandonment(history: Sequence[EpochResult]) -> Finding | None:
    epochs = [r.epoch for r in history if r.skipped_steps and r.precision == "fp32"]
    if not epochs:
        return None
    return Finding.of(
        "fp16 abandoned",
        what=f"five consecutive steps overflowed at epoch {epochs[0]}; the rest of the training "
        "used fp32.",
        evidence={"epoch": epochs[0]},
    )


def _curves(
    history: Sequence[EpochResult],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the epochs with finite losses: their numbers, validation losses and train losses."""
    epoch_E = np.array([result.epoch for result in history])
    val_E = np.array([result.val_loss for result in history])
    train_E = np.array([result.train_loss for result in history])
    # An epoch in which fp16 skipped every step has no train loss.
    finite_E = np.isfinite(val_E) & np.isfinite(train_E)
    return epoch_E[finite_E], val_E[finite_E], train_E[finite_E]
