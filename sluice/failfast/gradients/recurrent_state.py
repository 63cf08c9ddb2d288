"""Do the gates of recurrent layers learn, and do their states stay in range? (GRAD-2)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from sluice.base.errors import ContractError
from sluice.base.settings import Record
from sluice.models.slstm import SLSTMLayer


class RecurrentGradients(Record):
    """Gradients of one layer of one recurrent module, and one direction of it."""

    layer: str = Field(description="Name of the module and its layer, such as 'core.l0'.")
    forget_bias_norm: float | None = Field(
        description="L2 norm of the forget gate's slice of the bias gradients; None where no "
        "trainable bias has a gradient, or the cell has no forget gate."
    )
    hidden_norm: float | None = Field(
        description="L2 norm of the hidden-to-hidden weight's gradient; None without one."
    )


class NormaliserRange(Record):
    """Range of the normaliser state of one sLSTM layer, over all rows, units and examples."""

    layer: str
    lowest: float
    highest: float

    @property
    def vanishes(self) -> bool:
        """True when the state is so small that dividing by it overflows, or is NaN."""
        return not self.lowest >= torch.finfo(torch.float32).tiny


def recurrent_gradients(model: nn.Module) -> tuple[RecurrentGradients, ...]:
    """Measure the gates of every LSTM, GRU and sLSTM layer after a backward pass.

    torch stacks the gates of an LSTM as i, f, g, o: the forget gate is the second quarter of a
    bias. A forget slice of exactly 0 says that no state is carried from row to row: a window of
    one row, or an output that is read before the state is used.

    Args:
        model: With gradients.
    """
    return tuple(
        _gradients(".".join(filter(None, (name, suffix.removeprefix("_")))), module, suffix)
        for name, module in model.named_modules()
        for suffix in _suffixes(module)
    )


def normaliser_range(layer: str, normaliser: Tensor) -> NormaliserRange:
    """Return the range of a normaliser state; any sLSTM's, not only ours.

    Args:
        layer: Name for the message.
        normaliser: The state, of any shape.

    Raises:
        ContractError: It holds NaN or infinity, or nothing.
    """
    if not normaliser.numel():
        raise ContractError(
            f"The normaliser state of {layer} must hold values, got the shape "
            f"{tuple(normaliser.shape)}.",
            fix="Give the states of at least one example and row.",
        )
    num_bad = int((~torch.isfinite(normaliser)).sum())
    if num_bad:
        raise ContractError(
            f"The normaliser state of {layer} must be finite, {num_bad} of {normaliser.numel()} "
            "values are not.",
            cause="The exponential gates overflow, or weights or inputs are NaN.",
            fix="Subtract a stabiliser state in the exponents, as sluice.models.slstm does.",
        )
    lowest, highest = torch.aminmax(normaliser)
    return NormaliserRange(layer=layer, lowest=float(lowest), highest=float(highest))


@contextmanager
def watched_normalisers(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect the normaliser states of all sLSTM layers of the newest forward pass, by name."""
    states: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: tuple[Tensor, Tensor]) -> None:  # noqa: ARG001
            states[name] = output[1].detach()

        return hook

    handles = [
        module.register_forward_hook(keep(name))
        for name, module in model.named_modules()
        if isinstance(module, SLSTMLayer)
    ]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()


def _suffixes(module: nn.Module) -> tuple[str, ...]:
    """Return the endings of the parameter names, one for each layer and direction."""
    if isinstance(module, (nn.LSTM, nn.GRU)):
        sides = ("", "_reverse") if module.bidirectional else ("",)
        return tuple(f"_l{layer}{side}" for layer in range(module.num_layers) for side in sides)
    return ("",) if isinstance(module, (nn.LSTMCell, nn.GRUCell, SLSTMLayer)) else ()


def _gradients(layer: str, module: nn.Module, suffix: str) -> RecurrentGradients:
    # i, f, g, o here and there: the forget gate is the second block.
    has_forget = isinstance(module, (nn.LSTM, nn.LSTMCell, SLSTMLayer))
    names = ["bias"] if isinstance(module, SLSTMLayer) else ["bias_ih", "bias_hh"]
    biases = [_gradient(module, f"{name}{suffix}") for name in names] if has_forget else []
    forget = [bias.chunk(4)[1] for bias in biases if bias is not None]
    hidden = _gradient(module, f"weight_hh{suffix}")
    return RecurrentGradients(
        layer=layer,
        forget_bias_norm=_norm(torch.cat(forget)) if forget else None,
        hidden_norm=None if hidden is None else _norm(hidden),
    )


def _gradient(module: nn.Module, name: str) -> Tensor | None:
    parameter = getattr(module, name, None)
    return parameter.grad if isinstance(parameter, nn.Parameter) else None


def _norm(gradient: Tensor) -> float:
    return float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
