"""Fast path for repeated steps: records only the step pattern and the losses.

Steps that repeat a known pattern are predicted: their events are only compared with the prediction,
and the loss is stored. Recording every short step fully would cost a few percent of its time.

Hooks do not know about predictions. This module wraps the few hooks that do much work at every
step. A wrapper calls the original function of torch if the call is predicted; otherwise it calls
the hook. Without this module, all steps are recorded fully.
"""

import functools
from collections.abc import Callable
from math import isfinite
from typing import Any

import torch
from torch import Tensor, compiler, nn
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sluice.trace.inspection.plain_tensors import tensor_refs
from sluice.trace.prediction.step_predictor import StepPredictor
from sluice.trace.program_events import BackwardEnded, NetworkReturned, NonFiniteNorm
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer_context import TracerContext


def install_fast_path(tracer: TracerContext) -> None:
    """Make ``tracer.patches`` wrap the slow hooks among those that are installed later."""
    predictor = StepPredictor(tracer)
    wrappers: dict[tuple[Any, str], Callable[..., Any]] = {
        (nn.Module, "__call__"): _wrap_call,
        (torch.autograd, "backward"): _wrap_backward,
        (torch.optim.Optimizer, "zero_grad"): _wrap_zero_grad,
        (torch.nn.utils, "clip_grad_norm_"): functools.partial(_wrap_clip, "norm"),
        (torch.nn.utils, "clip_grad_value_"): functools.partial(_wrap_clip, "value"),
        (register_optimizer_step_pre_hook, ""): _wrap_before_step,
        (register_optimizer_step_post_hook, ""): _wrap_after_step,
    }

    def wrap(owner: Any, name: str, original: Any, hook: Any) -> Any:
        wrapper = wrappers.get((owner, name))
        return hook if wrapper is None else wrapper(tracer, predictor, original, hook)

    tracer.patches.wrap = wrap


def _wrap_call(tracer: TracerContext, predictor: StepPredictor, original: Any, hook: Any) -> Any:
    """Return a wrapper for ``Module.__call__``, which also runs for modules inside a network."""
    local = tracer.local
    # False if another library had replaced ``__call__`` before the trace began.
    is_torch_call = original is nn.Module._wrapped_call_impl

    @functools.wraps(original)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        thread = local.thread
        forward = thread.forward
        if forward.is_running:
            if not forward.observes_modules or compiler.is_compiling():
                # Do the same as ``original``, but with one function call less.
                if is_torch_call and module._compiled_call_impl is None:
                    return module._call_impl(*args, **kwargs)
                return original(module, *args, **kwargs)
            return hook(module, *args, **kwargs)
        prediction = thread.prediction
        if (
            prediction.position < 0
            or not tracer.is_on
            or is_dynamo_compiling()
            or compiler._is_compiling_flag
            or thread.backward.is_running
        ):
            return hook(module, *args, **kwargs)
        entry: Any = tracer.objects.networks.by_id.get(id(module))
        if entry is None or entry.ref() is not module or not torch.is_grad_enabled():
            tracer.run_safely(predictor.stop, thread)
            return hook(module, *args, **kwargs)
        if entry.has_no_parameters:
            return original(module, *args, **kwargs)
        # Store references to the inputs, which are needed if the loss turns out to be non-finite.
        network_call = thread.call
        network_call.network, network_call.inputs = entry.index, tensor_refs(args, kwargs)
        forward.is_running = True
        try:
            output = original(module, *args, **kwargs)
        finally:
            forward.is_running = False
        has_grad = type(output) is Tensor and output.requires_grad
        if (
            entry.forward_codes.get((has_grad, thread.last_loader))
            == prediction.codes[prediction.position]
        ):
            prediction.position += 1
        else:
            returned = NetworkReturned(thread, entry, module, args, kwargs, output)
            tracer.run_safely(tracer.bus.publish, returned)
        return output

    return call


