"""Support for programs that replace a class of torch with their own code.

Such a program has a model without ``nn.Module``, a loss without a loss function of torch, or a
weight update without an optimizer. It calls no function that could be hooked. The tracer therefore
inspects the autograd graph and the weights at the backward passes.
"""

from sluice.trace.functional.functional_models import FunctionalModelWatch
from sluice.trace.functional.manual_losses import ManualLossWatch
from sluice.trace.functional.manual_updates import ManualUpdateWatch
from sluice.trace.functional.no_grad_listener import observe_no_grad_blocks
from sluice.trace.hooks.inputs import InputWatch
from sluice.trace.hooks.losses import LossWatch
from sluice.trace.program_events import (
    BackwardBegins,
    BackwardEnded,
    ModuleCalled,
    OptimizerCreated,
    ScalarBackwardBegins,
    StepBegins,
    TraceBegan,
    TraceEnding,
)
from sluice.trace.tracer_context import TracerContext

_CONSUMER_NAME = "manual updates"
"""Name under which this module requests that every step is recorded fully."""


def support_functional_programs(
    tracer: TracerContext, inputs: InputWatch, losses: LossWatch
) -> None:
    """Detect models, losses and weight updates that use no class of torch."""
    _FunctionalPrograms(tracer, inputs, losses)


class _FunctionalPrograms:
    """Forwards events to the detectors of functional models, manual losses and manual updates."""

    def __init__(self, tracer: TracerContext, inputs: InputWatch, losses: LossWatch) -> None:
        self._tracer, bus = tracer, tracer.bus
        self._model_watch = FunctionalModelWatch(tracer, inputs, losses, self._on_first_model)
        self._loss_watch = ManualLossWatch(tracer)
        self._update_watch: ManualUpdateWatch | None = None
        """Detector of manual updates; None once an optimizer was created or made a step."""
        self._watch_updates()
        bus.subscribe(TraceBegan, lambda _: self._reset())
        bus.subscribe(BackwardBegins, self._before_backward)
        bus.subscribe(ScalarBackwardBegins, self._loss_watch.on_loss)
        bus.subscribe(BackwardEnded, self._after_backward)
        bus.subscribe(TraceEnding, lambda _: self._detect_update())

    def _reset(self) -> None:
        self._model_watch.reset()
        self._loss_watch.reset()
        self._watch_updates()

    def _on_first_model(self) -> None:
        observe_no_grad_blocks(self._tracer, self._model_watch)

    def _before_backward(self, begins: BackwardBegins) -> None:
        thread, loss = begins.thread, begins.loss
        if self._update_watch is not None:
            self._update_watch.before_backward(thread)
        if (
            loss is not None
            and thread.call.network in self._model_watch.network_indices
            and loss.numel() == 1
        ):
            self._model_watch.on_loss(thread, loss)

    def _after_backward(self, ended: BackwardEnded) -> None:
        if self._update_watch is not None:
            self._update_watch.after_backward(ended.thread)
        self._model_watch.release()

    def _watch_updates(self) -> None:
        bus = self._tracer.bus
        if self._update_watch is None:
            bus.subscribe(ModuleCalled, self._detect_update)
            bus.subscribe(OptimizerCreated, self._on_optimizer_created)
            # An optimizer from before the trace may belong to another part of the program, so its
            # existence does not end the detection of manual updates, but its first step does.
            bus.subscribe(StepBegins, self._stop_watching)
        # Record every step fully: the fast path cannot predict steps that no optimizer event ends.
        self._tracer.sampling.every_step_needed_by.add(_CONSUMER_NAME)
        self._update_watch = ManualUpdateWatch(self._tracer, self._model_watch)

    def _detect_update(self, _: ModuleCalled | None = None) -> None:
        if self._update_watch is not None:
            self._update_watch.detect_step(self._tracer.local.thread)

    def _on_optimizer_created(self, _: OptimizerCreated) -> None:
        self._detect_update()
        self._stop_watching()

    def _stop_watching(self, _: StepBegins | None = None) -> None:
        self._update_watch = None
        self._tracer.sampling.every_step_needed_by.discard(_CONSUMER_NAME)
        self._tracer.bus.unsubscribe(ModuleCalled, self._detect_update)
        self._tracer.bus.unsubscribe(OptimizerCreated, self._on_optimizer_created)
        self._tracer.bus.unsubscribe(StepBegins, self._stop_watching)
