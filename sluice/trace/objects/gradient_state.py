"""Detects whether gradients are new, stale or cleared, by tensor identity and version.

The version of a tensor is its counter ``_version``. torch increments it at in-place changes, except
those through ``.data``.

A program may clear gradients with ``zero_grad``, by setting them to None, or in place. New
gradients come from a backward pass, or the program sets them. A comparison of a few gradients with
the gradients at the last optimizer step distinguishes these cases and costs a microsecond per step.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from sluice.trace.inspection.plain_tensors import is_8bit_float

GradientState = Literal["fresh", "none", "zero", "stale"]
"""State of the gradients of an optimizer at its step: "fresh" (new since its last step), "none"
(all absent), "zero" (all zero) or "stale" (unchanged since its last step)."""

_MAX_SAMPLED_PARAMETERS = 2
"""Maximum number of parameters per optimizer whose gradients are compared from step to step."""

_NUM_CANDIDATES = 2
"""Number of successive parameters from which ``GradientCheck`` chooses the smallest."""

_MAX_ELEMENTS = 2**14
"""Maximum number of elements of a gradient that ``GradientCheck`` reads."""

_MAX_VALUE_CHECKS = 32
"""Maximum number of reads of gradients with an unchanged version, since the last zero gradient.
Such gradients are read because ``.grad.data.zero_()`` does not change the version."""


_STATES: tuple[GradientState, ...] = ("fresh", "none", "zero", "stale")
_FLAGS_BY_STATE = {state: (state,) for state in _STATES}
"""Event flags of a step by the state of its gradients; constants, to create no tuple per step."""
_CARRIED_FLAGS_BY_STATE = {state: (state, "carried") for state in _STATES}
"""Event flags of a step whose gradients were not cleared since the last step, by their state. New
gradients were added to the old gradients, or the old gradients are used again."""


class HasParameters(Protocol):
    """Interface of an optimizer entry: it lists the parameters of its optimizer."""

    def parameters(self) -> list[Tensor]:
        """Return the parameters, group by group."""


class GradientTracker:
    """Tracks the gradients of one optimizer from step to step."""

    def __init__(self) -> None:
        self._samples: list[tuple[Tensor, Tensor | None, int]] = []
        """Sampled parameters, each with its gradient at the last step and the version of this
        gradient. The version is -1 without a gradient, or if the gradient may have changed since.
        """
        self.is_cleared = True
        """Whether gradients were cleared since the last step; the ``zero_grad`` hook sets it."""
        self._has_stepped = False
        self._weight_versions: list[tuple[Tensor, int]] = []
        """Sampled parameters, each with its version before the running step changed it."""
        self._num_value_checks = 0
        """Number of reads of gradients with an unchanged version, since the last zero gradient."""

    def before_backward(self) -> None:
        """Detect whether the gradients were cleared without ``zero_grad``."""
        if not self._samples:
            return
        for parameter, previous_grad, version in self._samples:
            grad = parameter.grad
            if grad is None or grad is not previous_grad:
                continue
            if grad._version == version:
                if self._num_value_checks >= _MAX_VALUE_CHECKS:
                    return
                self._num_value_checks += 1
            if not _is_zero(grad):
                return
            self._num_value_checks = 0
        self.is_cleared = True

    def record_step(self, owner: HasParameters, *, may_be_zero: bool) -> tuple[str, ...]:
        """Record the gradients at a step, and return the event flags of the step.

        The flags are the state of the gradients and, if the gradients were not cleared since the
        last step, 'carried'.

        Args:
            owner: Optimizer that makes the step.
            may_be_zero: Whether earlier events make it likely that all gradients are zero.
        """
        are_all_none, is_stale, samples = True, self._has_stepped, self._samples
        for i, (parameter, previous_grad, version) in enumerate(samples):
            grad = parameter.grad
            if grad is None:
                is_stale = False
                if previous_grad is not None:  # cleared without zero_grad
                    self.is_cleared, samples[i] = True, (parameter, None, -1)
                continue
            are_all_none, version_now = False, grad._version
            if grad is not previous_grad:
                # A new tensor: the old gradient was cleared, even if no hook recorded it.
                self.is_cleared, is_stale = True, False
            elif version_now != version:
                is_stale = False
            # The reference keeps the gradient alive, so that a later gradient is another object.
            samples[i] = (parameter, grad, version_now)
        if are_all_none:
            self._choose_parameters(owner.parameters())
        state: GradientState = "fresh"
        if are_all_none and not self._samples:
            state = "none"
        elif is_stale and not are_all_none:
            state = "stale"
        # Values are read only if zeros are likely, because reading waits for the device.
        elif may_be_zero and all(
            p.grad is None or _is_zero(p.grad) for p in owner.parameters() if p.requires_grad
        ):
            state = "zero"
        is_carried = self._has_stepped and not self.is_cleared and state != "none"
        self._has_stepped, self.is_cleared = True, False
        return _CARRIED_FLAGS_BY_STATE[state] if is_carried else _FLAGS_BY_STATE[state]

    def record_weight_versions(self) -> None:
        """Record the versions of the weights before the step changes them."""
        self._weight_versions = [
            (parameter, parameter._version) for parameter, _, _ in self._samples
        ]

    def is_before_update(self) -> bool:
        """Return whether the running step has not changed the weights yet; False if unknown."""
        return bool(self._weight_versions) and all(
            p._version == v for p, v in self._weight_versions
        )

    def is_zeroed(self) -> bool:
        """Return whether the gradients were set to zero in place since the step began."""
        return bool(self._samples) and all(
            previous_grad is not None
            and parameter.grad is previous_grad
            and previous_grad._version != version
            and _is_zero(previous_grad)
            for parameter, previous_grad, version in self._samples
        )

    def record_gradients(self, *, may_have_changed: bool = False) -> None:
        """Record the gradients after a step, if ``record_step`` did not run or ran too early.

        ``record_step`` does not run in predicted and in skipped steps. It runs too early in a step
        that calls its closure several times, because each call computes new gradients.

        Args:
            may_have_changed: Whether a backward pass since the step may have changed the gradients.
        """
        samples = (_sample_gradient(parameter) for parameter, _, _ in self._samples)
        self._samples = [
            (parameter, grad, -1 if may_have_changed else version)
            for parameter, grad, version in samples
        ]
        self._has_stepped, self.is_cleared = True, False

    def _choose_parameters(self, parameters: Iterable[Tensor]) -> None:
        """Choose two parameters with gradients: the smallest at even and at odd positions."""
        with_gradients = [p for p in parameters if p.grad is not None]
        num_lists = _MAX_SAMPLED_PARAMETERS
        candidate_lists = [with_gradients[i::num_lists] for i in range(num_lists)]
        chosen_parameters = [min(c, key=Tensor.numel) for c in candidate_lists if c]
        self._samples = [_sample_gradient(parameter) for parameter in chosen_parameters]


def _sample_gradient(parameter: Tensor) -> tuple[Tensor, Tensor | None, int]:
    """Return a parameter, its gradient and the version of the gradient; -1 without a gradient."""
    grad = parameter.grad
    return parameter, grad, -1 if grad is None else grad._version


class GradientCheck:
    """Checks at most two small gradients of an optimizer right after backward passes.

    So a non-finite value is found before gradient clipping or the step spreads it to all weights.
    Only CPU tensors are checked, because reading a value from another device would wait for the
    device.
    """

    def __init__(self) -> None:
        self._checked_parameters: list[Tensor] | None = None
        """Parameters whose gradients are checked; None before the first gradient exists."""
        self.last_nonzero_gradient: tuple[Tensor, Tensor, int] | None = None
        """Parameter, gradient and gradient version at the last check of a nonzero gradient."""

    def check_finite(self, owner: HasParameters, index: int | None = None) -> bool:
        """Return whether the chosen gradients are finite: all, or only the gradient at ``index``.

        The last nonzero gradient is stored in ``last_nonzero_gradient``.
        """
        if self._checked_parameters is None:
            with_gradients = [p for p in owner.parameters() if p.grad is not None]
            if not with_gradients:
                return True
            self._checked_parameters = self._choose(with_gradients)
        parameters = self._checked_parameters
        for parameter in parameters if index is None else parameters[index : index + 1]:
            grad = parameter.grad
            if grad is None or grad.requires_grad:  # from backward(create_graph=True)
                continue
            grad_sum = grad.sum().item()
            # The sum may overflow although all elements are finite.
            if not math.isfinite(grad_sum) and nonfinite_positions([grad]):
                return False
            if grad_sum:
                self.last_nonzero_gradient = parameter, grad, grad._version
        return True

    def check_zeroing_once(self) -> bool:
        """Return whether the gradient in ``last_nonzero_gradient`` is 0 now, and clear this field.

        The program may have changed the gradient in place, or replaced it.
        """
        last_gradient, self.last_nonzero_gradient = self.last_nonzero_gradient, None
        if last_gradient is None:
            return False
        parameter, previous_grad, version = last_gradient
        grad = parameter.grad
        if grad is None or (grad is previous_grad and grad._version == version):
            return False
        return _is_zero(grad)

    @staticmethod
    def _choose(with_gradients: list[Tensor]) -> list[Tensor]:
        """Choose a parameter near the input, where most faults are visible, and one in the middle.

        Each parameter is the smallest of two successive parameters. A parameter is omitted if its
        gradient cannot be read fast.
        """
        middle = len(with_gradients) // 2
        chosen_parameters: list[Tensor] = []
        for start in (0, middle):
            candidates = with_gradients[start : start + _NUM_CANDIDATES]
            smallest = min(candidates, key=Tensor.numel, default=None)
            if (
                smallest is None
                or smallest.device.type != "cpu"
                or smallest.numel() > _MAX_ELEMENTS
            ):
                continue
            grad = smallest.grad
            is_plain = (
                grad is not None
                and type(grad) is Tensor
                and grad.layout == torch.strided
                and grad.is_floating_point()
                and not is_8bit_float(grad)
            )
            if is_plain and all(smallest is not other for other in chosen_parameters):
                chosen_parameters.append(smallest)
        return chosen_parameters


def nonfinite_positions(tensors: Sequence[Tensor]) -> list[int]:
    """Return the positions in ``tensors`` of the dense tensors that have a non-finite value.

    Tensors of 8-bit floats are not checked.
    """
    return [
        i
        for i, tensor in enumerate(tensors)
        if tensor.layout == torch.strided
        and not (tensor.is_nested or tensor.is_meta or is_8bit_float(tensor))
        and not bool(tensor.detach().isfinite().all())
    ]


def _is_zero(grad: Tensor) -> bool:
    values = grad.detach()
    if values.layout == torch.sparse_coo:
        values = values._values()
    if values.is_meta:  # it has no values
        return False
    return not bool((values.float() if is_8bit_float(values) else values).any())


def parameters_with_dense_gradient(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the parameters that have a dense gradient."""
    return [p for p in parameters if p.grad is not None and p.grad.layout == torch.strided]
