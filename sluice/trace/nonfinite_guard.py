"""Guard against non-finite losses: skips steps that use their gradients, or stops the program.

All other parts of the tracer only observe. The guard skips steps or ends the program, so it is
installed only if the settings enable it.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sluice.trace.program_events import (
    BackwardEnded,
    GradientsCleared,
    StepBegins,
    StepEnded,
    TraceBegan,
)
from sluice.trace.tracer_context import TracerContext

LAST_GOOD_FILE = "last-good.pt"
"""Name of the file with the last good state, in the folder of the trace."""
STOPPED_EXIT_CODE = 75
"""Exit code of a program that the guard stopped (EX_TEMPFAIL): it may be restarted."""


def bundle_name(step: int) -> str:
    """Return the name of the file that contains the data to reproduce a step."""
    return f"bundle-step-{step}.pt"


class NonFiniteGuard:
    """Checks the loss of every backward pass of one process.

    Cost:
        One device synchronization per backward pass. With ``stop_after``, also a copy of all states
        after 0, 1, 2, 4, 8 and so on steps, and later every ``checkpoint_every`` steps.
    """

    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self._reset()
        tracer.bus.subscribe(TraceBegan, lambda _: self._reset())
        tracer.bus.subscribe(BackwardEnded, self._after_backward)
        tracer.bus.subscribe(GradientsCleared, self._after_clearing)
        tracer.bus.subscribe(StepBegins, self._before_step)
        tracer.bus.subscribe(StepEnded, lambda _: self._after_step())

    def _reset(self) -> None:
        # Disable the fast path, which publishes no events for backward passes and steps.
        self._tracer.sampling.every_step_needed_by.add("non-finite guard")
        self._num_nonfinite_losses = self._num_skipped_steps = 0
        """Number of consecutive non-finite losses, and number of steps that the guard skipped."""
        self._next_copy_step = 0
        """Number of steps after which the next good state is copied."""
        self._last_good_state: dict[str, Any] | None = None
        self._has_saved_bundle = False
        self._step_to_skip = 0
        """Number of the last step that the guard skipped or is about to skip; 0 without such a
        step."""
        self._cleared_parameters: set[int] = set()
        """``id`` of each parameter whose gradient was cleared since the last non-finite loss."""
        self._rng_state = torch.get_rng_state()
        """Random state of torch at the start of the running step."""

    def _after_backward(self, ended: BackwardEnded) -> None:
        """Check the loss, and stop the program after ``stop_after`` consecutive non-finite losses.

        Raises:
            SystemExit: The program stops. If it had a good state, the last one was saved, or a
                message reported that it could not be saved.
        """
        tracer, loss = self._tracer, ended.tensors
        # A loss on the meta device has no value.
        if not isinstance(loss, Tensor) or loss.is_meta or loss.numel() != 1 or not tracer.is_on:
            return
        tracer.run_safely(self._check_loss, loss, is_scaled=ended.is_scaled)
        stop_after = tracer.settings.stop_after
        # A failure of the tracer must not stop the program. ``is_on`` is False if the check failed.
        if tracer.is_on and stop_after and self._num_nonfinite_losses >= stop_after:
            self._stop()

    def _after_clearing(self, cleared: GradientsCleared) -> None:
        if self._step_to_skip > self._tracer.steps.last_step:
            self._cleared_parameters.update(map(id, _parameters_of(cleared.owner)))

    def _before_step(self, step: StepBegins) -> None:
        """Skip a step that would use the gradients of a non-finite loss."""
        if self._tracer.steps.last_step + 1 != self._step_to_skip:
            return
        parameters = _parameters_of(step.optimizer)
        if self._cleared_parameters.issuperset(map(id, parameters)):
            self._step_to_skip = 0  # the program itself discarded the gradients of this loss
            return
        # Remove the gradients: optimizers skip parameters without a gradient.
        for parameter in parameters:
            parameter.grad = None

    def _after_step(self) -> None:
        """Count a step that the guard skipped, and store the random state."""
        if self._tracer.steps.last_step == self._step_to_skip:
            self._num_skipped_steps += 1
            if self._num_skipped_steps & (self._num_skipped_steps - 1) == 0:  # 1, 2, 4, 8, ...
                self._tracer.note("skipped", f"Steps skipped so far: {self._num_skipped_steps}.")
        self._rng_state = torch.get_rng_state()

    def _check_loss(self, loss: Tensor, *, is_scaled: bool) -> None:
        """Copy the state if the loss is finite and a copy is due; count a non-finite loss."""
        settings, last_step = self._tracer.settings, self._tracer.steps.last_step
        value = float(loss.detach())
        # A scaled loss may overflow its dtype; the gradient scaler handles the overflow.
        if math.isfinite(value) or (math.isinf(value) and is_scaled):
            self._num_nonfinite_losses = 0
            if last_step >= self._next_copy_step and settings.stop_after:
                self._last_good_state = self._copy_states()
                # At first, the interval doubles: a short run loses at most half of its steps.
                self._next_copy_step = last_step + min(max(1, last_step), settings.checkpoint_every)
            return
        self._num_nonfinite_losses += 1
        if not self._has_saved_bundle:
            self._has_saved_bundle = True
            self._save_bundle(value)
        # Store the number of the step to skip. Steps that a gradient scaler skips are counted, too:
        # if it skips this step, the guard does not skip the next one, which has another number.
        if settings.skip_nonfinite:
            self._step_to_skip = last_step + 1
            self._cleared_parameters.clear()

    def _stop(self) -> NoReturn:
        tracer = self._tracer
        state = self._last_good_state
        state_text = "no earlier good state exists"
        if state is not None:
            tracer.run_safely(self._save, LAST_GOOD_FILE, state)
            is_saved = tracer.is_on  # False if saving failed
            saved_text = f"is saved in {LAST_GOOD_FILE}" if is_saved else "could not be saved"
            state_text = f"the last good state, of step {state['step']}, {saved_text}"
        num_losses = self._num_nonfinite_losses
        losses_text = "the loss is" if num_losses == 1 else f"{num_losses} consecutive losses are"
        step = tracer.steps.last_step + 1
        text = f"Stopped before step {step}: {losses_text} non-finite; {state_text}."
        if tracer.is_on:
            tracer.run_safely(tracer.note, "stopped", text)
        tracer.print_line(f"sluice trace: {text}")
        raise SystemExit(STOPPED_EXIT_CODE)

    def _copy_states(self) -> dict[str, Any]:
        """Return CPU copies of the states of all networks and optimizers."""
        objects = self._tracer.objects
        with self._untraced():
            return {
                "step": self._tracer.steps.last_step,
                "networks": {
                    entry.name: _cpu_copy(network.state_dict())
                    for entry, network in objects.networks.live_items()
                    if not entry.has_no_parameters
                },
                "optimizers": [
                    _cpu_copy(optimizer.state_dict())
                    for _, optimizer in objects.optimizers.live_items()
                ],
            }

    def _save_bundle(self, value: float) -> None:
        """Save the states and inputs that reproduce the non-finite loss of the running step."""
        thread, step = self._tracer.local.thread, self._tracer.steps.last_step + 1
        loss_name, target = None, None
        if thread.loss_calls.last is not None:
            loss_name, _, target_ref, *_ = thread.loss_calls.last
            target = target_ref()
        bundle = {
            **self._copy_states(),
            "step": step,
            "trace": self._tracer.recorder.folder.name,
            "loss": value,
            "loss function": loss_name,
            "inputs": [
                _cpu_copy(tensor) for ref in thread.call.inputs if (tensor := ref()) is not None
            ],
            "target": _cpu_copy(target),
            "random state after the step before": self._rng_state,
        }
        self._save(bundle_name(step), bundle)
        self._tracer.note(
            "bundle", f"{bundle_name(step)} reproduces the loss {value} of step {step}."
        )

    def _save(self, name: str, content: dict[str, Any]) -> None:
        folder = self._tracer.recorder.folder
        if not folder.exists():
            self._tracer.steps.flush()  # creates the folder
        partial_file = folder / f"{name}.partial"
        with self._untraced():
            torch.save(content, partial_file)
        partial_file.rename(folder / name)

    @contextmanager
    def _untraced(self) -> Iterator[None]:
        """Run code that is not recorded in the trace."""
        self._tracer.is_on = False
        try:
            yield
        finally:
            self._tracer.is_on = True


def install_nonfinite_guard(tracer: TracerContext) -> None:
    """Install the guard if the settings enable it."""
    if tracer.settings.stop_after or tracer.settings.skip_nonfinite:
        NonFiniteGuard(tracer)


def _parameters_of(owner: Any) -> list[Tensor]:
    """Return the parameters of a module or an optimizer."""
    if isinstance(owner, nn.Module):
        return list(owner.parameters())
    return [parameter for group in owner.param_groups for parameter in group["params"]]


def _cpu_copy(value: Any) -> Any:
    """Return a copy of a value with all tensors, also in dicts and lists, on the CPU.

    A tuple becomes a list. Tensors on the meta device stay there, and lazy parameters of a dict are
    omitted.
    """
    if isinstance(value, Tensor) and value.is_meta:
        return value
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _cpu_copy(item) for key, item in value.items() if not is_lazy(item)}
    if isinstance(value, list | tuple):
        return [_cpu_copy(item) for item in value]
    return value
