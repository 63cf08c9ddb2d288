"""Fast path for repeated steps: records only the step pattern and the losses.

Recording every short step fully would cost some percent of its time. A step pattern is predicted
once it has followed the previous pattern often enough. Each event of a predicted step is only
compared with the prediction, and the loss is stored. The first mismatch falls back to full
recording, including the events already matched. One step in ``full_sample_every`` is always
recorded fully. So the order of events and the losses are known for every step; gradient state,
learning rates, norms and times only for the fully recorded steps.

Hooks do not know about predictions. This module wraps a few of them, those that do much at every
step: a wrapper calls the original function of torch if the call is predicted, and otherwise the
hook. Without this module all steps are recorded fully.
"""

import functools
from collections.abc import Callable, Sequence
from itertools import chain
from math import isfinite
from typing import Any, get_args

import torch
from torch import Tensor, compiler, nn
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sluice.trace.inspection.plain_tensors import tensor_refs
from sluice.trace.program_events import (
    BackwardEnded,
    NetworkReturned,
    NonFiniteNorm,
    OptimizerCreated,
    StepRecorded,
    StepsPassedOn,
    StructureChanged,
    TraceBegan,
    UnexpectedEvent,
)
from sluice.trace.sink import EventSink
from sluice.trace.step_patterns import StepPatterns
from sluice.trace.thread_state import Prediction, StepPattern, ThreadState

Interruption = UnexpectedEvent | StructureChanged | OptimizerCreated | NonFiniteNorm
_INTERRUPTIONS: tuple[type[Interruption], ...] = get_args(Interruption)
"""Events that end a prediction."""


