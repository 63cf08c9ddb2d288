"""Compares gradients with finite differences, in double precision."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.func import functional_call

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.base.seeding import RandomStream
from sluice.probes.gradient_problems import (
    GradientProblem,
    explain_error,
    explain_in_place,
    explain_mismatch,
    find_output_problem,
)
from sluice.probes.perturbation import evaluation_copy, require_rows
from sluice.probes.precision_watch import SuspectOperations, double_by_default, watch_operations
from sluice.probes.result import ProbeResult

NAME = "gradients"

_JITTER = 1e-3
"""Relative size of random offsets, which are added to weights and inputs. No value is then exactly
at a kink, such as the kink of ReLU at 0."""

_LARGE_PERTURBATION = 0.3
"""Relative perturbation that tests whether the output depends on a tensor with zero gradient."""

_ABSOLUTE_TOLERANCE = 1e-7
"""Absolute tolerance for the difference between a gradient and a finite difference. The outputs are
scaled so that the largest output is 1."""

_RELATIVE_TOLERANCE = 1e-3
"""Relative tolerance, as a share of the finite difference. Both tolerances are added."""

_INPUT_NAME = "the input"
"""Name of the network's input among the tensors whose gradients are checked."""

_MAX_FULL_CHECK_NUMEL = 16
"""Maximum number of elements of a tensor for a check of each element. Larger tensors are checked in
one random direction."""

Call = Callable[[Mapping[str, Tensor]], Tensor]
"""Function that computes the checked output from tensors by name."""


def probe_gradients(
    network: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    *,
    seed: int,
) -> ProbeResult:
    """Run ``torch.autograd.gradcheck`` on the loss in double precision, one parameter at a time.

    Args:
        network: Network that maps ``x`` to the first argument of the loss.
        loss: Maps output and targets to a scalar.
        x: A few rows; two rows are enough.
        y: Targets of the rows.
        seed: Seed of random directions and offsets.

    Raises:
        ContractError: ``x`` has no rows, or the network has no trainable parameter.

    Cost:
        About five passes for each tensor, or two forward passes for each element of a tensor of at
        most 16 elements. A small network takes seconds.
    """
    require_rows(x, min_rows=1)
    with evaluation_copy(network, seed=seed) as network_copy, double_by_default():
        network_copy = network_copy.double()
        x, y = _add_jitter(x), y.double() if y.is_floating_point() else y
        tensors: dict[str, Tensor] = {
            n: p for n, p in network_copy.named_parameters() if p.requires_grad
        }
        if not tensors:
            raise ContractError(
                f"{type(network).__name__} has no trainable parameter.",
                fix="Pass the network that will be trained.",
            )
        for parameter in tensors.values():
            parameter.data = _add_jitter(parameter.data)
        if x.is_floating_point():
            tensors[_INPUT_NAME] = x.requires_grad_()

        def compute_loss(tensors: Mapping[str, Tensor]) -> Tensor:
            inputs = tensors.get(_INPUT_NAME, x)
            weights = {name: value for name, value in tensors.items() if name != _INPUT_NAME}
            return loss(functional_call(network_copy, weights, (inputs,)), y)

        problem = _find_first_problem(compute_loss, tensors, network_copy, must_be_scalar=True)
        return _result(problem, tensors, "the loss")


def probe_function(
    function: Callable[..., Tensor], inputs: Sequence[Any], *, name: str, seed: int
) -> ProbeResult:
    """Run ``torch.autograd.gradcheck`` on a custom autograd function, one input at a time.

    Args:
        function: Function that maps ``inputs`` to one tensor, such as ``Square.apply``.
        inputs: Arguments of the function. Tensors of floats are checked in double precision; other
            arguments are passed on unchanged.
        name: Name of the function in the result.
        seed: Seed of random directions and offsets.

    Raises:
        ContractError: No input is a tensor of floats.
    """
    with RandomStream(seed).active(), double_by_default():
        tensors = {
            f"input {i}": _add_jitter(value.detach()).requires_grad_()
            for i, value in enumerate(inputs)
            if isinstance(value, Tensor) and value.is_floating_point()
        }
        if not tensors:
            raise ContractError(
                f"{name} requires an input that is a tensor of floats, got none.",
                fix="Pass the inputs that have a gradient.",
            )

        def call_function(tensors: Mapping[str, Tensor]) -> Tensor:
            args = [tensors.get(f"input {i}", value) for i, value in enumerate(inputs)]
            return function(*args)

        problem = _find_first_problem(call_function, tensors, None, must_be_scalar=False)
        return _result(problem, tensors, name)


