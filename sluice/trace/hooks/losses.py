"""Hooks for the loss functions and the embedding lookup of ``torch.nn.functional``.

Modules such as ``nn.CrossEntropyLoss`` and ``nn.Embedding`` call these functions.
"""

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, compiler
from torch.compiler import is_dynamo_compiling
from torch.nn import functional as F

from sluice.trace.hooks.evaluations import EvaluationPasses
from sluice.trace.hooks.index_bounds import CLASS_LOSSES, find_out_of_range
from sluice.trace.hooks.inputs import InputWatch
from sluice.trace.hooks.loss_records import loss_record
from sluice.trace.hooks.target_sampler import TargetSampler
from sluice.trace.inspection.functorch import in_functorch_transform
from sluice.trace.inspection.plain_tensors import is_plain_dense
from sluice.trace.inspection.targets import find_shifted_input
from sluice.trace.program_events import (
    NonFiniteLoss,
    PhaseBegan,
    TraceBegan,
    TraceEnded,
    WeightsLoaded,
)
from sluice.trace.recording.log_spaced_sampler import LogSpacedSampler
from sluice.trace.tracer_context import TracerContext

LOSS_FUNCTIONS = (
    "cross_entropy",
    "nll_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "gaussian_nll_loss",
    "poisson_nll_loss",
    "kl_div",
    "multi_margin_loss",
    "soft_margin_loss",
    "hinge_embedding_loss",
)
_LOSSES_WITH_SAMPLED_TARGETS = (
    *CLASS_LOSSES,
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "gaussian_nll_loss",
)
"""Losses whose targets are sampled together with the input rows of the network."""
_MEAN_REDUCTIONS = ("mean", "batchmean")
"""Values of ``reduction`` that average the loss. 'batchmean' is the mean over rows
in ``kl_div``."""
_NUM_FIRST_CALLS = 8
"""Number of first calls of a training phase that are all inspected, for each loss function, network
and gradient mode."""
_MAX_CALL_COUNTERS = 32
"""Maximum number of combinations of loss function, network and gradient mode. The calls of further
combinations are not inspected."""
_NUM_SAMPLED_STEPS = 128
"""After the first calls, one call of each step with statistics is inspected, for this number of
steps. Then the intervals between inspected calls grow."""
_NUM_CALLS_WITH_SAMPLED_TARGETS = 64
"""Number of first training calls whose targets are sampled, for each training phase, loss function
and network."""
_NUM_CHECKED_CALLS = 32
"""Number of first calls whose indices are checked before the call, if CUDA is available. Calls of
all functions with class ids or embedding indices count together."""
_MAX_FAILED_CALLS = 8
"""Maximum number of calls in a trace that are inspected after they raised an error."""


def _wrap_loss(
    tracer: TracerContext, watch: "LossWatch", kind: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    is_loss, local, ref = kind != "embedding", tracer.local, weakref.ref

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if not tracer.is_on or is_dynamo_compiling() or compiler._is_compiling_flag:
            return original(*args, **kwargs)
        # Indices are checked before the call: after an index error on a GPU, no tensor can be read.
        if watch.checks_indices:
            tracer.run_safely(watch.check_before_call, kind, args, kwargs)
        try:
            result = original(*args, **kwargs)
        except (IndexError, RuntimeError):
            tracer.run_safely(watch.on_error, kind, args, kwargs)
            raise
        if is_loss and type(result) is Tensor:
            if result.requires_grad:
                thread = local.thread
                # Weak references allow the program to free large tensors.
                has_two_tensors = len(args) == 2 and type(args[0]) is type(args[1]) is Tensor
                thread.loss_calls.last = (
                    (kind, ref(args[0]), ref(args[1]), kwargs) if has_two_tensors else None
                )
                if thread.skips_details and not watch.evaluations.open_passes:
                    return result
            try:
                watch.on_loss(kind, args, kwargs, result)
            except Exception as error:  # inlines ``run_safely``, to save a call
                tracer.fail(error)
        return result

    # torch.jit.script compiles the original function.
    function.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]
    return function


