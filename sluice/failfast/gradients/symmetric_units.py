"""Finds layers whose units have equal weights and equal gradients, and so remain equal."""

from torch import Tensor, nn

_TOLERANCE = 1e-4
"""Maximum difference of equal units, relative to the largest absolute value of the tensor. This
limit is above rounding errors and far below the differences of random initial weights."""

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
"""Modules in which a row of the weight is the vector of a token, not a unit."""

_TRANSPOSED_CONVOLUTIONS = nn.modules.conv._ConvTransposeNd
"""Modules whose weights have the shape (inputs, outputs, ...)."""


def symmetric_weights(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the weights whose units are all equal and have equal gradients.

    Such units remain equal during training. A weight must have at least two units and a nonzero
    gradient. If a recurrent layer stacks its gates in one matrix, units are compared within each
    gate.

    Call this function after a backward pass, preferably after some optimizer steps: units that are
    initialised equal, as in a zero-initialised last layer, may differ after the first step.
    """
    names = []
    for prefix, module in model.named_modules():
        if isinstance(module, _EMBEDDINGS):
            continue
        for name, parameter in module.named_parameters(prefix=prefix, recurse=False):
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse or parameter.ndim < 2:
                continue
            if isinstance(module, _TRANSPOSED_CONVOLUTIONS):
                weight_UI, gradient_UI = (
                    _flatten_units(parameter.transpose(0, 1)),
                    _flatten_units(gradient.transpose(0, 1)),
                )
            else:
                weight_UI, gradient_UI = _flatten_units(parameter), _flatten_units(gradient)
            if bool(gradient.any()) and _units_are_equal(weight_UI, gradient_UI):
                names.append(name)
    return tuple(names)


def _flatten_units(values: Tensor) -> Tensor:
    return values.detach().flatten(1)


def _units_are_equal(weight_UI: Tensor, gradient_UI: Tensor) -> bool:
    """Return whether all units are equal within each gate, for 1 to 4 gates of equal size.

    U = units of all gates, I = inputs, G = gates.
    """
    num_units = len(weight_UI)
    return any(
        num_units % num_gates == 0
        and num_units // num_gates >= 2
        and _units_of_gates_are_equal(weight_UI, num_gates)
        and _units_of_gates_are_equal(gradient_UI, num_gates)
        for num_gates in (1, 2, 3, 4)
    )


def _units_of_gates_are_equal(values_UI: Tensor, num_gates: int) -> bool:
    values_GUI = values_UI.unflatten(0, (num_gates, -1))
    limit = _TOLERANCE * values_UI.abs().max()
    # Comparing the first two units is sufficient for nearly every network, and fast.
    if not bool(((values_GUI[:, 1] - values_GUI[:, 0]).abs() <= limit).all()):
        return False
    return bool(((values_GUI - values_GUI[:, :1]).abs() <= limit).all())
