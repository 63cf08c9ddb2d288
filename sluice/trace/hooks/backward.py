"""Hooks for ``loss.backward()``, ``torch.autograd.backward`` and ``torch.autograd.grad``."""

import functools
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from sluice.trace.hooks.gradient_edits import snapshot_gradients
from sluice.trace.hooks.loss_reduction import is_unscaled_mean
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer import Tracer

_UNSCALED_MEAN: tuple[str, ...] = ("unscaled mean",)


def watch_backward(tracer: Tracer) -> None:
    """Record every backward pass that the program starts."""
    backward, grad, local = torch.autograd.backward, torch.autograd.grad, tracer.local

    @functools.wraps(backward)
    def watched_backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        thread = local.thread
        if not tracer.is_on or thread.in_backward:  # checkpointing nests backward passes
            return backward(tensors, *args, **kwargs)
        # Only a single tensor is inspected: iterating over a generator would consume it.
        loss = tensors if type(tensors) is Tensor else None
        try:
            if thread.position >= 0:
                if (
                    loss is not None
                    and thread.expected_codes[thread.position] in tracer.all_backward_codes
                    and not thread.has_scaled_loss
                    and loss.numel() == 1
                ):
                    # Reading a value from another device would synchronize with it.
                    value = loss.item() if loss.is_cpu else loss.detach().reshape(())
                    if type(value) is not float or isfinite(value):
                        thread.losses.append(value)
                    else:
                        tracer.fast_path.stop(thread)
                else:
                    tracer.fast_path.stop(thread)
            if thread.position < 0:
                _before(tracer, thread, loss)
        except Exception as error:  # as in ``Tracer.run_safely``
            tracer.fail(error)
        thread.in_backward = True
        try:
            backward(tensors, *args, **kwargs)
        finally:
            thread.in_backward = False
        if thread.position >= 0:
            thread.position += 1
            return
        try:
            _after(tracer, thread, is_leaf=loss is not None and loss.is_leaf)
        except Exception as error:  # as in ``Tracer.run_safely``
            tracer.fail(error)
        if tracer.nonfinite_guard is not None:
            tracer.nonfinite_guard.after_backward(tensors)

    @functools.wraps(grad)
    def watched_grad(*args: Any, **kwargs: Any) -> Any:
        gradients = grad(*args, **kwargs)
        if tracer.is_on and not tracer.local.thread.in_backward:
            tracer.run_safely(tracer.record_event, tracer.local.thread, "grad")
        return gradients

    tracer.patches.replace_function(torch.autograd, "backward", watched_backward)
    tracer.patches.replace_function(torch.autograd, "grad", watched_grad)


def _before(tracer: Tracer, thread: ThreadState, loss: Tensor | None) -> None:
    for entry in tracer.objects.optimizers.entries:
        if not entry.gradient_tracker.is_cleared:
            entry.gradient_tracker.before_backward()
    if thread.stepping_optimizer is not None and not thread.has_closure:
        thread.stepping_optimizer = None  # an optimizer step raised and the program caught it
    if tracer.forward_inspector.is_due:
        began = tracer.clock()
        tracer.forward_inspector.on_backward(loss)
        thread.statistics_ns += tracer.clock() - began
    if tracer.manual_updates is not None:
        tracer.manual_updates.before_backward(thread)
    if (
        thread.last_network in tracer.functional_models.indices
        and loss is not None
        and loss.numel() == 1
    ):
        tracer.functional_models.on_loss(thread, loss)
    group = thread.call_group
    if group is not None and group.awaits_backward:
        group.awaits_backward = False
        if tracer.inputs is not None:
            tracer.inputs.on_backward(group)
    thread.is_unscaled_mean = False
    if loss is not None and loss.numel() == 1:
        # Reading a value from another device would synchronize with it.
        value = loss.item() if loss.is_cpu else loss.detach().reshape(())
        thread.losses.append(value)
        means = thread.mean_losses
        thread.is_unscaled_mean = (bool(means) and means[-1]() is loss) or is_unscaled_mean(
            loss, thread
        )
        manual_losses = tracer.manual_losses
        if manual_losses is not None:
            manual_losses.track_form(loss)
            if manual_losses.passes_left or tracer.samples_statistics:
                manual_losses.inspect(loss)
        # The cause of a non-finite loss can only be found while its graph and inputs exist.
        if type(value) is float and not isfinite(value) and tracer.losses is not None:
            tracer.losses.on_nonfinite_loss()
            tracer.gradient_checks.on_nonfinite_loss()


def _after(tracer: Tracer, thread: ThreadState, *, is_leaf: bool) -> None:
    thread.is_zeroed_after_backward = False
    if tracer.manual_updates is not None:
        tracer.manual_updates.after_backward(thread)
    tracer.functional_models.release()
    flags = _UNSCALED_MEAN if thread.is_unscaled_mean else ()
    if is_leaf:
        flags = ("leaf", *flags)
    if thread.has_scaled_loss:
        flags, thread.has_scaled_loss = ("scaled", *flags), False
    else:  # overflow under a loss scale that is too large is expected
        tracer.gradient_checks.after_backward(thread)
    if len(thread.losses) > 1:
        snapshot_gradients(tracer)
    code = tracer.backward_event_codes.get(flags)
    if code is None:
        code = tracer.backward_event_codes[flags] = tracer.event_code("backward", flags=flags)
        tracer.all_backward_codes.add(code)
    tracer.record_code(thread, code)
