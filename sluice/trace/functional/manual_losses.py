"""Detects errors in losses that the program computes itself.

The autograd graph of the loss shows broadcasts of every output against every target, double
activations and masked targets.
"""

import math
from typing import Any

from torch import Tensor

from sluice.trace.functional.masked_losses import find_masked_targets
from sluice.trace.inspection.autograd_graph import SHAPE_NODES, output_shape
from sluice.trace.inspection.token_statistics import best_token_alignment
from sluice.trace.program_events import ScalarBackwardBegins
from sluice.trace.recording.log_spaced_sampler import LogSpacedSampler
from sluice.trace.records.losses import (
    MANUAL_CROSS_ENTROPY,
    MANUAL_DIFFERENCE,
    MANUAL_LOGISTIC_LOSS,
    MANUAL_MASKED_LOSS,
    LossRecord,
    NextTokenTargets,
)
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer_context import TracerContext

_NUM_FIRST_PASSES = 8
"""Number of backward passes that are all inspected at the start and after each new form of loss."""
_NUM_FORM_NODES = 4
"""Losses have the same form if the types of this number of autograd nodes, from the loss on, are
equal."""
_MAX_FORMS = 64
"""Maximum number of forms. Further forms do not cause additional inspections."""
_NUM_SAMPLED_STEPS = 128
"""After the first passes, one backward pass of each step with statistics is inspected, for this
number of steps. Then the intervals between inspected passes grow. Sampling never ends, because a
later phase of the training may use another loss."""
_MAX_NODES_TO_BROADCAST = 32
"""Maximum number of nodes that are searched for a broadcast."""
_NODES_BEFORE_COMPARISON = frozenset(
    f"{name}Backward{number}"
    for name in (
        "Mean", "Sum", "Pow", "Abs", "Sub", "Rsub", "Add", "Mul", "Div", "Neg", "Exp", "Log",
        "Sqrt", "Clamp", "ClampMin", "Relu", "Softplus", "LogSigmoid", "Where", "Maximum",
        "Minimum", "LogCosh", "Cosh",
    )
    for number in (0, 1, 2)
)  # fmt: skip
"""Reductions and elementwise nodes that may be between a loss and the node that compares outputs
with targets. The comparing node itself is also one of these nodes."""
_EXPLICIT_RESHAPES = (
    "Unsqueeze",
    "View",
    "UnsafeView",
    "Reshape",
    "T",
    "Transpose",
    "Permute",
    "Expand",
)
"""Kinds of nodes that reshape outputs explicitly, so that a broadcast of them is intentional."""
_MAX_NODES_TO_OUTER_ACTIVATION = 128
"""Maximum number of nodes that are searched for the outer activation of a double activation."""
_MAX_NODES_TO_INNER_ACTIVATION = 8
"""Maximum number of nodes, from the outer activation towards the inputs, that are searched for the
inner activation."""
_LAYER_NODES = (
    "Addmm", "Mm", "Bmm", "Mv", "Baddbmm", "Convolution", "Native", "Embedding", "NllLoss",
    "BinaryCrossEntropy", "KlDiv", "torch::autograd",
)  # fmt: skip
"""Prefixes of nodes that end the search for a double activation: layers of the model, and losses of
torch, which ``hooks.losses`` inspects."""
_OUTER_ACTIVATIONS = (
    (MANUAL_CROSS_ENTROPY, ("Logsumexp", "LogSoftmax")),
    (MANUAL_LOGISTIC_LOSS, ("Softplus", "LogSigmoid", "Log1P")),
)
"""Kind of a manual loss, and prefixes of the nodes of the activation that this loss applies."""
_INNER_ACTIVATIONS = ("Softmax", "Sigmoid")
"""Prefixes of the nodes of an activation at the end of a network."""
_SKIPPED_NODES = frozenset({"Neg", "Abs", "Exp"})
"""Kinds of nodes that may be between the two activations, besides nodes that only reshape."""


