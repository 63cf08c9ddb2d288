"""Records which modules and units of a network are active during forward passes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

_CHANNELS_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
)
"""Modules whose units are channels, in dimension 1 of their output."""

RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.Threshold)
"""Activation modules whose output is constant, usually 0, for inputs below a threshold."""


@dataclass(slots=True, kw_only=True)
class ModuleActivity:
    """Activity of one module over all forward passes so far.

    For a module with children, only ``num_examples`` and ``input_key`` are recorded.
    """

    num_examples: int = 0
    """Number of rows of the module's inputs; 0 if the module never ran, or only on empty inputs."""
    has_nonzero_input: bool | None = None
    """Whether an input value was ever nonzero; None for a module without parameters."""
    active_mask: Tensor | None = None
    """Boolean mask of the units whose output was ever above 0. None for a module without a
    floating-point output, or with outputs of different widths in different calls."""
    widths: set[int] = field(default_factory=set)
    """Numbers of units of the module's outputs so far."""
    previous_module_with_weights: str = ""
    """Name of the last module with weights that ran before this module; "" if none did."""
    input_key: tuple[int, tuple[int, ...]] | None = None
    """Memory address and shape of the input in the latest pass. Modules with the same input have
    equal values here."""

    @property
    def num_units(self) -> int:
        """Number of output units; 0 if they cannot be counted."""
        return 0 if self.active_mask is None else self.active_mask.numel()

    @property
    def num_active_units(self) -> int:
        """Number of units whose output was ever above 0."""
        return 0 if self.active_mask is None else int(self.active_mask.sum())

    @property
    def is_dead(self) -> bool:
        """Whether the module ran, but the output of no unit was ever above 0."""
        return self.num_units > 0 and self.num_active_units == 0


@dataclass(slots=True)
class ActivityRecorder:
    """Collects activity by module name. Call ``start_pass`` before every forward pass."""

    activity: dict[str, ModuleActivity] = field(default_factory=dict)
    _last_module_with_weights: str = ""
    """Name of the last module with weights that ran in this pass."""
    _has_channels_first: bool = False
    """Whether the units of ``_last_module_with_weights`` are channels, in dimension 1."""
    _inputs: list[Tensor] = field(default_factory=list)
    """Inputs of this pass. As long as they exist, no other tensor gets the same memory address."""

    def start_pass(self) -> None:
        """Release the inputs of the previous pass, so that their memory can be freed."""
        self._inputs.clear()
        self._last_module_with_weights, self._has_channels_first = "", False

    def on_input(self, name: str, x: Tensor) -> None:
        """Record the input of a module."""
        activity = self.activity.setdefault(name, ModuleActivity())
        activity.num_examples += len(x) if x.ndim and x.numel() else 0
        self._inputs.append(x)
        activity.input_key = (x.data_ptr(), tuple(x.shape))

    def on_output(self, name: str, module: nn.Module, x: Tensor, output: Tensor) -> None:
        """Record the output of a module without children."""
        activity = self.activity.setdefault(name, ModuleActivity())
        activity.previous_module_with_weights = self._last_module_with_weights
        has_weights = next(module.parameters(recurse=False), None) is not None
        if has_weights:
            activity.has_nonzero_input = bool(activity.has_nonzero_input) or bool((x != 0).any())
            self._last_module_with_weights = name
            self._has_channels_first = isinstance(module, _CHANNELS_FIRST)
        if not output.is_floating_point() or not output.numel():
            return
        has_channels = self._has_channels_first and output.ndim > 2
        # The units are in dimension 1 of an image or a volume, otherwise in the last dimension.
        unit_dim = 1 if output.ndim > 3 or has_channels else -1
        other_dims = [dim for dim in range(output.ndim) if dim != unit_dim % output.ndim]
        is_positive = output > 0
        mask = is_positive.any(dim=other_dims) if other_dims else is_positive.any().reshape(1)
        activity.widths.add(len(mask))
        if len(activity.widths) > 1:
            activity.active_mask = None
        else:
            previous_mask = activity.active_mask
            activity.active_mask = mask if previous_mask is None else previous_mask | mask


@contextmanager
def record_activity(model: nn.Module) -> Iterator[ActivityRecorder]:
    """Record the activity of the modules of ``model``; all hooks are removed at the end.

    The hooks record the output of a module before an in-place activation function changes this
    output. Compiled and scripted modules get no hooks, because compiled modules would become slower
    and scripted modules would ignore the hooks.
    """
    recorder = ActivityRecorder()
    handles = []
    for name, module in model.named_modules():
        if "_orig_mod" in name.split(".") or isinstance(module, torch.jit.ScriptModule):
            continue
        handles.append(
            module.register_forward_pre_hook(_input_hook(recorder, name), with_kwargs=True)
        )
        if next(module.children(), None) is None:
            handles.append(
                module.register_forward_hook(_output_hook(recorder, name), with_kwargs=True)
            )
    try:
        yield recorder
    finally:
        for handle in handles:
            handle.remove()
        recorder.start_pass()


def _input_hook(recorder: ActivityRecorder, name: str) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
        x = _first_tensor((*args, *kwargs.values()))
        if x is not None:
            recorder.on_input(name, x.detach())

    return hook


def _output_hook(recorder: ActivityRecorder, name: str) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        x = _first_tensor((*args, *kwargs.values()))
        y = _first_tensor(output if isinstance(output, (tuple, list)) else (output,))
        if x is not None and y is not None:
            recorder.on_output(name, module, x.detach(), y.detach())

    return hook


def _first_tensor(values: Any) -> Tensor | None:
    """Return the first dense tensor of some arguments or outputs, or None."""
    strided_tensors = (
        value for value in values if isinstance(value, Tensor) and value.layout == torch.strided
    )
    return next((tensor for tensor in strided_tensors if not tensor.is_nested), None)
