"""Compares gradients with finite differences, in double precision."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.func import functional_call

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.base.seeding import RandomStream
from sluice.probes.precision_watch import Operations, double_by_default, watched_operations
from sluice.probes.result import ProbeResult
from sluice.probes.twin import evaluation_twin, require_rows

NAME = "gradients"

_JITTER = 1e-3
"""Relative random offset of weights and inputs, so that none is exactly at a kink, as ReLU's at
0."""

_LARGE_CHANGE = 0.3
"""Relative perturbation that tests whether the output depends on a tensor with zero gradient."""

_ABSOLUTE_TOLERANCE, _RELATIVE_TOLERANCE = 1e-7, 1e-3
"""Tolerances of a comparison, with the output scaled to 1."""

_INPUT_NAME = "the input"
"""Name of the network's input among the tensors whose gradients are checked."""

_MAX_FULL_CHECK = 16
"""Maximum elements of a tensor for which every element is checked; above, random directions."""

Call = Callable[[Mapping[str, Tensor]], Tensor]
"""Function that computes the checked output from tensors by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _GradientFault:
    """A problem of one gradient: what was observed, the likely cause, and what to do."""

    observation: str
    why: str
    fix: str
    tensor_name: str = ""
    """Name of the parameter or input; empty if the problem affects all."""


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
        x: A few rows; two are enough.
        y: Targets of the rows.
        seed: Seed of random directions and offsets.

    Raises:
        ContractError: ``x`` has no rows, or the network has no trainable parameter.

    Cost:
        About five passes per parameter tensor; seconds for a small network.
    """
    require_rows(x, at_least=1)
    with evaluation_twin(network, seed=seed) as twin, double_by_default():
        twin = twin.double()
        x, y = _add_jitter(x), y.double() if y.is_floating_point() else y
        tensors: dict[str, Tensor] = {n: p for n, p in twin.named_parameters() if p.requires_grad}
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
            return loss(functional_call(twin, weights, (inputs,)), y)

        fault = _first_fault(compute_loss, tensors, twin, must_be_scalar=True)
        return _result(fault, tensors, "the loss")


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

        fault = _first_fault(call_function, tensors, None, must_be_scalar=False)
        return _result(fault, tensors, name)


def _first_fault(
    call: Call, tensors: Mapping[str, Tensor], network: nn.Module | None, *, must_be_scalar: bool
) -> _GradientFault | None:
    """Return the first problem of the output or of a gradient; None if all gradients are right."""
    # torch increases the version of a tensor at every in-place operation.
    versions = {name: t._version for name, t in tensors.items()}
    try:
        with watched_operations(network) as operations:
            output = call(tensors)
        fault = _check_output(output, operations, must_be_scalar=must_be_scalar)
        if fault is not None:
            return fault
        written = [name for name, t in tensors.items() if t._version != versions[name]]
        if written:
            return _in_place_fault(
                f"A forward pass writes into {written[0]}.", tensor_name=written[0]
            )
        if not torch.equal(output, call(tensors)):
            return _GradientFault(
                observation="Two passes over the same input differ.",
                why="The network is random, or keeps state between passes.",
                fix="Correct what the probe 'modes' reports first.",
            )
        gradients = torch.autograd.grad(
            output.sum(), list(tensors.values()), allow_unused=True, retain_graph=True
        )
    except RuntimeError as error:
        return _fault_from_error(error)
    output_size = float(output.detach().abs().max().clamp_min(1e-30))
    for (name, tensor), gradient in zip(tensors.items(), gradients, strict=True):
        fault = _check_tensor(
            call, tensors, name, tensor, gradient, operations, output, output_size
        )
        if fault is not None:
            return fault
    return None


def _check_output(
    output: Any, operations: Operations, *, must_be_scalar: bool
) -> _GradientFault | None:
    """Return why no gradient of the output can be checked; None if gradients can be checked."""
    if not isinstance(output, Tensor):
        return _GradientFault(
            observation=f"The output is not a tensor but {type(output).__name__}.",
            why="An operation such as .item() or .numpy() leaves torch and is not differentiable.",
            fix="Use tensors up to the loss.",
        )
    if must_be_scalar and output.numel() != 1:
        return _GradientFault(
            observation=f"The loss is not a scalar: its shape is {tuple(output.shape)}.",
            why="Non-scalar output: a loss per row has no single gradient.",
            fix="Return the mean, as loss() of a workload does.",
        )
    if not output.requires_grad:
        return _GradientFault(
            observation="The output is not connected to any parameter or input.",
            why="Non-differentiable operation"
            + (
                f": {operations.piecewise_constant}."
                if operations.piecewise_constant
                else ": detach(), .data, no_grad, argmax."
            ),
            fix="Remove this operation from the path of the loss.",
        )
    if not bool(output.isfinite().all()):
        return _GradientFault(
            observation="The output is not finite, so there are no finite differences.",
            why="A logarithm, root or division is outside its domain on these rows.",
            fix="Inspect the rows, and the clamp or epsilon of that operation.",
        )
    return None


