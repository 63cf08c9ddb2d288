"""Records a run with ordinary hooks, as other monitors do, reading all values at every step."""

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

_LOSSES = (
    "cross_entropy",
    "nll_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "gaussian_nll_loss",
)
_MIN_ACTIVE_SHARE = 0.01
_TINY = 1e-9


class AnomalyFound(Exception):
    """Autograd's anomaly mode found a NaN in a backward pass."""

    def __init__(self, step: int) -> None:
        super().__init__(f"NaN in the backward pass before step {step}.")
        self.step = step


@contextmanager
def watched(*, with_anomaly_mode: bool) -> Iterator["PlainMonitor"]:
    """Record the steps of all optimizers in this process, which must not be traced.

    Raises:
        AnomalyFound: Anomaly mode is enabled and stopped the program.
    """
    monitor, patches = PlainMonitor(), Patches()
    hooks = [
        register_optimizer_step_pre_hook(lambda optimizer, *_: monitor.before_step(optimizer)),
        register_optimizer_step_post_hook(lambda optimizer, *_: monitor.after_step(optimizer)),
        register_module_forward_hook(
            lambda module, _, output: monitor.on_module_output(module, output)
        ),
    ]
    patches.replace(torch.autograd, "backward", _backward(monitor))
    patches.replace(torch.amp.GradScaler, "scale", _scale(monitor))
    for name in _LOSSES:
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


class PlainMonitor:
    """Records the steps, validation passes and labels of a run."""

    def __init__(self) -> None:
        self.steps: list[MonitoredStep] = []
        self._validations: list[MonitoredValidation] = []
        self._labels: dict[int, int] = {}
        self._losses: list[float] = []
        self._losses_since_validation: list[float] = []
        self._validation: list[float] = []
        self._weights_before: dict[int, Tensor] = {}
        self._num_zero_outputs = 0
        self._dead_share = 0.0
        self.unscaled: float | None = None

    def record(self) -> MonitorRecord:
        """Return what was recorded so far."""
        self._close_validation()
        return MonitorRecord(
            steps=tuple(self.steps), scores=tuple(self._validations), labels=self._labels
        )

    def on_backward(self, loss: Any) -> None:
        """Record a backward pass."""
        self._close_validation()
        value = self.unscaled
        if value is None and isinstance(loss, Tensor) and loss.numel() == 1:
            value = float(loss.detach())
        self.unscaled = None
        if value is not None:
            self._losses.append(value)
            self._losses_since_validation.append(value)

    def on_loss(self, output: Tensor, target: Any) -> None:
        """Record a validation loss (without gradients), or the labels of a training loss."""
        if not output.requires_grad:
            if output.numel() == 1:
                self._validation.append(float(output))
        elif isinstance(target, Tensor) and target.dtype == torch.int64:
            labels, counts = target.unique(return_counts=True)
            for label, count in zip(labels.tolist(), counts.tolist(), strict=True):
                if label >= 0:
                    self._labels[label] = self._labels.get(label, 0) + count

    def on_module_output(self, module: nn.Module, output: Any) -> None:
        """Record the output of a module."""
        if not isinstance(output, Tensor) or not torch.is_grad_enabled() or module._modules:
            return
        values = output.detach()
        if values.numel() and values.is_floating_point() and not bool(values.any()):
            self._num_zero_outputs += 1
        if isinstance(module, nn.ReLU) and values.dim() > 1:
            # For images, units are channels.
            active = (values > 0).double().movedim(1 if values.dim() == 4 else -1, 0).flatten(1)
            share = float((active.mean(1) < _MIN_ACTIVE_SHARE).double().mean())
            self._dead_share = max(self._dead_share, share)

    def before_step(self, optimizer: Any) -> None:
        """Store the weights."""
        for parameter in _optimizer_parameters(optimizer):
            self._weights_before[id(parameter)] = parameter.detach().clone()

    def after_step(self, optimizer: Any) -> None:
        """Record gradients and changes of weights."""
        sizes, ratios, unmoved = [], [], []
        is_finite, num_all_zero = True, self._num_zero_outputs
        for position, parameter in enumerate(_optimizer_parameters(optimizer)):
            before = self._weights_before.pop(id(parameter), None)
            if before is None:
                continue
            if torch.allclose(parameter.detach(), before, rtol=1e-5, equal_nan=True):
                unmoved.append(position)
            if parameter.grad is None:
                continue
            size = float(parameter.grad.detach().to_dense().double().abs().mean())
            sizes.append(size)
            is_finite = is_finite and size < float("inf")
            num_all_zero += size == 0
            if parameter.dim() > 1:
                change = float((parameter.detach() - before).double().abs().mean())
                ratios.append(change / (float(before.double().abs().mean()) + _TINY))
        nan = float("nan")
        self.steps.append(
            MonitoredStep(
                step=len(self.steps) + 1,
                losses=tuple(self._losses),
                smallest_gradient=min(sizes, default=nan),
                has_non_finite=not is_finite or any(not abs(x) < 1e308 for x in self._losses),
                num_all_zero=num_all_zero,
                unmoved=tuple(unmoved),
                smallest_update=min(ratios, default=nan),
                largest_update=max(ratios, default=nan),
                dead_share=self._dead_share,
            )
        )
        self._losses, self._num_zero_outputs, self._dead_share = [], 0, 0.0

    def _close_validation(self) -> None:
        if self._validation and self._losses_since_validation:
            score = MonitoredValidation(
                step=len(self.steps),
                training=statistics.fmean(self._losses_since_validation),
                validation=statistics.fmean(self._validation),
            )
            self._validations.append(score)
            self._losses_since_validation = []
        self._validation = []


def _optimizer_parameters(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _backward(monitor: PlainMonitor) -> Callable[..., None]:
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        monitor.on_backward(tensors)
        original(tensors, *args, **kwargs)

    return backward


def _scale(monitor: PlainMonitor) -> Callable[..., Any]:
    original = torch.amp.GradScaler.scale

    def scale(scaler: Any, outputs: Any) -> Any:
        if isinstance(outputs, Tensor) and outputs.numel() == 1:
            monitor.unscaled = float(outputs.detach())
        return original(scaler, outputs)

    return scale


def _wrap_loss(monitor: PlainMonitor, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def loss(output: Tensor, target: Any, *args: Any, **kwargs: Any) -> Tensor:
        result = original(output, target, *args, **kwargs)
        monitor.on_loss(result, target)
        return result

    return loss
