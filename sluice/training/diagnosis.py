"""What the curves of a finished training say: symptoms, and what to try first (RESP-2).

A symptom needs a trend over at least five epochs or a value far out of the usual, so that an
ordinary noisy curve has none. Losses may have any unit and sign: a change is held against how far
the train loss fell.

Shape legend: E = epochs, T = epochs of the tail that a trend is fitted to.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sluice.base.settings import Record, Settings
from sluice.training.loop import EpochResult

SymptomKind = Literal[
    "overfitting",
    "stopped too early",
    "underfitting",
    "loss not falling",
    "explosion",
    "loss not finite",
    "dead units",
    "fp16 given up",
]

_MIN_EPOCHS = 6
"""Five differences between neighbours."""

_CLEAR = 4.0
"""Standard errors."""


class DiagnosisSettings(Settings):
    """From where on a curve is out of the usual."""

    gap_epochs: int = Field(5, ge=3, description="A gap must grow over so many epochs [epochs].")
    gap_share: float = Field(
        0.1,
        gt=0,
        description="The rise of the validation loss after its best epoch that counts, as a share "
        "of the fall of the train loss.",
    )
    still_falling_share: float = Field(
        0.05,
        gt=0,
        description="A fall of the validation loss over the last epochs that counts as unfinished, "
        "as a share of its whole fall.",
    )
    common_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of the trainings that must have a symptom for the verdict to name it "
        "first; also that whose best epoch is the last one allowed.",
    )
    trivial_share: float = Field(
        0.99, gt=0, le=1, description="A train loss above this share of the trivial one underfits."
    )
    least_fall: float = Field(
        1e-3, ge=0, description="A train loss that falls less, relative to the first, stands still."
    )
    most_gradient: float = Field(
        100.0, gt=0, description="Largest gradient norm, times the loss where that is above 1."
    )
    most_jump: float = Field(
        30.0, gt=1, description="Largest gradient norm, in means of the epochs before."
    )
    dead_share: float = Field(
        0.5, gt=0, le=1, description="Units of a rectifier that are never active, of all."
    )


class Symptom(Record):
    """One thing that is out of the usual."""

    kind: SymptomKind
    what: str = Field(description="What was seen, with numbers and epochs.")
    cause: str
    fix: str = Field(description="What to try first.")


class Diagnosis(Record):
    """What a training's curves say, most urgent first; no symptom is no proof of health."""

    symptoms: tuple[Symptom, ...]
    epochs: int = Field(description="Epochs looked at.")
    enough: bool = Field(description="Enough epochs for trends; explosions are seen without.")

    @property
    def summary(self) -> str:
        """One sentence for people."""
        if self.symptoms:
            return " ".join(f"{symptom.kind}: {symptom.what}" for symptom in self.symptoms)
        if not self.enough:
            return f"{self.epochs} epochs are too few for a trend; nothing exploded."
        return f"No symptom in {self.epochs} epochs."


def diagnose(
    history: Sequence[EpochResult],
    settings: DiagnosisSettings,
    *,
    max_epochs: int,
    expects_signal: bool,
    trivial_loss: float | None = None,
    dead_units: tuple[int, int] | None = None,
) -> Diagnosis:
    """Look at the curves of one training.

    Args:
        history: Its epochs, in order.
        settings: From where on something is a symptom.
        max_epochs: As in the training settings.
        expects_signal: ``Workload.expects_signal``; where the target may be unpredictable, a loss
            that does not fall is no symptom.
        trivial_loss: Mean train loss of the best constant prediction, where it is known.
        dead_units: Units that were never active, and all, as ``count_dead_units`` returns them.
    """
    if not history:
        return Diagnosis(symptoms=(), epochs=0, enough=False)
    enough = len(history) >= _MIN_EPOCHS
    found = [_explosion(history, settings), _dead(dead_units, settings), _given_up(history)]
    if enough and found[0] is None:
        standing = _standing(history, settings, trivial_loss) if expects_signal else None
        found.append(standing)
        if standing is None:
            found.append(_overfitting(history, settings))
            found.append(_unfinished(history, settings, max_epochs))
    return Diagnosis(
        symptoms=tuple(symptom for symptom in found if symptom is not None),
        epochs=len(history),
        enough=enough,
    )