class ManualLossWatch:
    """Inspects the first losses of each form, and a sample of later ones."""

    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """Forget all forms, at the start of a trace and after a fork."""
        self._num_passes_left = _NUM_FIRST_PASSES
        """Number of coming backward passes that are inspected without sampling."""
        self._sampler = LogSpacedSampler(_NUM_SAMPLED_STEPS)
        """Selects the passes that are inspected after the first passes."""
        self._last_inspection_step = -1
        """Number of optimizer steps before the last inspected pass; -1 before the first such
        pass."""
        self._forms: set[tuple[type, ...]] = set()
        """Known forms: the types of the first autograd nodes of a loss."""

    def on_loss(self, begins: ScalarBackwardBegins) -> None:
        """Inspect the first losses of each form, and a sample of later losses."""
        self._track_form(begins.loss)
        if self._num_passes_left or self._tracer.sampling.samples_statistics:
            self._inspect_if_due(begins.thread, begins.loss)

    def _track_form(self, loss: Tensor) -> None:
        """Inspect the next passes if the form of a loss is new."""
        form: list[type] = []  # types instead of names, because node.name() is slow
        node: Any = loss.grad_fn
        while node is not None and len(form) < _NUM_FORM_NODES:
            form.append(type(node))
            node = node.next_functions[0][0] if node.next_functions else None
        if tuple(form) not in self._forms and len(self._forms) < _MAX_FORMS:
            self._forms.add(tuple(form))
            self._num_passes_left = _NUM_FIRST_PASSES

    def _inspect_if_due(self, thread: ThreadState, loss: Tensor) -> None:
        """Inspect a loss for broadcasts, double activations and masked targets, if it is due."""
        tracer = self._tracer
        if self._num_passes_left:
            self._num_passes_left -= 1
        elif self._last_inspection_step == tracer.steps.last_step or not self._sampler.advance():
            return
        self._last_inspection_step, began_ns = tracer.steps.last_step, tracer.clock()
        self._inspect(loss)
        if tracer.sampling.samples_statistics:
            thread.step.add_cost(tracer.clock() - began_ns)

    def _inspect(self, loss: Tensor) -> None:
        broadcast = find_broadcast(loss.grad_fn)
        if broadcast is not None:
            self._write(MANUAL_DIFFERENCE, broadcast[0], broadcast[1], loss)
        for kind, producer_node, shape in find_double_activations(loss.grad_fn):
            self._write(kind, producer_node, shape, loss)
        for targets, is_included in find_masked_targets(loss):
            self._inspect_mask(targets, is_included, loss)

    def _inspect_mask(self, targets: Tensor, is_included: Tensor, loss: Tensor) -> None:
        """Record which next-token targets a mask excludes."""
        inputs = self._tracer.local.thread.call.inputs
        alignment = best_token_alignment(inputs, targets, is_included)
        if alignment is not None:
            shape, num_included = (len(targets),), int(is_included.sum())
            self._write(
                MANUAL_MASKED_LOSS, "", shape, loss, tokens=alignment, num_included=num_included
            )

    def _write(
        self,
        kind: str,
        producer_node: str,
        shape: tuple[int, ...],
        loss: Tensor,
        *,
        tokens: NextTokenTargets | None = None,
        num_included: int | None = None,
    ) -> None:
        """Write a record of a loss.

        Args:
            kind: Kind of the manual loss.
            producer_node: Name of the node that computed the outputs.
            shape: Shape of the outputs.
            loss: The loss.
            tokens: Alignment of the targets with the input tokens.
            num_included: Number of targets that a mask includes; None for all.
        """
        tracer, thread = self._tracer, self._tracer.local.thread
        num_rows = shape[0] if shape else 1
        # The graph does not contain the shape of the targets. Infer it: if outputs of shape
        # (rows, 1) were broadcast to (rows, rows), targets have the shape (rows,), and vice versa.
        target_shape = shape[:1] if len(shape) > 1 else (*shape, 1)
        record = LossRecord(
            step=tracer.steps.last_step,
            kind=kind,
            network=thread.call.network,
            loader=thread.last_loader,
            is_learning=True,
            reduction="none",
            producer_node=producer_node,
            input_shape=shape,
            target_shape=target_shape,
            smallest=math.nan,
            largest=math.nan,
            min_row_sum=math.nan,
            max_row_sum=math.nan,
            target_is_integer=False,
            target_smallest=math.nan,
            target_largest=math.nan,
            num_targets=num_rows,
            num_supervised=num_rows if num_included is None else num_included,
            value=loss.item(),
            tokens=tokens,
        )
        tracer.recorder.write("loss", record)


