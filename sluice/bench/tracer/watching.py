"""Records an untraced run with ordinary PyTorch hooks, for the baselines.

Like other monitors, the hooks read all gradients, weights and outputs of layers at every step.
"""

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sluice.bench.tracer.baselines import MonitoredStep, MonitoredValidation, MonitorRecord
from sluice.trace.patches import Patches

_LOSS_FUNCTIONS = (
    "cross_entropy",
    "nll_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "gaussian_nll_loss",
)
"""Names of the functions in ``torch.nn.functional`` whose calls are recorded."""

_MIN_ACTIVE_SHARE = 0.01
"""A unit of a ReLU layer is dead if its output is positive in less than this share of the rows. For
images, a unit is a channel, and all pixels of all rows count."""

_EPSILON = 1e-9
"""Added to the mean |weight|, so that weights of 0 do not cause a division by zero."""


class AnomalyFound(Exception):
    """Autograd's anomaly mode found a NaN in a backward pass."""

    def __init__(self, step: int) -> None:
        super().__init__(f"NaN in the backward pass before step {step}.")
        self.step = step


@contextmanager
def monitored(*, with_anomaly_mode: bool) -> Iterator["HookMonitor"]:
    """Install the hooks in this process, and yield the monitor that records.

    The process must not be traced at the same time.

    Raises:
        AnomalyFound: ``with_anomaly_mode`` is True, and a gradient of a backward pass is NaN.
    """
    monitor, patches = HookMonitor(), Patches()
    hooks = [
        register_optimizer_step_pre_hook(lambda optimizer, *_: monitor.before_step(optimizer)),
        register_optimizer_step_post_hook(lambda optimizer, *_: monitor.after_step(optimizer)),
        register_module_forward_hook(
            lambda module, _, output: monitor.on_module_output(module, output)
        ),
    ]
    patches.replace(torch.autograd, "backward", _wrap_backward(monitor))
    patches.replace(torch.amp.GradScaler, "scale", _wrap_scale(monitor))
    for name in _LOSS_FUNCTIONS:
        patches.replace(functional, name, _wrap_loss(monitor, getattr(functional, name)))
    try:
        with torch.autograd.set_detect_anomaly(with_anomaly_mode):
            yield monitor
    except RuntimeError as error:
        if with_anomaly_mode and "nan values in its" in str(error):
            raise AnomalyFound(len(monitor.steps) + 1) from error
        raise
    finally:
        patches.restore()
        for hook in hooks:
            hook.remove()