def trend(values_T: NDArray[np.float64]) -> tuple[float, bool]:
    """Return the change along a straight line through the values, and whether it is beyond noise.

    Beyond noise: four times its own standard error, which chance alone does in about one of a
    hundred windows of six independent values.
    """
    x_T = np.arange(len(values_T)) - (len(values_T) - 1) / 2
    slope = float(x_T @ values_T / (x_T @ x_T))
    change = slope * (len(values_T) - 1)
    residual_T = values_T - values_T.mean() - slope * x_T
    variance = float(residual_T @ residual_T) / max(len(values_T) - 2, 1)
    error = math.sqrt(variance / float(x_T @ x_T)) * (len(values_T) - 1)
    return change, abs(change) > _CLEAR * error


def _overfitting(history: Sequence[EpochResult], settings: DiagnosisSettings) -> Symptom | None:
    val_E, train_E = _curves(history)
    best = int(val_E.argmin())
    after = len(history) - 1 - best
    if after < settings.gap_epochs:
        return None
    # Without the best epoch itself: it was picked for being low, and would tilt any line.
    tail = slice(best + 1, None)
    rise, clear = trend(val_E[tail])
    gap, gap_clear = trend((val_E - train_E)[tail])
    fell = float(train_E[0] - train_E.min())
    if not (clear and gap_clear and gap > 0 and rise > settings.gap_share * fell > 0):
        return None
    return Symptom(
        kind="overfitting",
        what=f"the validation loss is lowest at epoch {best + 1} ({val_E[best]:.4g}) and rises by "
        f"{rise:.3g} over the {after} epochs after it, while the gap to the train loss grows by "
        f"{gap:.3g}.",
        cause="The network learns the train rows by heart: it is large for so few rows.",
        fix="Try more rows first, then weight_decay times 10, dropout 0.1 to 0.3, or half of "
        "hidden. The weights that were kept are those of the best epoch.",
    )


def _unfinished(
    history: Sequence[EpochResult], settings: DiagnosisSettings, max_epochs: int
) -> Symptom | None:
    val_E, _ = _curves(history)
    if len(history) < max_epochs or int(val_E.argmin()) < len(history) - 2:
        return None
    change, clear = trend(val_E[-settings.gap_epochs - 1 :])
    fell = float(val_E[0] - val_E[-1])
    if not (clear and -change > settings.still_falling_share * fell > 0):
        return None
    return Symptom(
        kind="stopped too early",
        what=f"the validation loss still falls at the last epoch, by {-change:.3g} over the last "
        f"{settings.gap_epochs} ({-change / fell:.0%} of its whole fall).",
        cause="max_epochs ended the training before it was done.",
        fix="Double max_epochs first; then raise learning_rate by a factor of 2 to 3.",
    )


def _standing(
    history: Sequence[EpochResult], settings: DiagnosisSettings, trivial_loss: float | None
) -> Symptom | None:
    _, train_E = _curves(history)
    lowest = float(train_E.min())
    learned = trivial_loss is not None and lowest < settings.trivial_share * trivial_loss
    late = float(np.median(train_E[1:]))
    if not learned and not train_E[0] - late > settings.least_fall * abs(float(train_E[0])):
        return Symptom(
            kind="loss not falling",
            what=f"the train loss was {train_E[0]:.4g} in epoch 1 and is {late:.4g} in the median "
            f"after it; gradient norm {history[-1].grad_norm_mean:.3g}.",
            cause="The learning rate is far too low or too high, layers are frozen, or the "
            "features say nothing about the target.",
            fix="Run the learning-rate range test first; then check that every layer requires "
            "gradients, and compare features with targets.",
        )
    if trivial_loss is None or not trivial_loss > 0 or learned:
        return None
    return Symptom(
        kind="underfitting",
        what=f"the lowest train loss is {lowest:.4g}, {lowest / trivial_loss:.0%} of that of the "
        f"best constant ({trivial_loss:.4g}).",
        cause="The network is too small or too restrained, the rate too low, or the features say "
        "little about the target.",
        fix="Double hidden first, set weight_decay and dropout to 0, and run the range test.",
    )


