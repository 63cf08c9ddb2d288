"""Faults of checkpoints: saving, loading, resuming and selecting."""

from functools import partial
from typing import Literal

from sluice.findings.fault import Fault

CheckpointFault = Literal[
    "checkpoint mismatch",
    "resume state lost",
    "checkpoint not loaded",
    "stale best checkpoint",
    "wrong epoch selection",
]

_fault = partial(Fault, topic="checkpoints")

CHECKPOINT_FAULTS: tuple[Fault, ...] = (
    _fault(
        id="checkpoint-mismatch",
        name="checkpoint mismatch",
        severity="error",
        description=(
            "A model cannot be restored from its checkpoint, or the restored model differs."
        ),
        cause=(
            "The model has another width, depth or number of features than the saved model, or "
            "state_dict does not contain its whole state."
        ),
        fix=(
            "Build the model from the settings saved with the checkpoint, and register every "
            "tensor that a prediction needs as a parameter or a buffer."
        ),
        detectors=("POC gate",),
    ),
    _fault(
        id="resume-state-lost",
        name="resume state lost",
        severity="error",
        description=(
            "A training that resumes does not continue as before: the state of optimizer, "
            "scheduler, random generators or data order is lost."
        ),
        cause="The checkpoint does not contain the state, or the program does not load it.",
        fix=(
            "Save and load the state_dict() of the network, of the optimizer and of the scheduler, "
            "and the state of every random generator."
        ),
        detectors=(
            "POC gate",
            "tracer",
        ),
    ),
    _fault(
        id="checkpoint-not-loaded",
        name="checkpoint not loaded",
        severity="error",
        description="No key of a checkpoint matches the network, which keeps its random weights.",
        cause=(
            "The names of the parameters differ, for example by the prefix 'module.' after data "
            "parallel training, and strict=False hides the mismatch."
        ),
        fix="Remove the prefix from the keys and load with strict=True.",
        detectors=("tracer",),
    ),
    _fault(
        id="stale-best-checkpoint",
        name="stale best checkpoint",
        severity="error",
        description=(
            "The checkpoint that is kept as the best is not updated when the validation loss "
            "improves."
        ),
        cause=(
            "state_dict() returns references to the weights, or the program compares another "
            "metric, or compares the validation loss in the wrong direction."
        ),
        fix=(
            "Keep copy.deepcopy(model.state_dict()), and compare the validation loss of each epoch "
            "with the lowest validation loss so far."
        ),
        detectors=("tracer",),
    ),
    _fault(
        id="wrong-epoch-selection",
        name="wrong epoch selection",
        severity="error",
        description="select_epoch does not return the epoch with the lowest score.",
        cause=(
            "select_epoch may maximise the score, compare positions instead of scores, or treat "
            "NaN as the lowest score."
        ),
        fix=(
            "Return the earliest epoch with the lowest finite score, and raise an error when no "
            "score is finite, as sluice.workloads.best_epoch.best_epoch does."
        ),
        detectors=("POC gate",),
    ),
)