class HookMonitor:
    """Records the steps, validation passes and labels of a run."""

    def __init__(self) -> None:
        self.steps: list[MonitoredStep] = []
        self._validations: list[MonitoredValidation] = []
        self._label_counts: dict[int, int] = {}
        self._losses_since_step: list[float] = []
        self._losses_since_validation: list[float] = []
        self._validation_losses: list[float] = []
        self._weights_before_step: dict[int, Tensor] = {}
        self._num_zero_outputs = 0
        self._dead_share = 0.0
        self.unscaled_loss: float | None = None
        """Loss of the next backward pass without its scale; None without a gradient scaler."""

    def record(self) -> MonitorRecord:
        """End the current validation pass, and return the record of the run so far."""
        self._end_validation()
        return MonitorRecord(
            steps=tuple(self.steps),
            validations=tuple(self._validations),
            label_counts=self._label_counts,
        )

    def on_backward(self, loss: Any) -> None:
        """End the current validation pass, and record the loss of a backward pass."""
        self._end_validation()
        value = self.unscaled_loss
        if value is None and isinstance(loss, Tensor) and loss.numel() == 1:
            value = float(loss.detach())
        self.unscaled_loss = None
        if value is not None:
            self._losses_since_step.append(value)
            self._losses_since_validation.append(value)

    def on_loss(self, loss: Tensor, target: Any) -> None:
        """Record a loss without gradients as a validation loss; else count the class labels."""
        if not loss.requires_grad:
            if loss.numel() == 1:
                self._validation_losses.append(float(loss))
        elif isinstance(target, Tensor) and target.dtype == torch.int64:
            labels, counts = target.unique(return_counts=True)
            for label, count in zip(labels.tolist(), counts.tolist(), strict=True):
                if label >= 0:
                    self._label_counts[label] = self._label_counts.get(label, 0) + count

    def on_module_output(self, module: nn.Module, output: Any) -> None:
        """Record whether the output of a layer is all zero, and the share of dead units after ReLU.

        Outputs without gradients, and of modules that contain other modules, are ignored.
        """
        if not isinstance(output, Tensor) or not torch.is_grad_enabled() or module._modules:
            return
        values = output.detach()
        if values.numel() and values.is_floating_point() and not bool(values.any()):
            self._num_zero_outputs += 1
        if isinstance(module, nn.ReLU) and values.dim() > 1:
            unit_dimension = 1 if values.dim() == 4 else -1
            is_active = (values > 0).double().movedim(unit_dimension, 0).flatten(1)
            dead_share = float((is_active.mean(1) < _MIN_ACTIVE_SHARE).double().mean())
            self._dead_share = max(self._dead_share, dead_share)

    def before_step(self, optimizer: Any) -> None:
        """Copy the weights, so that ``after_step`` can compare them with the new weights."""
        for parameter in _optimizer_parameters(optimizer):
            self._weights_before_step[id(parameter)] = parameter.detach().clone()

    def after_step(self, optimizer: Any) -> None:
        """Record the step: its losses, gradients and changes of weights."""
        mean_gradients, update_ratios, unchanged_parameters = [], [], []
        is_finite, num_all_zero_tensors = True, self._num_zero_outputs
        for index, parameter in enumerate(_optimizer_parameters(optimizer)):
            weights_before = self._weights_before_step.pop(id(parameter), None)
            if weights_before is None:
                continue
            if torch.allclose(parameter.detach(), weights_before, rtol=1e-5, equal_nan=True):
                unchanged_parameters.append(index)
            if parameter.grad is None:
                continue
            mean_gradient = float(parameter.grad.detach().to_dense().double().abs().mean())
            mean_gradients.append(mean_gradient)
            is_finite = is_finite and math.isfinite(mean_gradient)
            num_all_zero_tensors += mean_gradient == 0
            if parameter.dim() > 1:
                mean_update = float((parameter.detach() - weights_before).double().abs().mean())
                mean_weight = float(weights_before.double().abs().mean())
                update_ratios.append(mean_update / (mean_weight + _EPSILON))
        nan = float("nan")
        self.steps.append(
            MonitoredStep(
                step=len(self.steps) + 1,
                losses=tuple(self._losses_since_step),
                smallest_gradient=min(mean_gradients, default=nan),
                has_non_finite_value=not is_finite
                or any(not math.isfinite(loss) for loss in self._losses_since_step),
                num_all_zero_tensors=num_all_zero_tensors,
                unchanged_parameters=tuple(unchanged_parameters),
                smallest_update_ratio=min(update_ratios, default=nan),
                largest_update_ratio=max(update_ratios, default=nan),
                dead_share=self._dead_share,
            )
        )
        self._losses_since_step, self._num_zero_outputs, self._dead_share = [], 0, 0.0

    def _end_validation(self) -> None:
        if self._validation_losses and self._losses_since_validation:
            validation = MonitoredValidation(
                step=len(self.steps),
                training_loss=statistics.fmean(self._losses_since_validation),
                validation_loss=statistics.fmean(self._validation_losses),
            )
            self._validations.append(validation)
            self._losses_since_validation = []
        self._validation_losses = []


def _optimizer_parameters(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _wrap_backward(monitor: HookMonitor) -> Callable[..., None]:
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        monitor.on_backward(tensors)
        original(tensors, *args, **kwargs)

    return backward


def _wrap_scale(monitor: HookMonitor) -> Callable[..., Any]:
    original = torch.amp.GradScaler.scale

    def scale(scaler: Any, outputs: Any) -> Any:
        if isinstance(outputs, Tensor) and outputs.numel() == 1:
            monitor.unscaled_loss = float(outputs.detach())
        return original(scaler, outputs)

    return scale


def _wrap_loss(monitor: HookMonitor, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def loss_function(output: Tensor, target: Any, *args: Any, **kwargs: Any) -> Tensor:
        loss = original(output, target, *args, **kwargs)
        monitor.on_loss(loss, target)
        return loss

    return loss_function
