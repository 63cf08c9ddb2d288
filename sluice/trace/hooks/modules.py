"""Hooks for forward passes, training and evaluation mode, and registration of modules.

No hook is registered on a module, because it would be copied and saved with the module. Instead,
``Module.__call__`` is replaced: it observes calls from outside any network, and the calls inside a
network during inspected passes.
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

from sluice.trace.functorch import in_functorch_transform
from sluice.trace.hooks.forward_passes import ForwardPassInspector
from sluice.trace.hooks.inputs import tensor_refs
from sluice.trace.object_tracker import NetworkEntry
from sluice.trace.step_statistics import first_tensor, request_output_statistics
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer import Tracer


def watch_modules(tracer: Tracer) -> None:
    """Record calls and modes of networks, and track modules and parameters that are added."""
    original, local = nn.Module.__call__, tracer.local
    handler = _CallHandler(tracer)
    # False if another library replaced ``__call__`` before.
    is_torch_call = original is nn.Module._wrapped_call_impl

    # Kept minimal, because it runs at every call of every module.
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        thread = local.thread
        if thread.in_forward:
            if not thread.inspects_modules or compiler.is_compiling():
                if is_torch_call and module._compiled_call_impl is None:  # as torch itself does
                    return module._call_impl(*args, **kwargs)
                return original(module, *args, **kwargs)
            output = original(module, *args, **kwargs)
            tracer.run_safely(handler.on_module_call, module, args, kwargs, output)
            return output
        # torch.compile and torch.export must not trace this wrapper. Reading the flags directly
        # costs a quarter of ``is_compiling()``. A forward pass inside a backward pass is a
        # recomputation by checkpointing.
        if (
            not tracer.is_on
            or is_dynamo_compiling()
            or compiler._is_compiling_flag
            or thread.in_backward
        ):
            return original(module, *args, **kwargs)
        if thread.position >= 0:
            entry = tracer.objects.networks.by_id.get(id(module))
            if entry is not None and entry.ref() is module and torch.is_grad_enabled():
                if entry.has_no_parameters:
                    return original(module, *args, **kwargs)
                # The inputs are needed if the loss turns out to be non-finite.
                thread.last_network, thread.inputs = entry.index, tensor_refs(args, kwargs)
                thread.in_forward = True
                try:
                    output = original(module, *args, **kwargs)
                finally:
                    thread.in_forward = False
                has_grad = type(output) is Tensor and output.requires_grad
                if (
                    entry.forward_codes.get((has_grad, thread.last_loader))
                    == thread.expected_codes[thread.position]
                ):
                    thread.position += 1
                else:
                    thread.network_entry = entry
                    tracer.run_safely(handler.end, thread, module, args, kwargs, output)
                return output
        try:
            if thread.position >= 0:
                tracer.fast_path.stop(thread)
            handler.begin(thread, module, args, kwargs)
        except Exception as error:  # as in ``Tracer.run_safely``
            tracer.fail(error)
            return original(module, *args, **kwargs)
        # A module without parameters, such as a loss, may call a network.
        if thread.network_entry.has_no_parameters:
            return original(module, *args, **kwargs)
        thread.in_forward = True
        try:
            output = original(module, *args, **kwargs)
        finally:
            thread.in_forward = thread.inspects_modules = False
        try:
            handler.end(thread, module, args, kwargs, output)
        except Exception as error:  # as in ``Tracer.run_safely``
            tracer.fail(error)
        return output

    tracer.patches.replace(nn.Module, "__call__", functools.wraps(original)(call))
    _watch_modes(tracer)

    def module_added(parent: nn.Module, name: str, module: nn.Module | None) -> None:
        if tracer.is_on:
            tracer.run_safely(tracer.on_structure_change)
            tracer.run_safely(
                lambda: tracer.objects.tied_parameters.on_replace(parent, name, module)
            )

    def parameter_added(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if tracer.is_on:
            tracer.run_safely(tracer.on_structure_change)
            tracer.run_safely(
                lambda: tracer.objects.tied_parameters.on_register(module, name, parameter)
            )

    tracer.patches.hook(register_module_module_registration_hook, module_added)
    tracer.patches.hook(register_module_parameter_registration_hook, parameter_added)


class _CallHandler:
    """Handles the calls of networks, and of modules inside a network, for all threads."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._inspector = tracer.forward_inspector = ForwardPassInspector(tracer)
        tracer.on_begin.append(self._inspector.reset)

    def begin(
        self, thread: ThreadState, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        tracer = self._tracer
        if tracer.manual_updates is not None:
            tracer.manual_updates.detect_step(thread)
        networks = tracer.objects.networks
        entry = networks.by_id.get(id(module))
        if entry is None or entry.ref() is not module:
            entry = networks.get_or_add(module)
        thread.network_entry = entry
        if entry.has_no_parameters:
            return
        if tracer.inputs is not None:
            tracer.inputs.on_call(thread, entry.index, module, args, kwargs)
        if self._inspector.current or self._inspector.is_due:
            self._inspector.discard_stale()
        if args and type(args[0]) is Tensor and args[0].dim() > 1:
            self._inspector.on_sequence_length(entry, args[0].shape[1])
        inspects = tracer.steps >= entry.next_inspection_step and self._inspector.can_inspect()
        if entry.module_names is not None and not tracer.samples_statistics and not inspects:
            return
        measures = (
            tracer.samples_statistics
            and entry.index not in thread.inspected_networks
            and torch.is_grad_enabled()
            and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        )
        if measures or inspects or entry.module_names is None:
            began = tracer.clock()
            if entry.module_names is None:
                if hasattr(module, "_orig_mod"):
                    text = f"{entry.name} is compiled: its modules are not traced."
                    tracer.note("untraced", text)
                entry.module_names = {id(m): name for name, m in module.named_modules()}
            entry.invalidate_mode()
            thread.measures_outputs, thread.inspects_modules = measures, True
            if measures:
                thread.inspected_networks += (entry.index,)
            if inspects:
                self._inspector.begin(entry, module, args, kwargs)
            thread.statistics_ns += tracer.clock() - began

    def on_module_call(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        tracer, thread = self._tracer, self._tracer.local.thread
        began = tracer.clock()
        entry: NetworkEntry = thread.network_entry
        name = (entry.module_names or {}).get(id(module))
        if name is None:
            if id(module) not in entry.unregistered_modules and any(
                p.requires_grad for p in module.parameters()
            ):
                entry.unregistered_modules[id(module)] = weakref.ref(module)
                tracer.objects.is_stale = True
        else:
            self._inspector.on_module_call(name, module, args, kwargs, output)
            if thread.measures_outputs and not module._modules:
                self._measure(entry, name, module, output)
        thread.statistics_ns += tracer.clock() - began

    def end(
        self,
        thread: ThreadState,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        tracer = self._tracer
        entry: NetworkEntry = thread.network_entry
        if self._inspector.current:
            began = tracer.clock()
            self._inspector.on_module_call("", module, args, kwargs, output)
            self._inspector.end()
            thread.statistics_ns += tracer.clock() - began
        if thread.measures_outputs:
            thread.measures_outputs = False
            began = tracer.clock()
            self._measure(entry, "", module, output)
            thread.statistics_ns += tracer.clock() - began
        tensor = output if type(output) is Tensor else first_tensor(output)
        has_grad = tensor.requires_grad if tensor is not None else torch.is_grad_enabled()
        thread.output = None if tensor is None else weakref.ref(tensor)
        if entry.output_row_shape is None and tensor is not None:
            entry.output_row_shape = tuple(tensor.shape[1:])
        if thread.nonfinite_input is not None and tracer.inputs is not None:
            tracer.inputs.on_return(tensor)
        key = has_grad, thread.last_loader
        code = entry.forward_codes.get(key)
        if code is None:
            flags = (*("grad",) * has_grad, *entry.mode_flags())
            code = entry.forward_codes[key] = tracer.event_code(
                "forward", entry.index, thread.last_loader, flags
            )
        tracer.record_code(thread, code)

    def _measure(self, entry: NetworkEntry, name: str, module: nn.Module, output: Any) -> None:
        tracer, outputs = self._tracer, self._tracer.local.thread.output_measures
        if len(outputs) < tracer.settings.max_modules and not in_functorch_transform():
            outputs.append(
                request_output_statistics(
                    entry.index, name, module, output, tracer.recorder.device_reads
                )
            )


def _watch_modes(tracer: Tracer) -> None:
    original = nn.Module.train

    @functools.wraps(original)
    def train(module: Any, mode: bool = True) -> Any:
        thread = tracer.local.thread
        if not tracer.is_on or thread.in_mode_change:  # ``train`` calls itself for every child
            return original(module, mode)
        # ``eval()`` calls ``train(False)``. Other calls of ``train(False)`` are usually
        # ``train(was_training)``, which restores an earlier mode.
        is_restored = not mode and sys._getframe(1).f_code is not nn.Module.eval.__code__
        thread.in_mode_change = True
        try:
            result = original(module, mode)
        finally:
            thread.in_mode_change = False
        flags = ("train",) if mode else ("eval", *("restored",) * is_restored)
        tracer.run_safely(_mode_changed, tracer, module, flags)
        return result

    tracer.patches.replace(nn.Module, "train", train)


def _mode_changed(tracer: Tracer, module: nn.Module, flags: tuple[str, ...]) -> None:
    entry = tracer.objects.networks.get(module)
    tracer.objects.invalidate_modes()
    index = -1 if entry is None else entry.index
    tracer.record_event(tracer.local.thread, "mode", index, flags=flags)
