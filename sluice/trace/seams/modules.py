"""Forward passes, modes, and modules that are added.

No hook is set on any module: a hook would be copied and saved with it. One replaced
``Module.__call__`` sees the calls from outside, and those inside when they are looked at.
"""

import functools
import sys
import weakref
from typing import Any

import torch
from torch import Tensor, compiler, nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from sluice.trace.inventory import NetworkEntry
from sluice.trace.lane import Lane
from sluice.trace.measuring import ask_output, first_tensor
from sluice.trace.seams.flow import Flows
from sluice.trace.seams.inputs import given
from sluice.trace.tracer import Tracer
from sluice.trace.transforms import is_transformed


def watch_modules(tracer: Tracer) -> None:
    """Mark calls and modes of networks, and hear of modules and parameters that are added."""
    original, local = nn.Module.__call__, tracer.local
    seen = _Calls(tracer)
    is_ours = original is nn.Module._wrapped_call_impl

    # As short as can be: it runs at every call of every module.
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        lane = local.lane
        if lane.in_forward:
            if not lane.inspecting or compiler.is_compiling():
                if is_ours and module._compiled_call_impl is None:  # what torch itself does
                    return module._call_impl(*args, **kwargs)
                return original(module, *args, **kwargs)
            output = original(module, *args, **kwargs)
            tracer.guard(seen.inside, module, args, kwargs, output)
            return output
        # While torch.compile or torch.export reads the program, it must see the program alone:
        # this is ``is_compiling()`` at a quarter of its cost. A forward inside of a backward pass
        # is recomputed by checkpointing.
        if (
            not tracer.is_on
            or is_dynamo_compiling()
            or compiler._is_compiling_flag
            or lane.in_backward
        ):
            return original(module, *args, **kwargs)
        if lane.at >= 0:
            entry = tracer.inventory.networks.by_id.get(id(module))
            if entry is not None and entry.ref() is module and torch.is_grad_enabled():
                if entry.is_plain:
                    return original(module, *args, **kwargs)
                # Its loss may turn out not to be finite.
                lane.called, lane.given = entry.index, given(args, kwargs)
                lane.in_forward = True
                try:
                    output = original(module, *args, **kwargs)
                finally:
                    lane.in_forward = False
                has_grad = type(output) is Tensor and output.requires_grad
                if entry.codes.get((has_grad, lane.loader)) == lane.word[lane.at]:
                    lane.at += 1
                else:
                    lane.network = entry
                    tracer.guard(seen.end, lane, module, args, kwargs, output)
                return output
        try:
            if lane.at >= 0:
                tracer.routine.leave(lane)
            seen.begin(lane, module, args, kwargs)
        except Exception as error:  # as with ``guard``
            tracer.fail(error)
            return original(module, *args, **kwargs)
        if lane.network.is_plain:  # a loss function, say: what is in it may be a network
            return original(module, *args, **kwargs)
        lane.in_forward = True
        try:
            output = original(module, *args, **kwargs)
        finally:
            lane.in_forward = lane.inspecting = False
        try:
            seen.end(lane, module, args, kwargs, output)
        except Exception as error:  # as with ``guard``
            tracer.fail(error)
        return output

    tracer.patches.replace(nn.Module, "__call__", functools.wraps(original)(call))
    _watch_modes(tracer)

    def module_added(parent: nn.Module, name: str, module: nn.Module | None) -> None:
        if tracer.is_on:
            tracer.guard(tracer.structure_changed)
            tracer.guard(lambda: tracer.inventory.ties.replaces(parent, name, module))

    def parameter_added(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if tracer.is_on:
            tracer.guard(tracer.structure_changed)
            tracer.guard(lambda: tracer.inventory.ties.registers(module, name, parameter))

    tracer.patches.hook(register_module_module_registration_hook, module_added)
    tracer.patches.hook(register_module_parameter_registration_hook, parameter_added)


class _Calls:
    """The calls of one thread after another, from outside a network and inside."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._flows = tracer.flows = Flows(tracer)
        tracer.on_begin.append(self._flows.reset)

    def begin(
        self, lane: Lane, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        tracer = self._tracer
        if tracer.own_steps is not None:
            tracer.own_steps.look(lane)
        networks = tracer.inventory.networks
        entry = networks.by_id.get(id(module))
        if entry is None or entry.ref() is not module:
            entry = networks.find(module)
        lane.network = entry
        if entry.is_plain:
            return
        if tracer.inputs is not None:
            tracer.inputs.see(lane, entry.index, module, args, kwargs)
        if self._flows.now or self._flows.is_due:
            self._flows.forget()
        if args and type(args[0]) is Tensor and args[0].dim() > 1:
            self._flows.heard_length(entry, args[0].shape[1])
        flows = tracer.steps >= entry.next_flow and self._flows.wants()
        if entry.names is not None and not tracer.has_statistics and not flows:
            return
        measures = (
            tracer.has_statistics
            and entry.index not in lane.inspected
            and torch.is_grad_enabled()
            and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        )
        if measures or flows or entry.names is None:
            began = tracer.clock()
            if entry.names is None:
                if hasattr(module, "_orig_mod"):
                    tracer.note("blind", f"{entry.name} is compiled: its modules are not seen.")
                entry.names = {id(m): name for name, m in module.named_modules()}
            entry.forget_mode()
            lane.measures, lane.inspecting = measures, True
            if measures:
                lane.inspected += (entry.index,)
            if flows:
                self._flows.begin(entry, module, args, kwargs)
            lane.spent += tracer.clock() - began

    def inside(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        tracer, lane = self._tracer, self._tracer.local.lane
        began = tracer.clock()
        entry: NetworkEntry = lane.network
        name = (entry.names or {}).get(id(module))
        if name is None:
            if id(module) not in entry.stray and any(p.requires_grad for p in module.parameters()):
                entry.stray[id(module)] = weakref.ref(module)
                tracer.inventory.is_stale = True
        else:
            self._flows.inside(name, module, args, kwargs, output)
            if lane.measures and not module._modules:
                self._measure(entry, name, module, output)
        lane.spent += tracer.clock() - began

    def end(
        self,
        lane: Lane,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        tracer = self._tracer
        entry: NetworkEntry = lane.network
        if self._flows.now:
            began = tracer.clock()
            self._flows.inside("", module, args, kwargs, output)
            self._flows.end()
            lane.spent += tracer.clock() - began
        if lane.measures:
            lane.measures = False
            began = tracer.clock()
            self._measure(entry, "", module, output)
            lane.spent += tracer.clock() - began
        tensor = output if type(output) is Tensor else first_tensor(output)
        has_grad = tensor.requires_grad if tensor is not None else torch.is_grad_enabled()
        lane.made = None if tensor is None else weakref.ref(tensor)
        if entry.row_shape is None and tensor is not None:
            entry.row_shape = tuple(tensor.shape[1:])
        if lane.bad_input is not None and tracer.inputs is not None:
            tracer.inputs.returned(tensor)
        key = has_grad, lane.loader
        code = entry.codes.get(key)
        if code is None:
            flags = (*("grad",) * has_grad, *entry.mode_flags())
            code = entry.codes[key] = tracer.code("forward", entry.index, lane.loader, flags)
        tracer.event(lane, code)

    def _measure(self, entry: NetworkEntry, name: str, module: nn.Module, output: Any) -> None:
        tracer, outputs = self._tracer, self._tracer.local.lane.outputs
        if len(outputs) < tracer.settings.most_modules and not is_transformed():
            outputs.append(ask_output(entry.index, name, module, output, tracer.recorder.deferred))


def _watch_modes(tracer: Tracer) -> None:
    original = nn.Module.train

    @functools.wraps(original)
    def train(module: Any, mode: bool = True) -> Any:
        lane = tracer.local.lane
        if not tracer.is_on or lane.in_mode:  # it calls itself for every child
            return original(module, mode)
        # ``eval()`` calls it; who calls it with False restores a mode that was asked for before.
        is_restored = not mode and sys._getframe(1).f_code is not nn.Module.eval.__code__
        lane.in_mode = True
        try:
            found = original(module, mode)
        finally:
            lane.in_mode = False
        flags = ("train",) if mode else ("eval", *("restored",) * is_restored)
        tracer.guard(_switched, tracer, module, flags)
        return found

    tracer.patches.replace(nn.Module, "train", train)


def _switched(tracer: Tracer, module: nn.Module, flags: tuple[str, ...]) -> None:
    entry = tracer.inventory.networks.known(module)
    tracer.inventory.forget_modes()
    subject = -1 if entry is None else entry.index
    tracer.mark(tracer.local.lane, "mode", subject, flags=flags)
