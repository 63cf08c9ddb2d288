"""Finds layers whose units are equal and get equal gradients, so that they never differ."""

from torch import Tensor, nn

_TOLERANCE = 1e-4
"""Maximum difference of equal units, relative to the largest absolute value of the tensor. It is
above rounding errors and far below the differences of random initial weights."""

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
"""Modules whose weight rows are tokens, not units."""

_TRANSPOSED_CONVOLUTIONS = nn.modules.conv._ConvTransposeNd
"""Modules whose weights have the shape (inputs, outputs, ...)."""


def symmetric_weights(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the weight matrices whose units are all equal and get equal gradients.

    Such units remain equal during training. A weight is returned when it is trainable, has at
    least two rows and a nonzero gradient, and all its rows are equal in both weight and gradient.
    Gates stacked in one matrix, as in recurrent networks, are compared within each gate.

    Call it after a backward pass, preferably after some steps: rows that start equal, as in a
    zero-initialised last layer, differ after the first step unless their gradients are equal too.
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
                    _rows(parameter.transpose(0, 1)),
                    _rows(gradient.transpose(0, 1)),
                )
            else:
                weight_UI, gradient_UI = _rows(parameter), _rows(gradient)
            if bool(gradient.any()) and _units_are_equal(weight_UI, gradient_UI):
                names.append(name)
    return tuple(names)


def _rows(values: Tensor) -> Tensor:
    return values.detach().flatten(1)


def _units_are_equal(weight_UI: Tensor, gradient_UI: Tensor) -> bool:
    """Return whether the rows are equal within each of 1 to 4 gates. U = units, I = inputs."""
    num_rows = len(weight_UI)
    return any(
        num_rows % num_gates == 0
        and num_rows // num_gates >= 2
        and _rows_are_equal(weight_UI, num_gates)
        and _rows_are_equal(gradient_UI, num_gates)
        for num_gates in (1, 2, 3, 4)
    )


def _rows_are_equal(values_UI: Tensor, num_gates: int) -> bool:
    values_GUI = values_UI.unflatten(0, (num_gates, -1))
    limit = _TOLERANCE * values_UI.abs().max()
    # Comparing the first two units is sufficient for nearly every network, and fast.
    if not bool(((values_GUI[:, 1] - values_GUI[:, 0]).abs() <= limit).all()):
        return False
    return bool(((values_GUI - values_GUI[:, :1]).abs() <= limit).all())