class _CallCounter:
    """Counts the calls of one loss function for one network, with or without gradients."""

    def __init__(self) -> None:
        self.num_calls = 0
        """Number of calls since the training phase began. Calls that are skipped because their step
        is on the tracer's fast path do not count."""
        self.sampler = LogSpacedSampler(_NUM_SAMPLED_STEPS)
        """Selects the calls that are inspected after the first calls."""
        self.last_sampled_step = -1
        """Number of the step at which a call was last inspected or rejected by the sampler; -1
        before the first call."""


class LossWatch:
    """Inspects arguments of loss functions and of embedding lookups in all threads.

    ``kind`` is the name of the called function.
    """

    def __init__(self, tracer: TracerContext, inputs: InputWatch) -> None:
        self._tracer, self._inputs = tracer, inputs
        self._signatures = {kind: inspect.signature(getattr(F, kind)) for kind in LOSS_FUNCTIONS}
        self._reduction_positions = {
            kind: list(signature.parameters).index("reduction")
            for kind, signature in self._signatures.items()
        }
        """Position of the argument ``reduction`` of each loss function."""
        self._signatures["embedding"] = inspect.signature(F.embedding)
        self._reset()

    def subscribe(self) -> None:
        """Inspect the calls of loss functions and of embedding lookups from now on."""
        tracer = self._tracer
        for kind in (*LOSS_FUNCTIONS, "embedding"):
            original = getattr(F, kind)
            tracer.patches.replace_function(F, kind, _wrap_loss(tracer, self, kind, original))
        tracer.bus.subscribe(TraceBegan, lambda _: self._reset())
        tracer.bus.subscribe(PhaseBegan, lambda _: self._begin_phase())
        tracer.bus.subscribe(NonFiniteLoss, self._on_nonfinite_loss)
        # Losses before and after a load belong to different evaluations: the weights differ.
        tracer.bus.subscribe(WeightsLoaded, lambda _: self.evaluations.close())
        tracer.bus.subscribe(TraceEnded, lambda _: self.evaluations.close())

    def _reset(self) -> None:
        self._counters: dict[tuple[str, int, bool], _CallCounter] = {}
        self.evaluations = EvaluationPasses(self._tracer)
        self._target_sampler = TargetSampler(self._tracer)
        self._num_failed_calls = 0
        self._num_checked_calls = 0
        self.checks_indices = torch.cuda.is_available()
        """Whether indices are checked before a call: with CUDA, for the first calls."""

    def _begin_phase(self) -> None:
        """Inspect first calls and sample targets again, as at the start of a trace."""
        for counter in self._counters.values():
            counter.num_calls = 0
        self._target_sampler.begin_phase()

    def on_loss(
        self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor
    ) -> None:
        """Inspect one call that returned a loss."""
        if result.is_meta:
            return
        tracer = self._tracer
        thread, is_learning = tracer.local.thread, result.requires_grad
        index = self._reduction_positions[kind]
        reduction = args[index] if len(args) > index else kwargs.get("reduction", "mean")
        if is_learning:
            if self.evaluations.open_passes:
                self.evaluations.close()
            if reduction == "mean" and not result.dim():
                thread.loss_calls.mean_loss_refs.append(weakref.ref(result))
        elif thread.forward.is_probe or in_functorch_transform():
            return
        else:
            loss = result.detach()
            if reduction not in _MEAN_REDUCTIONS:
                loss = self._mean_over_targets(kind, args, kwargs, loss)
            self.evaluations.add(
                kind, loss.reshape(()).float() if loss.numel() == 1 else loss.float().mean()
            )
        counter = self._counters.get((kind, thread.call.network, is_learning))
        if counter is None:
            if len(self._counters) >= _MAX_CALL_COUNTERS:
                return
            counter = self._counters[kind, thread.call.network, is_learning] = _CallCounter()
        counter.num_calls += 1
        if (
            counter.num_calls > _NUM_CALLS_WITH_SAMPLED_TARGETS
            and not tracer.sampling.samples_statistics
        ):
            return
        is_early_call = counter.num_calls <= _NUM_FIRST_CALLS
        is_sampled_step = (
            tracer.sampling.samples_statistics
            and counter.last_sampled_step != tracer.steps.last_step
        )
        samples_targets = (
            is_learning
            and counter.num_calls <= _NUM_CALLS_WITH_SAMPLED_TARGETS
            and kind in _LOSSES_WITH_SAMPLED_TARGETS
        )
        if not (is_early_call or is_sampled_step or samples_targets) or in_functorch_transform():
            return
        if is_early_call and is_learning and len(args) > 1:
            thread.loss_calls.shifted_input = find_shifted_input(thread.call.inputs, args[1])
        if is_early_call or is_sampled_step:
            counter.last_sampled_step = tracer.steps.last_step
            if is_early_call or counter.sampler.advance():
                self._inspect(kind, args, kwargs, result)
        if samples_targets:
            arguments = self._bind(kind, args, kwargs)
            self._target_sampler.add(kind, arguments.get("input"), arguments.get("target"))

    def add_targets(self, kind: str, loss_input: Tensor | None, target: Tensor) -> None:
        """Sample the targets of a loss that was identified from its autograd graph."""
        if kind in _LOSSES_WITH_SAMPLED_TARGETS:
            self._target_sampler.add(kind, loss_input, target)

    def on_error(self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check the indices of a failed call; record a failed call of ``binary_cross_entropy``."""
        if self._num_failed_calls >= _MAX_FAILED_CALLS:
            return
        self._num_failed_calls += 1
        self._check_indices(kind, args, kwargs)
        if kind == "binary_cross_entropy":
            self._inspect(kind, args, kwargs, None)

    def check_before_call(self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check the indices of one of the first calls, before a GPU uses them."""
        if kind not in (*CLASS_LOSSES, "embedding"):
            return
        self._num_checked_calls += 1
        if self._num_checked_calls >= _NUM_CHECKED_CALLS:
            self.checks_indices = False
        self._check_indices(kind, args, kwargs)

    def _on_nonfinite_loss(self, event: NonFiniteLoss) -> None:
        """Record non-finite inputs and targets, and the last call of a loss.

        The call is recorded only if its targets may be class ids. The record shows whether all of
        its targets are ignored.
        """
        thread = event.thread
        for ref in thread.call.inputs:
            tensor = ref()
            if tensor is not None:
                self._inputs.record_nonfinite(tensor, "input", is_learning=True)
        if thread.loss_calls.last is None:
            return
        kind, input_ref, target_ref, kwargs = thread.loss_calls.last
        target = target_ref()
        if target is None:
            return
        self._inputs.record_nonfinite(target, "target", is_learning=True)
        if kind in CLASS_LOSSES:
            loss_input = input_ref()
            if loss_input is None:  # the program freed it
                loss_input = torch.full((1,), torch.nan)
            self._inspect(kind, (loss_input, target), kwargs, None)

    def _bind(self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = self._signatures[kind].bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def _mean_over_targets(
        self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], loss: Tensor
    ) -> Tensor:
        """Return the mean over the targets of a loss with reduction 'sum' or 'none'."""
        target = self._bind(kind, args, kwargs).get("target")
        loss_sum = loss.sum()
        return loss_sum / max(target.numel(), 1) if isinstance(target, Tensor) else loss_sum

    def _inspect(
        self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor | None
    ) -> None:
        tracer, thread = self._tracer, self._tracer.local.thread
        arguments = self._bind(kind, args, kwargs)
        loss_input: Any = arguments.get("input")
        target: Any = arguments.get("target")
        if not is_plain_dense(loss_input) or not is_plain_dense(target) or not loss_input.numel():
            return
        began_ns = tracer.clock()
        is_learning = torch.is_grad_enabled() if result is None else result.requires_grad
        with torch.no_grad():
            record = loss_record(
                kind,
                arguments,
                result,
                thread=thread,
                step=tracer.steps.last_step,
                is_learning=is_learning,
            )
        tracer.recorder.write("loss", record)
        if tracer.sampling.samples_statistics:
            thread.step.add_cost(tracer.clock() - began_ns)

    def _check_indices(self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        record = find_out_of_range(kind, self._bind(kind, args, kwargs), self._tracer)
        if record is not None:
            self._tracer.recorder.write("ids", record)
