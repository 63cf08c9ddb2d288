"""Whether gradients are those of the function that is computed (TRACE-7).

Shape legend: B = rows of a batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.func import functional_call

from sluice.base.errors import ContractError
from sluice.base.seeding import Stream
from sluice.probes.precision_watch import Operations, double_by_default, watched_operations
from sluice.probes.result import ProbeResult
from sluice.probes.twin import evaluation_twin, require_rows

NAME, REQUIREMENT = "gradients", "TRACE-7"

_JITTER = 1e-3
"""Weights and inputs are moved by this share: a bend, as ReLU's at 0, is then nowhere near."""

_LARGE_CHANGE = 0.3
"""Share by which a tensor is changed to see whether the outcome moves where its gradient is 0."""

_ABSOLUTE, _RELATIVE = 1e-7, 1e-3
"""Slack of a comparison; the outcome's own size is 1."""

_INPUT = "the input"

Call = Callable[[Mapping[str, Tensor]], Tensor]
"""From tensors by name to the outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offence:
    seen: str
    why: str
    fix: str
    about: str = ""


def probe_gradients(
    network: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    *,
    seed: int,
) -> ProbeResult:
    """Run gradcheck on the loss of a copy in double precision, one parameter at a time.

    Args:
        network: From ``x`` to what the loss takes.
        loss: From output and targets to a scalar.
        x: A few rows; two are enough.
        y: Their targets.
        seed: Of random directions and of small changes.

    Raises:
        ContractError: There are no rows or no trainable parameters.

    Cost:
        About five passes for each parameter tensor: seconds for a small network.
    """
    require_rows(x, at_least=1)
    with evaluation_twin(network, seed=seed) as twin, double_by_default():
        twin = twin.double()
        x, y = _jittered(x), y.double() if y.is_floating_point() else y
        tensors: dict[str, Tensor] = {n: p for n, p in twin.named_parameters() if p.requires_grad}
        if not tensors:
            raise ContractError(
                f"{type(network).__name__} has no trainable parameter.",
                fix="Hand over the network that is to be trained.",
            )
        for parameter in tensors.values():
            parameter.data = _jittered(parameter.data)
        if x.is_floating_point():
            tensors[_INPUT] = x.requires_grad_()

        def call(given: Mapping[str, Tensor]) -> Tensor:
            inputs = given.get(_INPUT, x)
            weights = {n: t for n, t in given.items() if n != _INPUT}
            return loss(functional_call(twin, weights, (inputs,)), y)

        return _result(_first_offence(call, tensors, twin, scalar=True), tensors, "the loss")


def probe_function(
    function: Callable[..., Tensor], inputs: Sequence[Any], *, name: str, seed: int
) -> ProbeResult:
    """Run gradcheck on a custom autograd function, one input at a time.

    Args:
        function: Such as ``Square.apply``, from ``inputs`` to one tensor.
        inputs: Tensors of floats are checked, in double precision; the rest is handed on.
        name: What it is called in the answer.
        seed: Of random directions and of small changes.

    Raises:
        ContractError: No input is a tensor of floats.
    """
    with Stream(seed).active(), double_by_default():
        tensors = {
            f"input {i}": _jittered(value.detach()).requires_grad_()
            for i, value in enumerate(inputs)
            if isinstance(value, Tensor) and value.is_floating_point()
        }
        if not tensors:
            raise ContractError(
                f"{name} needs an input that is a tensor of floats, got none.",
                fix="Hand over the inputs that have a gradient.",
            )

        def call(given: Mapping[str, Tensor]) -> Tensor:
            args = [given.get(f"input {i}", value) for i, value in enumerate(inputs)]
            return function(*args)

        return _result(_first_offence(call, tensors, None, scalar=False), tensors, name)


def _first_offence(
    call: Call, tensors: Mapping[str, Tensor], network: nn.Module | None, *, scalar: bool
) -> _Offence | None:
    versions = {name: t._version for name, t in tensors.items()}
    try:
        with watched_operations(network) as met:
            outcome = call(tensors)
        offence = _of_outcome(outcome, met, scalar=scalar)
        if offence is not None:
            return offence
        written = [name for name, t in tensors.items() if t._version != versions[name]]
        if written:
            return _in_place(f"A pass writes into {written[0]}.", about=written[0])
        if not torch.equal(outcome, call(tensors)):
            return _Offence(
                seen="Two passes over the same input differ.",
                why="Something draws at random, or keeps a state from pass to pass.",
                fix="See the probe 'modes' first.",
            )
        gradients = torch.autograd.grad(
            outcome.sum(), list(tensors.values()), allow_unused=True, retain_graph=True
        )
    except RuntimeError as error:
        return _of_error(error)
    size = float(outcome.detach().abs().max().clamp_min(1e-30))
    for (name, tensor), gradient in zip(tensors.items(), gradients, strict=True):
        found = _of_tensor(call, tensors, name, tensor, gradient, met, outcome, size)
        if found is not None:
            return found
    return None


def _of_outcome(outcome: Any, met: Operations, *, scalar: bool) -> _Offence | None:
    if not isinstance(outcome, Tensor):
        return _Offence(
            seen=f"The outcome is no tensor but {type(outcome).__name__}.",
            why="A step such as .item() or .numpy() leaves torch: it is not differentiable.",
            fix="Stay with tensors up to the loss.",
        )
    if scalar and outcome.numel() != 1:
        return _Offence(
            seen=f"The loss is not a scalar: its shape is {tuple(outcome.shape)}.",
            why="Non-scalar output: a loss per row has no one gradient.",
            fix="Take the mean, as loss() of a workload does.",
        )
    if not outcome.requires_grad:
        return _Offence(
            seen="The outcome has no way back to any parameter or input.",
            why="Non-differentiable step"
            + (f": {met.staircase}." if met.staircase else ": detach(), .data, no_grad, argmax."),
            fix="Remove that step from the way of the loss.",
        )
    if not bool(outcome.isfinite().all()):
        return _Offence(
            seen="The outcome is not finite, so there is no slope to compare with.",
            why="A logarithm, root or division leaves its range on these rows.",
            fix="Look at the rows and at what guards that step.",
        )
    return None


def _of_tensor(
    call: Call,
    tensors: Mapping[str, Tensor],
    name: str,
    tensor: Tensor,
    gradient: Tensor | None,
    met: Operations,
    outcome: Tensor,
    size: float,
) -> _Offence | None:
    if gradient is None or not bool(gradient.any()):
        return _of_no_gradient(call, tensors, name, gradient, met, outcome, size)

    def alone(value: Tensor) -> Tensor:
        return call({**tensors, name: value}) / size

    probed = tensor.detach().clone().requires_grad_()
    try:
        # In random directions where there are many numbers, else number by number.
        gradcheck(
            alone,
            (probed,),
            atol=_ABSOLUTE,
            rtol=_RELATIVE,
            nondet_tol=1e-9,
            fast_mode=tensor.numel() > 16,
        )
    except GradcheckError as error:
        return _of_mismatch(name, error, met, outcome)
    except RuntimeError as error:
        return _of_error(error)
    return None


def _of_no_gradient(
    call: Call,
    tensors: Mapping[str, Tensor],
    name: str,
    gradient: Tensor | None,
    met: Operations,
    outcome: Tensor,
    size: float,
) -> _Offence | None:
    """Judge a tensor without a gradient, or with zeros: does the outcome move with it?"""
    if gradient is not None and not met.staircase:
        return None  # units that are not active have a true gradient of 0
    if name == _INPUT:
        return None  # nobody trains it, and its numbers may be categories
    value = tensors[name].detach()
    changed = value + _LARGE_CHANGE * (value.abs() + 0.1) * torch.randn_like(value).sign()
    with torch.no_grad():
        moved = float((call({**tensors, name: changed}) - outcome).abs().max()) / size
    if not moved > _ABSOLUTE:
        return None
    step = met.staircase or "detach(), .data or no_grad"
    return _Offence(
        seen=f"{name} moves the outcome by {moved:.3g} of its size when it is changed by "
        f"{_LARGE_CHANGE:.0%}, yet its gradient is {'missing' if gradient is None else '0'}.",
        why=f"Non-differentiable step on its way: {step}.",
        fix="Replace that step by one with a slope, or declare the parameter frozen.",
        about=name,
    )


def _of_mismatch(name: str, error: GradcheckError, met: Operations, outcome: Tensor) -> _Offence:
    numbers = " ".join(str(error).split())
    functions = _custom_functions(outcome)
    if met.single_precision:
        why = f"Single precision inside: {met.single_precision}."
        fix = "Compute that step in the precision of its input, at least for this probe."
    elif functions:
        why = f"The backward of {' or '.join(functions)} is not the slope of its forward."
        fix = "Correct backward(); a straight-through estimate is meant to differ."
    elif met.staircase:
        why = f"Non-differentiable step on its way: {met.staircase}."
        fix = "Replace that step by one with a slope."
    else:
        why = "Non-differentiable step: a part of the way is cut by detach(), .data or no_grad."
        fix = "Let every part of the way that depends on it have its gradient."
    return _Offence(
        seen=f"The gradient of {name} is not the slope that is measured: {numbers[:300]}",
        why=why,
        fix=fix,
        about=name,
    )


def _of_error(error: RuntimeError) -> _Offence:
    message = " ".join(str(error).split())[:300]
    if "inplace" in message or "in-place" in message:
        return _in_place(message)
    if "dtype" in message or "scalar type" in message:
        return _Offence(
            seen=message,
            why="Single precision inside: a tensor is made as float32, whatever the input is.",
            fix="Make it with the dtype of the input, or register it as a buffer.",
        )
    raise error


def _in_place(seen: str, *, about: str = "") -> _Offence:
    return _Offence(
        seen=seen,
        why="An in-place operation changes what the backward pass needs.",
        fix="Write the operation out of place, without the trailing underscore or +=.",
        about=about,
    )


def _custom_functions(outcome: Tensor) -> list[str]:
    """Return the names of the autograd functions on the way that are written in Python."""
    names: dict[str, None] = {}
    seen, left = set(), [outcome.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            names[type(node).__name__.removesuffix("Backward")] = None
        left += [further for further, _ in node.next_functions]
    return list(names)


def _jittered(values: Tensor) -> Tensor:
    """Return the values in double precision, moved a little; whole numbers as they are."""
    if not values.is_floating_point():
        return values
    values = values.detach().double()
    return values + _JITTER * (values.abs() + 1) * torch.randn_like(values)


def _result(offence: _Offence | None, tensors: Mapping[str, Tensor], what: str) -> ProbeResult:
    numbers: dict[str, float | int | str] = {
        "tensors": len(tensors),
        "numbers": sum(t.numel() for t in tensors.values()),
    }
    if offence is None:
        return ProbeResult(
            name=NAME,
            requirement=REQUIREMENT,
            outcome="pass",
            seen=f"Gradients of {what} by {len(tensors)} tensors of {numbers['numbers']:,} numbers "
            "agree with its slope, in double precision.",
            numbers=numbers,
        )
    return ProbeResult(
        name=NAME,
        requirement=REQUIREMENT,
        outcome="fail",
        seen=f"{what}: {offence.seen}",
        numbers=numbers | ({"tensor": offence.about} if offence.about else {}),
        why=offence.why,
        fix=offence.fix,
    )
