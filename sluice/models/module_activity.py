"""Records the inputs and outputs of a network's modules during forward passes."""

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

RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.Threshold)
"""Modules whose output is 0 for inputs below a threshold."""


@dataclass(slots=True, kw_only=True)
class ModuleActivity:
    """Activity of one module over all forward passes so far."""

    num_examples: int = 0
    """Rows of the module's inputs; 0 for a module that never ran, or only on empty inputs."""
    nonzero_input: bool | None = None
    """Whether an input value was ever nonzero; None for a module without own parameters."""
    active: Tensor | None = None
    """For each unit, whether its output was ever above 0. None for a module without a
    floating-point output, or one that is called in several places with different widths."""
    widths: set[int] = field(default_factory=set)
    previous_weighted: str = ""
    """Name of the module with weights that ran immediately before this one."""
    input_key: tuple[int, tuple[int, ...]] | None = None
    """Address and shape of the input in the latest pass; equal for modules with the same input."""

    @property
    def num_units(self) -> int:
        """Number of output units; 0 when they cannot be counted."""
        return 0 if self.active is None else self.active.numel()

    @property
    def num_active(self) -> int:
        """Number of units whose output was ever above 0."""
        return 0 if self.active is None else int(self.active.sum())

    @property
    def dead(self) -> bool:
        """Whether the module ran and no unit's output was ever above 0."""
        return self.num_units > 0 and self.num_active == 0


@dataclass(slots=True)
class ActivityRecorder:
    """Collects activity by module name. Call ``start_pass`` before every forward pass."""

    activity: dict[str, ModuleActivity] = field(default_factory=dict)
    _last_weighted: str = ""
    _channels_first: bool = False
    _inputs: list[Tensor] = field(default_factory=list)

    def start_pass(self) -> None:
        """Release the inputs of the previous pass, so that their memory can be freed."""
        self._inputs.clear()
        self._last_weighted, self._channels_first = "", False

    def on_input(self, name: str, x: Tensor) -> None:
        """Record the input of a module."""
        seen = self.activity.setdefault(name, ModuleActivity())
        seen.num_examples += len(x) if x.ndim and x.numel() else 0
        # Kept alive, so that no other tensor gets its address during the pass.
        self._inputs.append(x)
        seen.input_key = (x.data_ptr(), tuple(x.shape))

    def on_output(self, name: str, module: nn.Module, x: Tensor, output: Tensor) -> None:
        """Record the output of a module without children."""
        seen = self.activity.setdefault(name, ModuleActivity())
        seen.previous_weighted = self._last_weighted
        weighted = next(module.parameters(recurse=False), None) is not None
        if weighted:
            seen.nonzero_input = bool(seen.nonzero_input) or bool((x != 0).any())
            self._last_weighted = name
            self._channels_first = isinstance(module, _CHANNELS_FIRST)
        if not output.is_floating_point() or not output.numel():
            return
        channels = self._channels_first and output.ndim > 2
        unit = 1 if output.ndim > 3 or channels else -1
        others = [d for d in range(output.ndim) if d != unit % output.ndim]
        above = (output > 0).any(dim=others) if others else (output > 0).any().reshape(1)
        seen.widths.add(len(above))
        if len(seen.widths) > 1:
            seen.active = None
        else:
            seen.active = above if seen.active is None else seen.active | above


@contextmanager
def record_activity(model: nn.Module) -> Iterator[ActivityRecorder]:
    """Record the activity of the modules of ``model``; all hooks are removed at the end.

    Forward hooks see an output before an in-place activation changes it. Compiled and scripted
    modules get no hooks: these would slow them down or be ignored.
    """
    recorder = ActivityRecorder()
    handles = []
    for name, module in model.named_modules():
        if "_orig_mod" in name.split(".") or isinstance(module, torch.jit.ScriptModule):
            continue
        handles.append(module.register_forward_pre_hook(_before(recorder, name), with_kwargs=True))
        if next(module.children(), None) is None:
            handles.append(module.register_forward_hook(_after(recorder, name), with_kwargs=True))
    try:
        yield recorder
    finally:
        for handle in handles:
            handle.remove()
        recorder.start_pass()


def _before(recorder: ActivityRecorder, name: str) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
        x = _first_tensor((*args, *kwargs.values()))
        if x is not None:
            recorder.on_input(name, x.detach())

    return hook


def _after(recorder: ActivityRecorder, name: str) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        x = _first_tensor((*args, *kwargs.values()))
        y = _first_tensor(output if isinstance(output, (tuple, list)) else (output,))
        if x is not None and y is not None:
            recorder.on_output(name, module, x.detach(), y.detach())

    return hook


def _first_tensor(values: Any) -> Tensor | None:
    plain = (v for v in values if isinstance(v, Tensor) and v.layout == torch.strided)
    return next((value for value in plain if not value.is_nested), None)