def _wrap_backward(
    tracer: TracerContext, predictor: StepPredictor, original: Any, hook: Any
) -> Any:
    local = tracer.local

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        thread = local.thread
        backward_state, prediction = thread.backward, thread.prediction
        if prediction.position < 0 or not tracer.is_on or backward_state.is_running:
            return hook(tensors, *args, **kwargs)
        try:
            is_matched = (
                type(tensors) is Tensor  # not a generator, which can be read only once
                and prediction.codes[prediction.position] in tracer.events.backward_codes
                and not backward_state.is_scaled
                and tensors.numel() == 1
            )
            if is_matched:
                # Reading a value from another device would synchronize with it.
                value = tensors.item() if tensors.is_cpu else tensors.detach().reshape(())
                is_matched = isfinite(value) if type(value) is float else not tensors.is_meta
            if is_matched:
                thread.step.losses.append(value)
            else:
                predictor.stop(thread)
        except Exception as error:  # as in ``Tracer.run_safely``
            tracer.fail(error)
            is_matched = False
        if not is_matched:
            return hook(tensors, *args, **kwargs)
        backward_state.is_running = True
        try:
            original(tensors, *args, **kwargs)
        finally:
            backward_state.is_running = False
        if prediction.position >= 0:
            prediction.position += 1
        else:  # an unexpected event during the pass ended the prediction
            ended = BackwardEnded(thread, tensors, backward_state.is_scaled)
            tracer.run_safely(tracer.bus.publish, ended)
        return None

    return backward


def _wrap_zero_grad(
    tracer: TracerContext, predictor: StepPredictor, original: Any, hook: Any
) -> Any:
    local = tracer.local

    def stop_if_unexpected(thread: ThreadState, optimizer: Any) -> None:
        """End the prediction if this optimizer was not expected to clear its gradients now."""
        prediction = thread.prediction
        entry = tracer.objects.optimizers.get_or_add(optimizer)
        if entry.zero_grad_code != prediction.codes[prediction.position]:
            predictor.stop(thread)

    @functools.wraps(original)
    def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        thread = local.thread
        prediction = thread.prediction
        if prediction.position >= 0 and tracer.is_on:
            entry = prediction.optimizer_entry
            if (
                prediction.codes[prediction.position] == entry.zero_grad_code
                and entry.ref() is optimizer
            ):
                original(optimizer, *args, **kwargs)
                prediction.position += 1
                return
            tracer.run_safely(stop_if_unexpected, thread, optimizer)
        hook(optimizer, *args, **kwargs)

    return zero_grad


def _wrap_clip(
    kind: str, tracer: TracerContext, predictor: StepPredictor, original: Any, hook: Any
) -> Any:
    local = tracer.local

    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        thread = local.thread
        prediction = thread.prediction
        if prediction.position < 0 or not tracer.is_on:
            return hook(parameters, *args, **kwargs)
        entry = prediction.optimizer_entry
        if prediction.codes[prediction.position] != entry.clip_codes.get(kind):
            tracer.run_safely(predictor.stop, thread)
            return hook(parameters, *args, **kwargs)
        try:
            norm = original(parameters, *args, **kwargs)
        except RuntimeError:  # a non-finite norm with error_if_nonfinite=True
            tracer.run_safely(tracer.bus.publish, NonFiniteNorm(thread))
            raise
        if prediction.position >= 0:
            prediction.position += 1
        return norm

    return clip


def _wrap_before_step(tracer: TracerContext, predictor: StepPredictor, _: Any, hook: Any) -> Any:
    local = tracer.local

    def before_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thread = local.thread
        prediction = thread.prediction
        step_call = thread.optimizer_call
        if prediction.position >= 0 and tracer.is_on and step_call.running_optimizer is None:
            entry = prediction.optimizer_entry
            if (
                prediction.position == prediction.optimizer_step_position
                and entry.ref() is optimizer
                and not kwargs
                and len(args) < 2  # no closure
                and len(optimizer.param_groups) == entry.num_groups
            ):
                prediction.position += 1
                step_call.running_optimizer, step_call.entry = optimizer, entry
                return None
            tracer.run_safely(predictor.stop, thread)
        return hook(optimizer, args, kwargs)

    return before_step


def _wrap_after_step(tracer: TracerContext, predictor: StepPredictor, _: Any, hook: Any) -> Any:
    local = tracer.local

    def after_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        thread = local.thread
        if thread.prediction.position >= 0 and tracer.is_on:
            if thread.optimizer_call.running_optimizer is optimizer:
                thread.optimizer_call.running_optimizer = None
                try:
                    predictor.end_step(thread)
                except Exception as error:  # as in ``Tracer.run_safely``
                    tracer.fail(error)
            return
        hook(optimizer, args, kwargs)

    return after_step