class FastPath:
    """Predicts the next step pattern of each thread, and follows it event by event."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._reset()
        sink.bus.subscribe(TraceBegan, lambda _: self._reset())
        sink.bus.subscribe(StepsPassedOn, self._learn)
        sink.bus.subscribe(StepRecorded, self._start)
        for kind in _INTERRUPTIONS:
            sink.bus.subscribe(kind, self._on_interruption)

    def _on_interruption(self, event: Interruption) -> None:
        self.stop(event.thread)

    def _reset(self) -> None:
        sink = self._sink
        self._patterns = StepPatterns(sink.events.interner, sink.objects)
        self._repeats = 0
        """Number of predicted steps between two fully recorded ones; 0 if steps are long."""

    def _learn(self, passed: StepsPassedOn) -> None:
        sampling, settings = self._sink.sampling, self._sink.settings
        is_fast = sampling.budget.step_ns < settings.fast_step_s * 1e9
        is_allowed = is_fast and not sampling.every_step_needed_by
        self._repeats = settings.full_sample_every - 1 if is_allowed else 0
        if self._repeats:
            self._patterns.add(passed.steps)

    def _start(self, recorded: StepRecorded) -> None:
        """Predict the pattern after the step that just ended, if there is a known successor."""
        if not self._repeats:
            return
        thread = recorded.thread
        pattern = self._patterns.get(recorded.codes, thread.index)
        following = None if pattern is None else pattern.successor
        if following is None:
            return
        left = self._repeats
        if following is not pattern:
            # Even, so that of two alternating optimizers both get fully recorded steps.
            left -= left % 2
        left = min(left, recorded.due_step - self._sink.steps.last - 1)
        if left > 0:
            thread.prediction.repeats_left = left
            thread.skips_details = True
            _expect(thread.prediction, following)

    def stop(self, thread: ThreadState) -> None:
        """Record the running step fully from here on, including the events already matched."""
        prediction = thread.prediction
        if prediction.position < 0:
            return
        pattern = prediction.pattern
        assert pattern is not None  # because the running step is predicted
        matched, now = prediction.codes[: prediction.position], self._sink.clock()
        self._close(thread, pattern, matched)
        thread.step.events = [number for code in matched for number in (code, now)]
        zero, backward = pattern.optimizer_entry.zero_code, self._sink.events.backward_codes
        last = next((code for code in reversed(matched) if code == zero or code in backward), None)
        thread.backward.is_zeroed_since = last == zero

    def end_step(self, thread: ThreadState) -> None:
        """Store a step that matched its prediction, and predict the next one."""
        steps, prediction = self._sink.steps, thread.prediction
        pattern = prediction.pattern
        assert pattern is not None  # because the step was predicted
        steps.last = number = next(steps.numbers)
        if not pattern.repeated_steps:
            prediction.repeated_patterns.append(pattern)
        pattern.repeated_steps += number, thread.step.losses
        thread.step.losses = []
        prediction.repeats_left -= 1
        following = pattern.successor
        if following is pattern and prediction.repeats_left:
            prediction.position = 0
        elif following is not None and prediction.repeats_left:
            _expect(prediction, following)
        else:
            self._close(thread, pattern, ())

    def _close(self, thread: ThreadState, current: StepPattern, matched: Sequence[int]) -> None:
        """Report the predicted steps, and end the prediction.

        Args:
            thread: Thread of the steps.
            current: Pattern of the running step, or of the step that ended last.
            matched: Event codes of the running step so far.
        """
        sink, prediction = self._sink, thread.prediction
        prediction.position, thread.skips_details = -1, False
        thread.step.began_ns = sink.clock()
        patterns, prediction.repeated_patterns = prediction.repeated_patterns, []
        patterns.sort(key=_last_step)
        for pattern in patterns:
            repeated, pattern.repeated_steps = pattern.repeated_steps, []
            last, losses = repeated[-2:]
            thread.num_steps += len(repeated) // 2
            pattern.optimizer_entry.steps += len(repeated) // 2
            thread.last_loss = losses[-1] if losses else None
            sink.steps.add_repeated(
                last, thread.index, pattern.events_without_times, repeated, (), None, 0, 0, 0, 0
            )
        self._update_gradient_trackers(patterns, current, matched)

    def _update_gradient_trackers(
        self, patterns: Sequence[StepPattern], current: StepPattern, matched: Sequence[int]
    ) -> None:
        """Record the gradient state of the optimizers that stepped or are about to step.

        Args:
            patterns: Patterns repeated since the last fully recorded step, sorted by last step.
            current: Pattern of the running step, or of the step that ended last.
            matched: Event codes of the running step so far.
        """
        code_lists = [current.codes, *(pattern.codes for pattern in patterns)]
        backward, is_carried = self._sink.events.backward_codes, self._patterns.is_carried
        last_index = {pattern.optimizer_entry: i for i, pattern in enumerate(patterns)}
        for entry in {current.optimizer_entry: -1, **last_index}:
            tracker, zero, i = entry.gradient_tracker, entry.zero_code, last_index.get(entry, -1)
            since = [*chain.from_iterable(pattern.codes for pattern in patterns[i + 1 :]), *matched]
            has_zero_event = any(zero in codes for codes in code_lists)
            is_kept = has_zero_event or is_carried(current if i < 0 else patterns[i])
            if zero in since or (since and not is_kept):
                tracker.is_cleared = True  # clearing without an event may have happened
            elif i >= 0:
                # The gradients of its last step are still in place.
                tracker.record_gradients(may_have_changed=not backward.isdisjoint(since))


def _expect(prediction: Prediction, pattern: StepPattern) -> None:
    prediction.pattern, prediction.codes = pattern, pattern.codes
    prediction.step_position = len(pattern.codes) - 2
    prediction.optimizer_entry, prediction.position = pattern.optimizer_entry, 0


def _last_step(pattern: StepPattern) -> int:
    step: int = pattern.repeated_steps[-2]
    return step


def install_fast_path(sink: EventSink) -> None:
    """Wrap the hooks that are installed later."""
    path = FastPath(sink)
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
        return hook if wrapper is None else wrapper(sink, path, original, hook)

    sink.patches.wrap = wrap


def _wrap_call(sink: EventSink, path: FastPath, original: Any, hook: Any) -> Any:
    """Return ``Module.__call__``, which also runs at every call of a module inside a network."""
    local = sink.local
    # False if another library replaced ``__call__`` before.
    is_torch_call = original is nn.Module._wrapped_call_impl

    @functools.wraps(original)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        thread = local.thread
        forward = thread.forward
        if forward.is_running:
            if not forward.inspects_modules or compiler.is_compiling():
                if is_torch_call and module._compiled_call_impl is None:  # as torch itself does
                    return module._call_impl(*args, **kwargs)
                return original(module, *args, **kwargs)
            return hook(module, *args, **kwargs)
        prediction = thread.prediction
        if (
            prediction.position < 0
            or not sink.is_on
            or is_dynamo_compiling()
            or compiler._is_compiling_flag
            or thread.backward.is_running
        ):
            return hook(module, *args, **kwargs)
        entry = sink.objects.networks.by_id.get(id(module))
        known: Any = None if entry is None else entry.ref()
        if entry is None or known is not module or not torch.is_grad_enabled():
            sink.run_safely(path.stop, thread)
            return hook(module, *args, **kwargs)
        if entry.has_no_parameters:
            return original(module, *args, **kwargs)
        # The inputs are needed if the loss turns out to be non-finite.
        last = thread.call
        last.network, last.inputs = entry.index, tensor_refs(args, kwargs)
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
            sink.run_safely(sink.bus.publish, returned)
        return output

    return call


def _wrap_backward(sink: EventSink, path: FastPath, original: Any, hook: Any) -> Any:
    local = sink.local

    def matches(thread: ThreadState, loss: Any) -> bool:
        """Store the loss of a predicted backward pass; stop the prediction if it is unusual."""
        prediction = thread.prediction
        if (
            type(loss) is Tensor  # iterating over a generator would consume it
            and prediction.codes[prediction.position] in sink.events.backward_codes
            and not thread.backward.is_scaled
            and loss.numel() == 1
        ):
            # Reading a value from another device would synchronize with it.
            value = loss.item() if loss.is_cpu else loss.detach().reshape(())
            if type(value) is not float or isfinite(value):
                thread.step.losses.append(value)
                return True
        path.stop(thread)
        return False

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        thread = local.thread
        running, prediction = thread.backward, thread.prediction
        if prediction.position < 0 or not sink.is_on or running.is_running:
            return hook(tensors, *args, **kwargs)
        is_matched = False
        try:
            is_matched = matches(thread, tensors)
        except Exception as error:  # as in ``Tracer.run_safely``
            sink.fail(error)
        if not is_matched:
            return hook(tensors, *args, **kwargs)
        running.is_running = True
        try:
            original(tensors, *args, **kwargs)
        finally:
            running.is_running = False
        if prediction.position >= 0:
            prediction.position += 1
        else:  # the program did something else during the pass
            sink.run_safely(sink.bus.publish, BackwardEnded(thread, tensors, running.is_scaled))
        return None

    return backward


def _wrap_zero_grad(sink: EventSink, path: FastPath, original: Any, hook: Any) -> Any:
    local = sink.local

    def stop_if_unexpected(thread: ThreadState, optimizer: Any) -> None:
        """End the prediction if this optimizer was not expected to clear its gradients now."""
        prediction = thread.prediction
        entry = sink.objects.optimizers.get_or_add(optimizer)
        if entry.zero_code != prediction.codes[prediction.position]:
            path.stop(thread)

    @functools.wraps(original)
    def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        thread = local.thread
        prediction = thread.prediction
        if prediction.position >= 0 and sink.is_on:
            entry = prediction.optimizer_entry
            if (
                prediction.codes[prediction.position] == entry.zero_code
                and entry.ref() is optimizer
            ):
                original(optimizer, *args, **kwargs)
                prediction.position += 1
                return
            sink.run_safely(stop_if_unexpected, thread, optimizer)
        hook(optimizer, *args, **kwargs)

    return zero_grad


def _wrap_clip(flag: str, sink: EventSink, path: FastPath, original: Any, hook: Any) -> Any:
    local = sink.local

    @functools.wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        thread = local.thread
        prediction = thread.prediction
        if prediction.position < 0 or not sink.is_on:
            return hook(parameters, *args, **kwargs)
        entry = prediction.optimizer_entry
        if prediction.codes[prediction.position] != entry.clip_codes.get(flag):
            sink.run_safely(path.stop, thread)
            return hook(parameters, *args, **kwargs)
        try:
            norm = original(parameters, *args, **kwargs)
        except RuntimeError:  # a non-finite norm with error_if_nonfinite=True
            sink.run_safely(sink.bus.publish, NonFiniteNorm(thread))
            raise
        if prediction.position >= 0:
            prediction.position += 1
        return norm

    return clip


def _wrap_before_step(sink: EventSink, path: FastPath, _: Any, hook: Any) -> Any:
    local = sink.local

    def before(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thread = local.thread
        prediction = thread.prediction
        if prediction.position >= 0 and sink.is_on and thread.optimizer.optimizer is None:
            entry = prediction.optimizer_entry
            if (
                prediction.position == prediction.step_position
                and entry.ref() is optimizer
                and not kwargs
                and len(args) < 2  # no closure
                and len(optimizer.param_groups) == entry.num_groups
            ):
                prediction.position += 1
                thread.optimizer.optimizer, thread.optimizer.entry = optimizer, entry
                return None
            sink.run_safely(path.stop, thread)
        return hook(optimizer, args, kwargs)

    return before


def _wrap_after_step(sink: EventSink, path: FastPath, _: Any, hook: Any) -> Any:
    local = sink.local

    def after(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        thread = local.thread
        if thread.prediction.position >= 0 and sink.is_on:
            if thread.optimizer.optimizer is optimizer:
                thread.optimizer.optimizer = None
                sink.run_safely(path.end_step, thread)
            return
        hook(optimizer, args, kwargs)

    return after