def _explosion(history: Sequence[EpochResult], settings: DiagnosisSettings) -> Symptom | None:
    for index, result in enumerate(history):
        fp16 = result.skipped_steps > 0
        losses = math.isfinite(result.train_loss) and math.isfinite(result.val_loss)
        if not losses and not fp16:
            return _not_finite(result)
        norm = result.grad_norm_max
        limit = settings.most_gradient * max(1.0, abs(result.train_loss))
        means = (r.grad_norm_mean for r in history[:index])
        before = max((mean for mean in means if math.isfinite(mean)), default=math.inf)
        # Not in the first epoch: before anything is learned gradients may be large.
        if index and not fp16 and not norm <= limit:
            return _exploded(
                f"the gradient norm reached {norm:.3g} at epoch {result.epoch}; usual is up to "
                f"{limit:.3g} for a loss of {result.train_loss:.3g}."
            )
        if not fp16 and not norm <= settings.most_jump * max(before, 1e-12):
            return _exploded(
                f"the gradient norm reached {norm:.3g} at epoch {result.epoch}, its means before "
                f"were up to {before:.3g}."
            )
    return None


def _not_finite(result: EpochResult) -> Symptom:
    return Symptom(
        kind="loss not finite",
        what=f"at epoch {result.epoch} the train loss is {result.train_loss:.4g} and the "
        f"validation loss {result.val_loss:.4g}; largest gradient norm {result.grad_norm_max:.3g}.",
        cause="The loss takes a logarithm of 0, divides by 0, or overflows on extreme outputs; or "
        "the learning rate is too high.",
        fix="Clamp the arguments of log, exp and division in the loss first, and divide "
        "learning_rate by 3 where the gradient norm was rising.",
    )


def _exploded(what: str) -> Symptom:
    return Symptom(
        kind="explosion",
        what=what,
        cause="The learning rate is too high, clip_norm too large, or a row is far out of range.",
        fix="Divide learning_rate by 3 first, then clip_norm (0.5 to 1 for a Transformer, 5 to 10 "
        "for recurrent networks), and look at the rows with the highest loss.",
    )


def _dead(dead_units: tuple[int, int] | None, settings: DiagnosisSettings) -> Symptom | None:
    if dead_units is None or not dead_units[1]:
        return None
    dead, total = dead_units
    if dead / total <= settings.dead_share:
        return None
    return Symptom(
        kind="dead units",
        what=f"{dead} of {total} rectified units ({dead / total:.0%}) are active on no row.",
        cause="Units whose input is never above 0 get no gradient: a rate or an initialisation "
        "pushed them there.",
        fix="Divide learning_rate by 3 first, check the bias' start, or use GELU or LeakyReLU.",
    )


def _given_up(history: Sequence[EpochResult]) -> Symptom | None:
    epochs = [r.epoch for r in history if r.skipped_steps and r.precision == "fp32"]
    if not epochs:
        return None
    return Symptom(
        kind="fp16 given up",
        what=f"five steps in a row overflowed at epoch {epochs[0]}; what followed is in fp32.",
        cause="Gradients or outputs are beyond fp16's largest number, 65,504.",
        fix="Use bf16, which has the range of fp32; or scale the target.",
    )


def _curves(
    history: Sequence[EpochResult],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    val_E = np.array([result.val_loss for result in history])
    train_E = np.array([result.train_loss for result in history])
    # An epoch whose every step fp16 left out has no train loss.
    finite_E = np.isfinite(val_E) & np.isfinite(train_E)
    return val_E[finite_E], train_E[finite_E]
