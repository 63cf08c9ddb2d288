"""Explains why a gradient is wrong or cannot be checked, for the gradient probe."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.gradcheck import GradcheckError

from sluice.probes.precision_watch import SuspectOperations


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientProblem:
    """A problem of one gradient: what was observed, the likely cause, and what to do."""

    observation: str
    why: str
    fix: str
    tensor_name: str = ""
    """Name of the parameter or input; empty if the problem affects all."""


def find_output_problem(
    output: Any, operations: SuspectOperations, *, must_be_scalar: bool
) -> GradientProblem | None:
    """Return why gradients of the output cannot be checked; None if they can."""
    if not isinstance(output, Tensor):
        return GradientProblem(
            observation=f"The output is not a tensor but {type(output).__name__}.",
            why="An operation such as .item() or .numpy() leaves torch and is not differentiable.",
            fix="Use only tensor operations from the parameters to the loss.",
        )
    if must_be_scalar and output.numel() != 1:
        return GradientProblem(
            observation=f"The loss is not a scalar: its shape is {tuple(output.shape)}.",
            why="Non-scalar output: a loss per row has no single gradient.",
            fix="Return the mean, as loss() of a workload does.",
        )
    if not output.requires_grad:
        return GradientProblem(
            observation="The output is not connected to any parameter or input.",
            why="Non-differentiable operation"
            + (
                f": {operations.piecewise_constant_op}."
                if operations.piecewise_constant_op
                else ", such as detach(), .data, no_grad or argmax."
            ),
            fix="Remove this operation from the path of the loss.",
        )
    if not bool(output.isfinite().all()):
        return GradientProblem(
            observation="The output is non-finite, so finite differences cannot be computed.",
            why="A logarithm, root or division is outside its domain on these rows.",
            fix="Inspect the rows, and the clamp or epsilon of the operation.",
        )
    return None


def explain_mismatch(
    name: str, error: GradcheckError, operations: SuspectOperations, output: Tensor
) -> GradientProblem:
    """Return the problem of a wrong gradient, with its most likely cause."""
    comparison = " ".join(str(error).split())
    functions = _custom_functions(output)
    if operations.reduced_precision_op:
        why = f"An operation reduces the precision: {operations.reduced_precision_op}."
        fix = "Compute this operation in the precision of its input, at least for this probe."
    elif functions:
        why = f"backward() of {' or '.join(functions)} does not match forward()."
        fix = "Correct backward(). Only a straight-through estimator may differ on purpose."
    elif operations.piecewise_constant_op:
        why = (
            f"Non-differentiable operation between {name} and the output: "
            f"{operations.piecewise_constant_op}."
        )
        fix = "Replace this operation by a differentiable operation."
    else:
        why = f"detach(), .data or no_grad cuts one of the paths from {name} to the output."
        fix = f"Keep everything that depends on {name} in the autograd graph."
    return GradientProblem(
        observation=f"The gradient of {name} differs from finite differences: {comparison[:300]}",
        why=why,
        fix=fix,
        tensor_name=name,
    )


def explain_error(error: RuntimeError) -> GradientProblem:
    """Convert an error of torch about an in-place operation or a dtype; raise any other error."""
    message = " ".join(str(error).split())[:300]
    if "inplace" in message or "in-place" in message:
        return explain_in_place(message)
    if "dtype" in message or "scalar type" in message:
        return GradientProblem(
            observation=message,
            why="The forward pass creates a float32 tensor for every dtype of the input.",
            fix="Create this tensor with the dtype of the input, or register it as a buffer.",
        )
    raise error


def explain_in_place(observation: str, *, tensor_name: str = "") -> GradientProblem:
    """Return the problem of an in-place operation that was observed."""
    return GradientProblem(
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
