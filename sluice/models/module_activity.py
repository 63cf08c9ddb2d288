"""What the modules of a network read and gave in forward passes that really ran."""

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
class Activity:
    """What one module did, over all forward passes so far."""

    num_examples: int = 0
    """Rows of its inputs; 0 for a module that never ran, or on empty inputs only."""
    read: bool | None = None
    """Was its input ever different from 0? None for a module without parameters of its own."""
    active: Tensor | None = None
    """By unit: was its output ever above 0; None for a module without a floating-point output, and
    for one that is called in several places of different width."""
    widths: set[int] = field(default_factory=set)
    fed_by: str = ""
    """The module with weights that ran just before."""
    source: tuple[int, tuple[int, ...]] | None = None
    """Which tensor it read, in the newest pass; equal for modules that read the same."""

    @property
    def num_units(self) -> int:
        """Units of the output; 0 when it has none that can be counted."""
        return 0 if self.active is None else self.active.numel()

    @property
    def num_active(self) -> int:
        """Units whose output was ever above 0."""
        return 0 if self.active is None else int(self.active.sum())

    @property
    def dead(self) -> bool:
        """It ran, and none of its units was ever above 0."""
        return self.num_units > 0 and self.num_active == 0


@dataclass(slots=True)
class Watch:
    """Activity by module name. Call ``next_pass`` before every forward pass."""

    activity: dict[str, Activity] = field(default_factory=dict)
    _last_weighted: str = ""
    _channels_first: bool = False
    _held: list[Tensor] = field(default_factory=list)

    def next_pass(self) -> None:
        """Forget what the newest pass read, so that its memory can be freed."""
        self._held.clear()
        self._last_weighted, self._channels_first = "", False

    def reads(self, name: str, x: Tensor) -> None:
        """Note the input of a module."""
        seen = self.activity.setdefault(name, Activity())
        seen.num_examples += len(x) if x.ndim and x.numel() else 0
        # Held, so that no other tensor gets its address while the pass runs.
        self._held.append(x)
        seen.source = (x.data_ptr(), tuple(x.shape))

    def gives(self, name: str, module: nn.Module, x: Tensor, output: Tensor) -> None:
        """Note the output of a module without children."""
        seen = self.activity.setdefault(name, Activity())
        seen.fed_by = self._last_weighted
        weighted = next(module.parameters(recurse=False), None) is not None
        if weighted:
            seen.read = bool(seen.read) or bool((x != 0).any())
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
def watched(model: nn.Module) -> Iterator[Watch]:
    """Watch the modules of ``model`` inside; every hook is taken away afterwards.

    Only forward hooks, which see an output before an in-place activation changes it. Compiled and
    scripted parts are left alone: hooks would slow them or be ignored.
    """
    watch = Watch()
    handles = []
    for name, module in model.named_modules():
        if "_orig_mod" in name.split(".") or isinstance(module, torch.jit.ScriptModule):
            continue
        handles.append(module.register_forward_pre_hook(_before(watch, name), with_kwargs=True))
        if next(module.children(), None) is None:
            handles.append(module.register_forward_hook(_after(watch, name), with_kwargs=True))
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()
        watch.next_pass()


def _before(watch: Watch, name: str) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
        x = _first_tensor((*args, *kwargs.values()))
        if x is not None:
            watch.reads(name, x.detach())

    return hook


def _after(watch: Watch, name: str) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        x = _first_tensor((*args, *kwargs.values()))
        y = _first_tensor(output if isinstance(output, (tuple, list)) else (output,))
        if x is not None and y is not None:
            watch.gives(name, module, x.detach(), y.detach())

    return hook


def _first_tensor(values: Any) -> Tensor | None:
    plain = (v for v in values if isinstance(v, Tensor) and v.layout == torch.strided)
    return next((value for value in plain if not value.is_nested), None)
