"""What the tracer does, when it is asked to, about losses that are not finite (TRACE-8, TRACE-9).

Everything else in the tracer only looks. A guard leaves out steps or ends the program, so it is
there only when the settings say so.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from sluice.trace.inventory import OptimizerEntry
from sluice.trace.tracer import Tracer

LAST_GOOD = "last-good.pt"
STOPPED = 75
"""Exit code of a program that was stopped: a temporary failure, to be started again."""


def bundle_name(step: int) -> str:
    """Return the name of the file that reproduces a step."""
    return f"bundle-step-{step}.pt"


class Guard:
    """Watches the loss of every backward pass of one process.

    Cost:
        One wait for the device at every backward pass, a copy of all states every so many steps;
        at first when the steps have doubled since the last one, until that is as many.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """Begin anew: at first, and in a process that was forked off."""
        self._bad = self._skipped = self._next_copy = 0
        self._good: dict[str, Any] | None = None
        self._has_bundle = self._leaves_out = False
        self._random = torch.get_rng_state()

    def after_backward(self, loss: Any) -> None:
        """Look at the loss, and stop the program when too many in a row are not finite.

        Raises:
            SystemExit: The program is to end; its last good state is on disk.
        """
        tracer = self._tracer
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not tracer.is_on:
            return
        stop = False

        def look() -> None:
            nonlocal stop
            stop = self._judge(loss)

        tracer.guard(look)
        if stop:
            self._stop()

    def before_step(self, _: OptimizerEntry, optimizer: Any) -> None:
        """Leave out a step on the gradients of a loss that was not finite."""
        if not self._leaves_out:
            return
        # An optimizer passes over parameters without a gradient.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def after_step(self, _: OptimizerEntry, __: Any) -> None:
        """Forget what led to the step."""
        if self._leaves_out:
            self._skipped += 1
            if self._skipped & (self._skipped - 1) == 0:
                self._tracer.note("skipped", f"Steps left out so far: {self._skipped}.")
        self._leaves_out = False
        self._random = torch.get_rng_state()

    def _judge(self, loss: Tensor) -> bool:
        settings = self._tracer.settings
        value = float(loss.detach())
        # A scaled loss may leave the range of its type; the scaler sees to that.
        is_bad = math.isnan(value) or (math.isinf(value) and not self._tracer.local.lane.has_scaled)
        if not is_bad:
            self._bad = 0
            if self._tracer.steps >= self._next_copy and settings.stop_after:
                self._good = self._states()
                # Of a short run, too, no more than half is lost.
                between = min(max(1, self._tracer.steps), settings.keep_every)
                self._next_copy = self._tracer.steps + between
            return False
        self._bad += 1
        if not self._has_bundle:
            self._has_bundle = True
            self._save_bundle(value)
        self._leaves_out = settings.skip_poisoned
        return bool(settings.stop_after) and self._bad >= settings.stop_after

    def _stop(self) -> NoReturn:
        tracer = self._tracer
        good = self._good
        kept = (
            "there is no good state from before"
            if good is None
            else f"the last good state, of step {good['step']}, is in {LAST_GOOD}"
        )
        text = (
            f"Stopped before step {tracer.steps + 1}: {self._bad} losses in a row are not finite; "
            f"{kept}."
        )

        def write() -> None:
            if good is not None:
                self._save(LAST_GOOD, good)
            tracer.note("stopped", text)

        tracer.guard(write)
        tracer.say(f"sluice trace: {text}")
        raise SystemExit(STOPPED)

    def _states(self) -> dict[str, Any]:
        """Return copies of the states of all networks and optimizers, on the processor."""
        inventory = self._tracer.inventory
        with self._unseen():
            return {
                "step": self._tracer.steps,
                "networks": {
                    entry.name: _copied(network.state_dict())
                    for entry, network in inventory.networks.alive()
                    if not entry.is_plain
                },
                "optimizers": [
                    _copied(optimizer.state_dict()) for _, optimizer in inventory.optimizers.alive()
                ],
            }

    def _save_bundle(self, value: float) -> None:
        lane, step = self._tracer.local.lane, self._tracer.steps + 1
        compared = lane.compared
        target = None if compared is None else compared[2]()
        told = {
            **self._states(),
            "step": step,
            "trace": self._tracer.recorder.folder.name,
            "loss": value,
            "loss function": None if compared is None else compared[0],
            "inputs": [_copied(tensor) for ref in lane.given if (tensor := ref()) is not None],
            "target": _copied(target),
            "random state after the step before": self._random,
        }
        self._save(bundle_name(step), told)
        self._tracer.note("bundle", f"{bundle_name(step)} reproduces the loss {value} of its step.")

    def _save(self, name: str, told: dict[str, Any]) -> None:
        folder = self._tracer.recorder.folder
        if not folder.exists():
            self._tracer.flush()
        partial = folder / f"{name}.partial"
        with self._unseen():
            torch.save(told, partial)
        partial.rename(folder / name)

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        """Do something that the trace does not tell of."""
        self._tracer.is_on = False
        try:
            yield
        finally:
            self._tracer.is_on = True


def watch_losses_that_are_not_finite(tracer: Tracer) -> None:
    """Set a guard, if the settings ask for one."""
    if not tracer.settings.stop_after and not tracer.settings.skip_poisoned:
        return
    tracer.acts = guard = Guard(tracer)
    tracer.before_step.append(guard.before_step)
    tracer.after_step.append(guard.after_step)
    tracer.on_begin.append(guard.reset)


def _copied(value: Any) -> Any:
    """Return a copy on the processor of tensors in dictionaries, lists and by themselves."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    return value
