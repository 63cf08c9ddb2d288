"""Losses written out by hand: a difference of every output and every target, told by autograd."""

import math
from typing import Any

from torch import Tensor

from sluice.trace.evidence.losses import (
    BINARY_BY_HAND,
    BY_HAND,
    CLASSES_BY_HAND,
    MASKED_BY_HAND,
    LossFact,
    NextTokens,
)
from sluice.trace.graph import SHAPES
from sluice.trace.masked import masked_targets
from sluice.trace.recorder import Thin
from sluice.trace.tokens import are_tokens, next_tokens
from sluice.trace.tracer import Tracer

_LOOKS = 8
"""Backward passes at the start that are looked at."""
_FORM, _MOST_FORMS = 4, 64
"""Functions that a loss was made by last, which tell how it is computed, and such ways."""
_MOST_LATER = 128
"""Later ones, at steps with statistics: a loss may be another one in a second phase."""
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
_MOST_BEHIND, _MOST_HOPS = 128, 8
_LAYERS = (
    "Addmm", "Mm", "Bmm", "Mv", "Baddbmm", "Convolution", "Native", "Embedding", "NllLoss",
    "BinaryCrossEntropy", "KlDiv", "torch::autograd",
)  # fmt: skip
"""Where what a loss is made of begins; torch's own losses are looked at elsewhere."""
_SQUASHES = (
    (CLASSES_BY_HAND, ("Logsumexp", "LogSoftmax")),
    (BINARY_BY_HAND, ("Softplus", "LogSigmoid", "Log1P")),
)
_SQUASHED = ("Softmax", "Sigmoid")
_SIGNS = frozenset({"Neg", "Abs", "Exp"})


class ByHand:
    """Looks at the first losses of a trace, and at some of those that follow."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.looks_left = _LOOKS
        self._later, self._looked_at = Thin(_MOST_LATER), -1
        self._forms: set[tuple[type, ...]] = set()

    def meet(self, loss: Tensor) -> None:
        """Look at the first losses that are computed in another way than those so far, too."""
        form: list[type] = []  # to ask for the name of a node costs more than all the rest
        node: Any = loss.grad_fn
        while node is not None and len(form) < _FORM:
            form.append(type(node))
            node = node.next_functions[0][0] if node.next_functions else None
        told = tuple(form)
        if told not in self._forms and len(self._forms) < _MOST_FORMS:
            self._forms.add(told)
            self.looks_left = _LOOKS

    def look(self, loss: Tensor) -> None:
        """See whether rows meet the targets of others, or probabilities are taken for logits."""
        tracer, lane = self._tracer, self._tracer.local.lane
        if self.looks_left:
            self.looks_left -= 1
        elif self._looked_at == tracer.steps or not self._later.takes_next():
            return
        self._looked_at, began = tracer.steps, tracer.clock()
        self._look(loss)
        if tracer.has_statistics:
            lane.spent += tracer.clock() - began

    def _look(self, loss: Tensor) -> None:
        found = repeated(loss.grad_fn)
        if found is not None:
            self._write(BY_HAND, found[0], found[1], loss)
        for kind, made_by, shape in squashed(loss.grad_fn):
            self._write(kind, made_by, shape, loss)
        for targets, counts in masked_targets(loss):
            self._masked(targets, counts, loss)

    def _masked(self, targets: Tensor, counts: Tensor, loss: Tensor) -> None:
        """Tell which of the next tokens a mask leaves out."""
        given = (ref() for ref in self._tracer.local.lane.given)
        told = [
            tokens
            for ids in given
            if ids is not None and are_tokens(ids)
            if (tokens := next_tokens(ids, targets, counts)) is not None
        ]
        best = max(told, key=lambda tokens: tokens.next_share, default=None)
        if best is not None:
            num = int(counts.sum())
            self._write(MASKED_BY_HAND, "", (len(targets),), loss, tokens=best, num_counted=num)

    def _write(
        self,
        kind: str,
        made_by: str,
        shape: tuple[int, ...],
        loss: Tensor,
        *,
        tokens: NextTokens | None = None,
        num_counted: int | None = None,
    ) -> None:
        tracer, lane = self._tracer, self._tracer.local.lane
        rows = shape[0] if shape else 1
        fact = LossFact(
            step=tracer.steps,
            kind=kind,
            network=lane.called,
            loader=lane.loader,
            is_learning=True,
            reduction="none",
            made_by=made_by,
            input_shape=shape,
            target_shape=shape[:1] if len(shape) > 1 else (*shape, 1),
            smallest=math.nan,
            largest=math.nan,
            row_sum_low=math.nan,
            row_sum_high=math.nan,
            target_is_integer=False,
            target_smallest=math.nan,
            target_largest=math.nan,
            num_targets=rows,
            num_supervised=rows if num_counted is None else num_counted,
            value=loss.item(),
            tokens=tokens,
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
    waiting = [(loss, 0)]
    for _ in range(_MOST_NODES):
        if not waiting:
            return None
        node, place = waiting.pop(0)
        if node is None or node.name() not in _THROUGH:
            continue
        parts = node.next_functions
        shape, learning = _shape(node, place), [part for part in parts if part[0] is not None]
        if len(shape) == 2 and shape[0] == shape[1] > 1 and len(parts) == 2 and len(learning) == 1:
            name, own = learning[0][0].name(), _shape(*learning[0])
            compares = node.name().startswith(("Sub", "Rsub")) or name.startswith("Log")
            is_meant = name.rpartition("Backward")[0] in _ON_PURPOSE
            if compares and not is_meant and own in ((shape[0], 1), (shape[0],)):
                return name, own
        waiting += learning
    return None


def squashed(loss: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return losses that squash what is squashed already: kind, node that made it, its shape.

    A logarithm of a sum of exponentials is taken of logits, not of a softmax; a softplus of a
    score, not of a sigmoid. Looked at is what lies between the loss and the last layer.
    """
    waiting, seen, found = [loss], set[Any](), dict[str, tuple[str, str, tuple[int, ...]]]()
    while waiting and len(seen) < _MOST_BEHIND:
        node = waiting.pop(0)
        if node is None or node in seen or node.name().startswith(_LAYERS):
            continue
        seen.add(node)
        name = node.name()
        kind = next((kind for kind, outer in _SQUASHES if name.startswith(outer)), None)
        if kind is not None:
            made, through = _behind(*node.next_functions[0])
            is_log = not name.startswith("Log1P") or "Exp" in through
            if made is not None and is_log and made[0].name().startswith(_SQUASHED):
                found.setdefault(kind, (kind, made[0].name(), _shape(*made)))
        waiting += [part for part, _ in node.next_functions]
    return list(found.values())


def _behind(node: Any, place: int) -> tuple[tuple[Any, int] | None, set[str]]:
    """Return what made some numbers before their shape or sign changed, and what was passed."""
    passed = set[str]()
    for _ in range(_MOST_HOPS):
        if node is None:
            return None, passed
        kind = node.name().rpartition("Backward")[0]
        if kind not in _SIGNS and node.name() not in SHAPES:
            return (node, place), passed
        passed.add(kind)
        node, place = node.next_functions[0]
    return None, passed


def _shape(node: Any, place: int) -> tuple[int, ...]:
    told: Any = getattr(node, "_input_metadata", ())
    return tuple(told[place].shape) if place < len(told) else ()


def watch_losses_by_hand(tracer: Tracer) -> None:
    """Look at losses that no function of torch made; the seam of backward passes calls it."""
    tracer.by_hand = ByHand(tracer)
    tracer.on_begin.append(tracer.by_hand.reset)
