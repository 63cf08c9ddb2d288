"""Hooks for forward passes, training and evaluation mode, and registration of modules.

No hook is registered on a module, because the hook would be copied and saved with the module.
Instead, ``Module.__call__`` is replaced. The replacement observes calls from outside any network.
It also observes the calls inside a network in forward passes that are inspected or measured, in the
first pass of the network, and in its first pass after a module or parameter was added.
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

from sluice.trace.hooks.forward_passes import ForwardPassInspector
from sluice.trace.inspection.functorch import in_functorch_transform
from sluice.trace.inspection.plain_tensors import first_tensor
from sluice.trace.objects.object_tracker import NetworkEntry
from sluice.trace.program_events import (
    ModuleCalled,
    NetworkCalled,
    NetworkReturned,
    StructureChanged,
)
from sluice.trace.sampling.step_statistics import request_output_statistics
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer_context import TracerContext


def watch_modules(tracer: TracerContext) -> None:
    """Record calls and modes of networks, and track modules and parameters that are added."""
    original, local = nn.Module.__call__, tracer.local
    handler = _CallHandler(tracer)

    @functools.wraps(original)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        thread = local.thread
        forward = thread.forward
        if forward.is_running:
            output = original(module, *args, **kwargs)
            if forward.observes_modules and not compiler.is_compiling():
                tracer.run_safely(handler.on_module_call, module, args, kwargs, output)
            return output
        # Not recorded: calls that torch.compile or torch.export traces, and forward passes that
        # checkpointing repeats inside a backward pass. Reading the compiler's flags directly
        # takes a quarter of the time of ``is_compiling()``.
        if (
            not tracer.is_on
            or is_dynamo_compiling()
            or compiler._is_compiling_flag
            or thread.backward.is_running
        ):
            return original(module, *args, **kwargs)
        try:
            entry = handler.begin(thread, module, args, kwargs)
        except Exception as error:  # inlines ``run_safely``, to save a call
            tracer.fail(error)
            return original(module, *args, **kwargs)
        # A module without parameters, such as a loss, does not count as a running network, because
        # it may call a network.
        if entry.has_no_parameters:
            return original(module, *args, **kwargs)
        forward.is_running = True
        try:
            output = original(module, *args, **kwargs)
        finally:
            forward.is_running = forward.observes_modules = False
        try:
            tracer.bus.publish(NetworkReturned(thread, entry, module, args, kwargs, output))
        except Exception as error:  # inlines ``run_safely``, to save a call
            tracer.fail(error)
        return output

    tracer.patches.replace(nn.Module, "__call__", call)
    _watch_modes(tracer)

    def on_module_added(parent: nn.Module, name: str, module: nn.Module | None) -> None:
        if tracer.is_on:
            tracer.run_safely(_invalidate_structure, tracer)
            tracer.run_safely(
                lambda: tracer.objects.tied_parameters.on_replace(parent, name, module)
            )

    def on_parameter_added(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if tracer.is_on:
            tracer.run_safely(_invalidate_structure, tracer)
            tracer.run_safely(
                lambda: tracer.objects.tied_parameters.on_register(module, name, parameter)
            )

    tracer.patches.hook(register_module_module_registration_hook, on_module_added)
    tracer.patches.hook(register_module_parameter_registration_hook, on_parameter_added)


def _invalidate_structure(tracer: TracerContext) -> None:
    tracer.objects.invalidate_structure()
    tracer.bus.publish(StructureChanged(tracer.local.thread))


class _CallHandler:
    """Handles the calls of networks, and of modules inside a network, for all threads."""

    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self._inspector = ForwardPassInspector(tracer)
        tracer.bus.subscribe(NetworkReturned, self._on_return)

    def begin(
        self, thread: ThreadState, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> NetworkEntry:
        """Prepare for a call from outside any network; return the entry of the called module."""
        tracer = self._tracer
        if tracer.bus.has_subscribers(ModuleCalled):
            tracer.bus.publish(ModuleCalled(thread))
        networks = tracer.objects.networks
        entry = networks.by_id.get(id(module))
        if entry is None or entry.ref() is not module:
            entry = networks.get_or_add(module)
        if entry.has_no_parameters:
            return entry
        forward = thread.forward
        forward.entry = entry
        tracer.bus.publish(NetworkCalled(thread, entry, module, args, kwargs))
        if self._inspector.running_passes or self._inspector.has_pass_since_backward:
            self._inspector.discard_stale()
        if args and type(args[0]) is Tensor and args[0].dim() > 1 and not args[0].is_nested:
            self._inspector.on_sequence_length(entry, args[0].shape[1])
        is_inspected = (
            tracer.steps.last_step >= entry.next_inspection_step and self._inspector.can_inspect()
        )
        is_measured = (
            tracer.sampling.samples_statistics
            and entry.index not in forward.measured_networks
            and torch.is_grad_enabled()
            and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        )
        # ``module_names`` is None at the first pass and after a change. Such a pass is observed, to
        # find unregistered modules.
        if is_measured or is_inspected or entry.module_names is None:
            began_ns = tracer.clock()
            if entry.module_names is None:
                if hasattr(module, "_orig_mod"):
                    tracer.note(
                        "untraced", f"{entry.name} is compiled: its modules are not traced."
                    )
                entry.module_names = {id(m): name for name, m in module.named_modules()}
            # The mode is read again, because a program may set ``training`` without ``train()``.
            entry.invalidate_mode()
            forward.measures_outputs, forward.observes_modules = is_measured, True
            if is_measured:
                forward.measured_networks += (entry.index,)
            if is_inspected:
                self._inspector.begin(entry, module, args, kwargs)
            thread.step.add_cost(tracer.clock() - began_ns)
        return entry

    def on_module_call(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Inspect and measure a call inside a network, and store an unregistered module."""
        tracer, thread = self._tracer, self._tracer.local.thread
        began_ns = tracer.clock()
        entry: NetworkEntry = thread.forward.entry
        name = (entry.module_names or {}).get(id(module))
        if name is None:
            if id(module) not in entry.unregistered_modules and any(
                p.requires_grad for p in module.parameters()
            ):
                entry.unregistered_modules[id(module)] = weakref.ref(module)
                tracer.objects.has_changed = True
        else:
            self._inspector.on_module_call(name, module, args, kwargs, output)
            if thread.forward.measures_outputs and not module._modules:
                self._measure(entry, name, module, output)
        thread.step.add_cost(tracer.clock() - began_ns)

    def _on_return(self, returned: NetworkReturned) -> None:
        tracer, thread = self._tracer, returned.thread
        entry, output = returned.entry, returned.output
        if self._inspector.running_passes:
            began_ns = tracer.clock()
            self._inspector.on_module_call(
                "", returned.module, returned.args, returned.kwargs, output
            )
            self._inspector.end()
            thread.step.add_cost(tracer.clock() - began_ns)
        if thread.forward.measures_outputs:
            thread.forward.measures_outputs = False
            began_ns = tracer.clock()
            self._measure(entry, "", returned.module, output)
            thread.step.add_cost(tracer.clock() - began_ns)
        tensor = output if type(output) is Tensor else first_tensor(output)
        has_grad = tensor.requires_grad if tensor is not None else torch.is_grad_enabled()
        thread.call.output = None if tensor is None else weakref.ref(tensor)
        if entry.output_row_shape is None and tensor is not None and not tensor.is_nested:
            entry.output_row_shape = tuple(tensor.shape[1:])
        code_key = has_grad, thread.last_loader
        code = entry.forward_codes.get(code_key)
        if code is None:
            flags = (*("grad",) * has_grad, *entry.mode_flags())
            code = entry.forward_codes[code_key] = tracer.events.code(
                "forward", entry.index, thread.last_loader, flags
            )
        tracer.events.record(thread, code)

    def _measure(self, entry: NetworkEntry, name: str, module: nn.Module, output: Any) -> None:
        tracer, statistics = self._tracer, self._tracer.local.thread.step.output_statistics
        if len(statistics) < tracer.settings.max_modules and not in_functorch_transform():
            statistics.append(
                request_output_statistics(
                    entry.index, name, module, output, tracer.recorder.device_reads
                )
            )


def _watch_modes(tracer: TracerContext) -> None:
    original = nn.Module.train

    @functools.wraps(original)
    def train(module: Any, mode: bool = True) -> Any:
        thread = tracer.local.thread
        # ``train`` calls itself for every child. Only the outermost call is recorded.
        if not tracer.is_on or thread.forward.is_changing_mode:
            return original(module, mode)
        # ``eval()`` calls ``train(False)``. Other calls of ``train(False)`` are usually
        # ``train(was_training)``, which restores an earlier mode.
        is_restored = not mode and sys._getframe(1).f_code is not nn.Module.eval.__code__
        thread.forward.is_changing_mode = True
        try:
            result = original(module, mode)
        finally:
            thread.forward.is_changing_mode = False
        flags = ("train",) if mode else ("eval", *("restored",) * is_restored)
        tracer.run_safely(_record_mode, tracer, module, flags)
        return result

    tracer.patches.replace(nn.Module, "train", train)


def _record_mode(tracer: TracerContext, module: nn.Module, flags: tuple[str, ...]) -> None:
    entry = tracer.objects.networks.get(module)
    tracer.objects.invalidate_modes()
    index = -1 if entry is None else entry.index
    tracer.events.record_event(tracer.local.thread, "mode", index, flags=flags)