def find_broadcast(loss_node: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return the name of the node that produced broadcast outputs, and the shape of the outputs.

    Outputs of shape (rows, 1) or (rows,) were broadcast against all targets if an operation
    combines them with a tensor without gradient, and the result has the shape (rows, rows). The
    operation must be a subtraction, or its operand must be the logarithm of the outputs. Outputs
    that the program reshaped explicitly are ignored.

    Args:
        loss_node: Autograd node of the loss.

    Returns:
        Name and shape; None if no such node is found.
    """
    pending_edges = [(loss_node, 0)]
    for _ in range(_MAX_NODES_TO_BROADCAST):
        if not pending_edges:
            return None
        node, output_index = pending_edges.pop(0)
        if node is None or node.name() not in _NODES_BEFORE_COMPARISON:
            continue
        edges = node.next_functions
        shape = output_shape(node, output_index)
        grad_edges = [edge for edge in edges if edge[0] is not None]
        is_square = len(shape) == 2 and shape[0] == shape[1] > 1
        if is_square and len(edges) == 2 and len(grad_edges) == 1:
            operand_name, operand_shape = grad_edges[0][0].name(), output_shape(*grad_edges[0])
            is_difference = node.name().startswith(("Sub", "Rsub"))
            is_comparison = is_difference or operand_name.startswith("Log")
            is_reshaped = operand_name.rpartition("Backward")[0] in _EXPLICIT_RESHAPES
            is_broadcast = operand_shape in ((shape[0], 1), (shape[0],))
            if is_comparison and not is_reshaped and is_broadcast:
                return operand_name, operand_shape
        pending_edges += grad_edges
    return None


def find_double_activations(loss_node: Any) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return losses that apply an activation to outputs of an activation.

    Each item is the kind of the loss, the name of the node that produced the outputs, and the shape
    of the outputs. Cross entropy expects logits, not the output of a softmax; a logistic loss
    expects scores, not the output of a sigmoid. Only nodes between the loss and the last layer are
    inspected.
    """
    pending_nodes, visited = [loss_node], set[Any]()
    activations: dict[str, tuple[str, str, tuple[int, ...]]] = {}
    while pending_nodes and len(visited) < _MAX_NODES_TO_OUTER_ACTIVATION:
        node = pending_nodes.pop(0)
        if node is None or node in visited or node.name().startswith(_LAYER_NODES):
            continue
        visited.add(node)
        name = node.name()
        kind = next((k for k, prefixes in _OUTER_ACTIVATIONS if name.startswith(prefixes)), None)
        if kind is not None:
            producer, skipped_kinds = _find_producer(*node.next_functions[0])
            # log(1 + x) is a softplus only if x is an exponential.
            is_activation = not name.startswith("Log1P") or "Exp" in skipped_kinds
            if (
                producer is not None
                and is_activation
                and producer[0].name().startswith(_INNER_ACTIVATIONS)
            ):
                activations.setdefault(kind, (kind, producer[0].name(), output_shape(*producer)))
        pending_nodes += [input_node for input_node, _ in node.next_functions]
    return list(activations.values())


def _find_producer(node: Any, output_index: int) -> tuple[tuple[Any, int] | None, set[str]]:
    """Find the node that produced the outputs, before reshapes, negations, abs and exp.

    Returns:
        The node with its output index, and the kinds of the skipped nodes. None instead of the
        node and index if too many nodes were skipped or the graph ends.
    """
    skipped_kinds = set[str]()
    for _ in range(_MAX_NODES_TO_INNER_ACTIVATION):
        if node is None:
            return None, skipped_kinds
        kind = node.name().rpartition("Backward")[0]
        if kind not in _SKIPPED_NODES and node.name() not in SHAPE_NODES:
            return (node, output_index), skipped_kinds
        skipped_kinds.add(kind)
        node, output_index = node.next_functions[0]
    return None, skipped_kinds
