"""Suggests the setting to change first for each symptom of a training, and its new value."""

from sluice.findings.catalogue import FaultName
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings

_RATE_DIVISOR = 3
"""Divisor of the learning rate for a training that is unstable."""

_DECAY_FACTOR = 10
"""Factor of the weight decay for a training that overfits."""

_FIRST_DECAY = 0.01
"""Weight decay for a training that overfits without weight decay."""

_MAX_DECAY = 10.0
"""Largest weight decay that the settings allow."""


def suggest_first_change(fault: FaultName, model: ModelSettings, training: TrainSettings) -> str:
    """Return the change to try first, as an override 'key=value'; "" if no change is obvious.

    Args:
        fault: Fault that the learning curves show.
        model: Model settings of the training.
        training: Settings of the training.

    >>> suggest_first_change("stopped too early", ModelSettings(), TrainSettings(max_epochs=25))
    'training.max_epochs=50'
    """
    match fault:
        case "stopped too early":
            return f"training.max_epochs={2 * training.max_epochs}"
        case "explosion" | "non-finite loss" | "dead units":
            return f"training.learning_rate={training.learning_rate / _RATE_DIVISOR:.2g}"
        case "overfitting":
            decay = _DECAY_FACTOR * training.weight_decay or _FIRST_DECAY
            return f"training.weight_decay={min(decay, _MAX_DECAY):.2g}"
        case "underfitting":
            return f"model.hidden={2 * model.hidden}"
        case "fp16 abandoned":
            return "training.precision=bf16"
        case _:
            return ""
