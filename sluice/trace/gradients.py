"""Whether gradients are new, left over or cleared, told by identity rather than by value.

A program may clear gradients by ``zero_grad``, by setting None or in place by hand, and set them by
backward or by hand. What a few of them are, against what they were when the optimizer last
stepped, tells all of these apart for a microsecond a step.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

GradientState = Literal["fresh", "none", "zero", "stale"]

_MOST_PROBES = 2

_MOST_NUMBERS = 2**14
"""In a gradient that is looked at after every backward pass."""

_MOST_LOOKS = 32
"""So often a gradient that seems untouched is looked into: ``.grad.data.zero_()`` leaves no other
trace."""


_STATES: tuple[GradientState, ...] = ("fresh", "none", "zero", "stale")
_ALONE = {state: (state,) for state in _STATES}
_CARRIED = {state: (state, "carried") for state in _STATES}


class HasParameters(Protocol):
    """An optimizer, whose parameters are listed only when they are needed."""

    def parameters(self) -> list[Tensor]:
        """Return its parameters, group by group."""


class GradientWatch:
    """The gradients of one optimizer from step to step."""

    def __init__(self) -> None:
        self._probes: list[tuple[Tensor, Tensor | None, int]] = []
        """Parameter, its gradient after the last step, the version of that."""
        self.is_cleared = True
        """Gradients were cleared since the last step; set by ``zero_grad``."""
        self._has_stepped = False
        self._weights: list[tuple[Tensor, int]] = []
        self._looks = 0

    def before_backward(self) -> None:
        """See whether the gradients were cleared by hand."""
        if not self._probes:
            return
        for parameter, held, version in self._probes:
            grad = parameter.grad
            if grad is None or grad is not held:
                continue
            if grad._version == version:
                if self._looks >= _MOST_LOOKS:
                    return
                self._looks += 1
            if not _is_zero(grad):
                return
            self._looks = 0
        self.is_cleared = True

    def at_step(self, owner: "HasParameters", *, may_be_zero: bool) -> tuple[str, ...]:
        """Return what the step that begins will find, and 'carried' if nothing cleared it."""
        is_none, is_stale, probes = True, self._has_stepped, self._probes
        for i, (parameter, held, version) in enumerate(probes):
            grad = parameter.grad
            if grad is None:
                is_stale = False
                if held is not None:  # cleared, though no zero_grad was seen
                    self.is_cleared, probes[i] = True, (parameter, None, -1)
                continue
            is_none, now = False, grad._version
            if grad is not held:
                # Others stand in their place, though no backward pass was seen.
                self.is_cleared, is_stale = True, False
            elif now != version:
                is_stale = False
            # Small tensors, held so that their addresses are not used again.
            probes[i] = (parameter, grad, now)
        if is_none:
            self._choose(owner.parameters())
        state: GradientState = "fresh"
        if is_none and not self._probes:
            state = "none"
        elif is_stale and not is_none:
            state = "stale"
        # Values are asked for only when the order of events makes zeros likely: it waits for the
        # device.
        elif may_be_zero and all(
            p.grad is None or _is_zero(p.grad) for p in owner.parameters() if p.requires_grad
        ):
            state = "zero"
        is_carried = self._has_stepped and not self.is_cleared and state != "none"
        self._has_stepped, self.is_cleared = True, False
        return _CARRIED[state] if is_carried else _ALONE[state]

    def await_update(self) -> None:
        """Remember what the weights are before the step changes them."""
        self._weights = [(parameter, parameter._version) for parameter, _, _ in self._probes]

    def is_before_update(self) -> bool:
        """Tell whether the step that runs has not changed them yet; False when it is not known."""
        return bool(self._weights) and all(p._version == v for p, v in self._weights)

    def is_zeroed(self) -> bool:
        """Tell whether the gradients that the step found were set to zero in place since."""
        return bool(self._probes) and all(
            held is not None
            and parameter.grad is held
            and held._version != version
            and _is_zero(held)
            for parameter, held, version in self._probes
        )

    def remember(self, *, may_have_moved: bool = False) -> None:
        """Remember the gradients of a step that was not looked at before: of a closure, skipped.

        Args:
            may_have_moved: A backward pass since may have added to them.
        """
        seen = (_seen(parameter) for parameter, _, _ in self._probes)
        self._probes = [(p, grad, -1) if may_have_moved else (p, grad, v) for p, grad, v in seen]
        self._has_stepped, self.is_cleared = True, False

    def _choose(self, parameters: Iterable[Tensor]) -> None:
        """Take the smallest parameter with a gradient from each part of the optimizer."""
        given = [p for p in parameters if p.grad is not None]
        parts = [given[i::_MOST_PROBES] for i in range(_MOST_PROBES)]
        chosen = [min(part, key=Tensor.numel) for part in parts if part]
        self._probes = [_seen(parameter) for parameter in chosen]


def _seen(parameter: Tensor) -> tuple[Tensor, Tensor | None, int]:
    grad = parameter.grad
    return parameter, grad, -1 if grad is None else grad._version


class FirstLook:
    """A look at a few small gradients right after each backward pass.

    The first number that is not finite is told before clipping and the step spread it. Only where
    reading a number does not wait: on the processor.
    """

    def __init__(self) -> None:
        self._chosen: list[Tensor] | None = None
        self.seen: tuple[Tensor, Tensor, int] | None = None
        """A parameter, its gradient after the last look, which was not zero, and its version."""

    def is_finite(self, owner: "HasParameters", which: int | None = None) -> bool:
        """Tell whether they are: all that are watched, or one of two."""
        if self._chosen is None:
            given = [p for p in owner.parameters() if p.grad is not None]
            if not given:
                return True
            self._chosen = self._choose(given)
        for parameter in self._chosen if which is None else self._chosen[which : which + 1]:
            grad = parameter.grad
            if grad is None or grad.requires_grad:  # of a gradient that is differentiated again
                continue
            total = grad.sum().item()
            # A sum that overflows is looked into.
            if not math.isfinite(total) and not_finite([grad]):
                return False
            if total:
                self.seen = parameter, grad, grad._version
        return True

    def is_cleared(self) -> bool:
        """Tell, once, whether the gradient that was seen after backward was set to zero since."""
        seen, self.seen = self.seen, None
        if seen is None:
            return False
        parameter, held, version = seen
        grad = parameter.grad
        if grad is None or (grad is held and grad._version == version):
            return False
        return _is_zero(grad)

    @staticmethod
    def _choose(given: list[Tensor]) -> list[Tensor]:
        """Take a small one near the input, where most trouble ends, and one near the middle."""
        middle = len(given) // 2
        parts = given[:_MOST_PROBES], given[middle : middle + _MOST_PROBES]
        found: list[Tensor] = []
        for part in parts:
            best = min(part, key=Tensor.numel, default=None)
            if best is None or best.device.type != "cpu" or best.numel() > _MOST_NUMBERS:
                continue
            grad = best.grad
            is_plain = grad is not None and type(grad) is Tensor and grad.layout == torch.strided
            if is_plain and all(best is not other for other in found):
                found.append(best)
        return found


def not_finite(grads: Sequence[Tensor]) -> list[int]:
    """Return the positions of dense gradients with a number that is not finite."""
    return [
        i
        for i, grad in enumerate(grads)
        if grad.layout == torch.strided and not bool(grad.detach().isfinite().all())
    ]


def _is_zero(grad: Tensor) -> bool:
    values = grad.detach()
    return not bool((values._values() if values.layout == torch.sparse_coo else values).any())


def with_gradient(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters that have a dense gradient."""
    return [p for p in parameters if p.grad is not None and p.grad.layout == torch.strided]
