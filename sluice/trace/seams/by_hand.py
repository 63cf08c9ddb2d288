"""Losses written out by hand: a difference of every output and every target, told by autograd."""

import math
from typing import Any

from torch import Tensor

from sluice.trace.evidence.losses import BY_HAND, LossFact
from sluice.trace.tracer import Tracer

_LOOKS = 8
"""Backward passes at the start that are looked at."""
_MOST_NODES = 32
_THROUGH = frozenset(
    f"{name}Backward{number}"
    for name in (
        "Mean", "Sum", "Pow", "Abs", "Sub", "Rsub", "Add", "Mul", "Div", "Neg", "Exp", "Log",
        "Sqrt", "Clamp", "ClampMin", "Relu", "Softplus", "LogSigmoid", "Where", "Maximum",
        "Minimum", "LogCosh", "Cosh",
    )
    for number in (0, 1, 2)
)  # fmt: skip
"""Between a loss and what it compares."""
_ON_PURPOSE = ("Unsqueeze", "View", "UnsafeView", "Reshape", "T", "Transpose", "Permute", "Expand")
"""Ask for the shape that is repeated."""


class ByHand:
    """Looks at the first losses of a trace."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.looks_left = _LOOKS

    def look(self, loss: Tensor) -> None:
        """See whether outputs of shape (rows, 1) meet targets of shape (rows,), or the reverse."""
        self.looks_left -= 1
        found = repeated(loss.grad_fn)
        if found is None:
            return
        name, shape = found
        tracer, lane = self._tracer, self._tracer.local.lane
        fact = LossFact(
            step=tracer.steps,
            kind=BY_HAND,
            network=lane.called,
            loader=lane.loader,
            is_learning=True,
            reduction="none",
            made_by=name,
            input_shape=shape,
            target_shape=shape[:1] if len(shape) > 1 else (*shape, 1),
            smallest=math.nan,
            largest=math.nan,
            row_sum_low=math.nan,
            row_sum_high=math.nan,
            target_is_integer=False,
            target_smallest=math.nan,
            target_largest=math.nan,
            num_targets=shape[0],
            num_supervised=shape[0],
            value=loss.item(),
        )
        tracer.recorder.write("loss", fact)


def repeated(loss: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return the node and shape of outputs that were repeated to meet every target.

    Args:
        loss: Autograd node of the loss.

    Returns:
        None unless a difference, or a product with a logarithm, of shape (rows, rows) has
        outputs of shape (rows, 1) or (rows,) on one side, and numbers that do not learn on the
        other.
    """
    waiting = [loss]
    for _ in range(_MOST_NODES):
        if not waiting:
            return None
        node = waiting.pop(0)
        if node is None or node.name() not in _THROUGH:
            continue
        parts = [part for part, _ in node.next_functions]
        shape, learning = _shape(node), [part for part in parts if part is not None]
        if len(shape) == 2 and shape[0] == shape[1] > 1 and len(parts) == 2 and len(learning) == 1:
            name, own = learning[0].name(), _shape(learning[0])
            compares = node.name().startswith(("Sub", "Rsub")) or name.startswith("Log")
            is_meant = name.rpartition("Backward")[0] in _ON_PURPOSE
            if compares and not is_meant and own in ((shape[0], 1), (shape[0],)):
                return name, own
        waiting += learning
    return None


def _shape(node: Any) -> tuple[int, ...]:
    told: Any = getattr(node, "_input_metadata", ())
    return tuple(told[0].shape) if len(told) == 1 else ()


def watch_losses_by_hand(tracer: Tracer) -> None:
    """Look at losses that no function of torch made; the seam of backward passes calls it."""
    tracer.by_hand = ByHand(tracer)
    tracer.on_begin.append(tracer.by_hand.reset)