def _find_first_problem(
    call: Call, tensors: Mapping[str, Tensor], network: nn.Module | None, *, must_be_scalar: bool
) -> GradientProblem | None:
    """Return the first problem of the output or of a gradient; None if all gradients are right."""
    # torch increases the version of a tensor at every in-place operation.
    versions = {name: t._version for name, t in tensors.items()}
    try:
        with watch_operations(network) as operations:
            output = call(tensors)
        problem = find_output_problem(output, operations, must_be_scalar=must_be_scalar)
        if problem is not None:
            return problem
        modified_name = next((n for n, t in tensors.items() if t._version != versions[n]), None)
        if modified_name is not None:
            return explain_in_place(
                f"A forward pass writes into {modified_name}.", tensor_name=modified_name
            )
        if not torch.equal(output, call(tensors)):
            return GradientProblem(
                observation="Two passes over the same input differ.",
                why="The forward pass is random, or keeps state between calls.",
                fix="First correct what the probe 'modes' reports.",
            )
        gradients = torch.autograd.grad(
            output.sum(), list(tensors.values()), allow_unused=True, retain_graph=True
        )
    except RuntimeError as error:
        return explain_error(error)
    output_scale = float(output.detach().abs().max().clamp_min(1e-30))
    for (name, tensor), gradient in zip(tensors.items(), gradients, strict=True):
        problem = _check_tensor(
            call, tensors, name, tensor, gradient, operations, output, output_scale
        )
        if problem is not None:
            return problem
    return None


def _check_tensor(
    call: Call,
    tensors: Mapping[str, Tensor],
    name: str,
    tensor: Tensor,
    gradient: Tensor | None,
    operations: SuspectOperations,
    output: Tensor,
    output_scale: float,
) -> GradientProblem | None:
    """Compare the gradient with respect to one tensor with finite differences."""
    if gradient is None or not bool(gradient.any()):
        return _check_zero_gradient(call, tensors, name, gradient, operations, output, output_scale)

    def output_of_tensor(value: Tensor) -> Tensor:
        return call({**tensors, name: value}) / output_scale

    tensor_copy = tensor.detach().clone().requires_grad_()
    try:
        gradcheck(
            output_of_tensor,
            (tensor_copy,),
            atol=_ABSOLUTE_TOLERANCE,
            rtol=_RELATIVE_TOLERANCE,
            nondet_tol=1e-9,
            fast_mode=tensor.numel() > _MAX_FULL_CHECK_NUMEL,
        )
    except GradcheckError as error:
        return explain_mismatch(name, error, operations, output)
    except RuntimeError as error:
        return explain_error(error)
    return None


def _check_zero_gradient(
    call: Call,
    tensors: Mapping[str, Tensor],
    name: str,
    gradient: Tensor | None,
    operations: SuspectOperations,
    output: Tensor,
    output_scale: float,
) -> GradientProblem | None:
    """Return a problem if the output depends on a parameter whose gradient is missing or zero.

    A gradient of 0 can be a problem only if the forward pass has a piecewise constant operation.
    """
    if gradient is not None and not operations.piecewise_constant_op:
        return None  # 0 may be correct, as for inactive units
    if name == _INPUT_NAME:
        return None  # the input is not trained, and its values may be categories
    value = tensors[name].detach()
    signs = torch.randn_like(value).sign()
    perturbed_value = value + _LARGE_PERTURBATION * (value.abs() + 0.1) * signs
    with torch.no_grad():
        change = (
            float((call({**tensors, name: perturbed_value}) - output).abs().max()) / output_scale
        )
    if not change > _ABSOLUTE_TOLERANCE:
        return None
    operation = operations.piecewise_constant_op or "detach(), .data or no_grad"
    return GradientProblem(
        observation=f"Perturbing {name} by {_LARGE_PERTURBATION:.0%} changes the output by "
        f"{change:.3g} of the largest output, but the gradient of {name} is "
        f"{'missing' if gradient is None else '0'}.",
        why=f"Non-differentiable operation between {name} and the output: {operation}.",
        fix="Replace the operation by a differentiable operation, or freeze the parameter.",
        tensor_name=name,
    )


def _add_jitter(values: Tensor) -> Tensor:
    """Return floats in double precision with a small random offset; integers unchanged."""
    if not values.is_floating_point():
        return values
    values = values.detach().double()
    return values + _JITTER * (values.abs() + 1) * torch.randn_like(values)


def _result(
    problem: GradientProblem | None, tensors: Mapping[str, Tensor], subject: str
) -> ProbeResult:
    num_elements = sum(t.numel() for t in tensors.values())
    # "numbers" is the stored name of the number of elements.
    numbers: dict[str, float | int | str] = {"tensors": len(tensors), "numbers": num_elements}
    if problem is None:
        return ProbeResult(
            name=NAME,
            outcome="pass",
            seen=f"The gradients of {subject} with respect to {pluralize(len(tensors), 'tensor')} "
            f"({num_elements:,} elements) agree with finite differences in double precision.",
            numbers=numbers,
        )
    return ProbeResult(
        name=NAME,
        outcome="fail",
        seen=f"{subject}: {problem.observation}",
        numbers=numbers | ({"tensor": problem.tensor_name} if problem.tensor_name else {}),
        why=problem.why,
        fix=problem.fix,
    )
