"""Results of epochs, and the state from which a training resumes.

Shape legend: S = finished steps of an epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sluice.training.precision import ScaleState
from sluice.training.settings import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """Result of one full pass over the train rows."""

    epoch: int
    """Number of the epoch, counted from 1."""
    train_loss: float
    """Mean loss of the epoch's batches, each before its update, in the workload's loss unit."""
    val_loss: float
    """Mean loss of the validation rows after the epoch, in the workload's loss unit."""
    learning_rate: float
    """Learning rate of the epoch's last step, before it is multiplied by the ``rate_share`` of a
    parameter group."""
    grad_norm_mean: float
    """Mean of the global gradient norms before clipping."""
    grad_norm_max: float
    """Maximum of the global gradient norms before clipping."""
    clipped_share: float
    """Share of steps whose gradient was clipped to ``clip_norm``."""
    improved: bool
    """Whether the workload's ``select_epoch`` chose this epoch over all earlier epochs."""
    seconds: float
    """Wall time of training and validation [s]. All other fields are the same in a repeated run."""
    precision: Precision = "fp32"
    """Precision in effect after the epoch: fp32 if fp16 was abandoned."""
    skipped_steps: int = 0
    """Steps that fp16 skipped because their gradient overflowed."""
    loss_scale: float = ScaleState(precision="fp16").scale
    """Loss scale of fp16 after the epoch; unused in other precisions."""
    loss_scale_steps: int = 0
    """Number of steps with finite gradients since the loss scale last changed."""
    failed_unscales: int = 0
    """Consecutive steps skipped for non-finite fp16 gradients, up to the end of the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochProgress:
    """Finished steps of an epoch that has no result yet."""

    loss_S: Tensor
    """Loss of each step, float64 on the CPU."""
    norm_S: Tensor
    """Norm of the gradient of each step before clipping, float64 on the CPU."""
    taken_S: Tensor
    """Whether each step updated the weights, bool on the CPU; fp16 skips steps."""
    learning_rate: float
    """Learning rate of the last step."""
    seconds: float
    """Wall time of the epoch so far [s]."""
    scale: ScaleState
    """State of the loss scale after the last step."""

    @property
    def steps(self) -> int:
        """Number of finished steps."""
        return len(self.loss_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Everything that training needs to resume with the same bits, after any step.

    The tensors are live: copy or write them before training continues.
    """

    history: tuple[EpochResult, ...]
    """Results of all finished epochs."""
    steps: int
    """Number of optimizer steps so far, over all epochs, which is the position in the schedule."""
    best_epoch: int
    """Epoch whose weights are selected so far."""
    model: dict[str, Tensor]
    """Weights of the model after the last step."""
    best: dict[str, Tensor]
    """Weights of the model after ``best_epoch``; empty before the first result."""
    optimizer: dict[str, Tensor]
    """Optimizer state tensors, by 'parameter index/state name'."""
    optimizer_tree: Mapping[str, Any]
    """Optimizer state other than tensors, as returned by ``split_state``."""
    rng: Mapping[str, Tensor]
    """State of the random generators that dropout uses."""
    progress: EpochProgress | None = None
    """Progress of the epoch after ``history``; None if it has not started."""