def _check_tensor(
    call: Call,
    tensors: Mapping[str, Tensor],
    name: str,
    tensor: Tensor,
    gradient: Tensor | None,
    operations: Operations,
    output: Tensor,
    output_size: float,
) -> _GradientFault | None:
    """Compare the gradient with respect to one tensor with finite differences."""
    if gradient is None or not bool(gradient.any()):
        return _check_zero_gradient(call, tensors, name, gradient, operations, output, output_size)

    def output_of_tensor(value: Tensor) -> Tensor:
        return call({**tensors, name: value}) / output_size

    copied = tensor.detach().clone().requires_grad_()
    try:
        gradcheck(
            output_of_tensor,
            (copied,),
            atol=_ABSOLUTE_TOLERANCE,
            rtol=_RELATIVE_TOLERANCE,
            nondet_tol=1e-9,
            fast_mode=tensor.numel() > _MAX_FULL_CHECK,
        )
    except GradcheckError as error:
        return _mismatch_fault(name, error, operations, output)
    except RuntimeError as error:
        return _fault_from_error(error)
    return None


def _check_zero_gradient(
    call: Call,
    tensors: Mapping[str, Tensor],
    name: str,
    gradient: Tensor | None,
    operations: Operations,
    output: Tensor,
    output_size: float,
) -> _GradientFault | None:
    """Return a fault if the output depends on a tensor whose gradient is missing or zero."""
    if gradient is not None and not operations.piecewise_constant:
        return None  # the gradient of inactive units is indeed 0
    if name == _INPUT_NAME:
        return None  # the input is not trained, and its values may be categories
    value = tensors[name].detach()
    changed = value + _LARGE_CHANGE * (value.abs() + 0.1) * torch.randn_like(value).sign()
    with torch.no_grad():
        change = float((call({**tensors, name: changed}) - output).abs().max()) / output_size
    if not change > _ABSOLUTE_TOLERANCE:
        return None
    operation = operations.piecewise_constant or "detach(), .data or no_grad"
    return _GradientFault(
        observation=f"{name} changes the output by {change:.3g} of its size when perturbed by "
        f"{_LARGE_CHANGE:.0%}, yet its gradient is {'missing' if gradient is None else '0'}.",
        why=f"Non-differentiable operation on its path: {operation}.",
        fix="Replace it by a differentiable operation, or declare the parameter frozen.",
        tensor_name=name,
    )


def _mismatch_fault(
    name: str, error: GradcheckError, operations: Operations, output: Tensor
) -> _GradientFault:
    """Return the fault of a wrong gradient, with its most likely cause."""
    numbers = " ".join(str(error).split())
    functions = _custom_functions(output)
    if operations.single_precision:
        why = f"Single precision inside: {operations.single_precision}."
        fix = "Compute it in the precision of its input, at least for this probe."
    elif functions:
        why = f"The backward of {' or '.join(functions)} does not match its forward."
        fix = "Correct backward(); a straight-through estimator differs on purpose."
    elif operations.piecewise_constant:
        why = f"Non-differentiable operation on its path: {operations.piecewise_constant}."
        fix = "Replace it by a differentiable operation."
    else:
        why = "A part of the path is cut by detach(), .data or no_grad."
        fix = "Keep all parts of the path that depend on it in the autograd graph."
    return _GradientFault(
        observation=f"The gradient of {name} differs from finite differences: {numbers[:300]}",
        why=why,
        fix=fix,
        tensor_name=name,
    )


def _fault_from_error(error: RuntimeError) -> _GradientFault:
    """Convert an error of torch about in-place operations or dtypes; raise any other error."""
    message = " ".join(str(error).split())[:300]
    if "inplace" in message or "in-place" in message:
        return _in_place_fault(message)
    if "dtype" in message or "scalar type" in message:
        return _GradientFault(
            observation=message,
            why="Single precision inside: a tensor is created as float32 for every input dtype.",
            fix="Create it with the dtype of the input, or register it as a buffer.",
        )
    raise error


def _in_place_fault(observation: str, *, tensor_name: str = "") -> _GradientFault:
    return _GradientFault(
        observation=observation,
        why="An in-place operation changes a value that the backward pass needs.",
        fix="Use the out-of-place operation, without the trailing underscore or +=.",
        tensor_name=tensor_name,
    )


def _custom_functions(output: Tensor) -> list[str]:
    """Return the names of custom autograd functions in the autograd graph of the output."""
    names: dict[str, None] = {}
    visited, to_visit = set(), [output.grad_fn]
    while to_visit:
        node = to_visit.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if isinstance(node, BackwardCFunction):
            names[type(node).__name__.removesuffix("Backward")] = None
        to_visit += [next_node for next_node, _ in node.next_functions]
    return list(names)


def _add_jitter(values: Tensor) -> Tensor:
    """Return floats in double precision with a small random offset; integers unchanged."""
    if not values.is_floating_point():
        return values
    values = values.detach().double()
    return values + _JITTER * (values.abs() + 1) * torch.randn_like(values)


def _result(fault: _GradientFault | None, tensors: Mapping[str, Tensor], what: str) -> ProbeResult:
    numbers: dict[str, float | int | str] = {
        "tensors": len(tensors),
        "numbers": sum(t.numel() for t in tensors.values()),
    }
    if fault is None:
        return ProbeResult(
            name=NAME,
            outcome="pass",
            seen=f"The gradients of {what} with respect to {pluralize(len(tensors), 'tensor')} "
            f"({numbers['numbers']:,} elements) agree with finite differences in double precision.",
            numbers=numbers,
        )
    return ProbeResult(
        name=NAME,
        outcome="fail",
        seen=f"{what}: {fault.observation}",
        numbers=numbers | ({"tensor": fault.tensor_name} if fault.tensor_name else {}),
        why=fault.why,
        fix=fault.fix,
    )
