"""Records inputs of functional models in blocks with disabled gradients, as in an evaluation.

Such a block builds no autograd graph, and a functional model calls no module. After the first
functional model is found, the operations in the first blocks of each call site are therefore
observed with a ``TorchFunctionMode``. The mode does not change the results of the operations.
"""

import functools
import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor, compiler
from torch.overrides import TorchFunctionMode

from sluice.trace.functional.functional_models import FunctionalModel, FunctionalModelWatch
from sluice.trace.inspection.functorch import in_functorch_transform
from sluice.trace.thread_state import ThreadState
from sluice.trace.tracer_context import TracerContext

_MAX_BLOCKS = 64
"""Maximum number of observed blocks per call site."""
_MAX_UNMATCHED_BLOCKS = 16
"""A call site is ignored after this number of consecutive blocks without a model input. Its blocks
are probably weight updates."""
_MIN_ROWS = 2
"""Minimum number of rows of a recorded batch. Smaller batches usually belong to the generation of
samples, not to an evaluation."""
_OPERAND_POSITIONS: dict[str, tuple[int, int, bool]] = {
    **dict.fromkeys(("matmul", "__matmul__", "mm", "bmm", "mv", "mul", "__mul__"), (0, 1, True)),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), (1, 2, True)),
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "embedding"), (0, 1, False)),
    "__getitem__": (1, 0, False),
    "index_select": (2, 0, False),
}
"""Positions of the input and the weight of an operation, and whether they may be swapped."""
_NO_GRAD_CONTEXTS = (torch.no_grad, torch.inference_mode)


class _OpListener(TorchFunctionMode):
    """Observes the operations of one block."""

    def __init__(self, owner: "NoGradListener", thread: ThreadState, call_site: Any) -> None:
        super().__init__()
        self._owner, self._thread = owner, thread
        self.call_site = call_site
        """Call site of the block."""
        self.pending_inputs: list[Tensor] = []
        """Inputs that were observed in the running pass of a model. There are several if the pass
        uses the model's first leaf (the trained tensor that is used first) several times."""
        self.is_muted = False
        """Whether operations are ignored, because the block has ended."""
        self.has_match = False
        """Whether an operation with a model input was observed."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # If ``func`` is the tracer's hook of a loss function, call the original function: the hook
        # is already running and records this call. Its ``__prepare_scriptable__``, which exists for
        # TorchScript, returns the original function.
        get_original = getattr(func, "__prepare_scriptable__", None)
        result = (func if get_original is None else get_original())(*args, **(kwargs or {}))
        if not self.is_muted and not kwargs:
            self._owner.on_op(self, self._thread, getattr(func, "__name__", ""), args)
        return result


class NoGradListener:
    """Observes the operations in blocks with disabled gradients, one ``_OpListener`` per block."""

    def __init__(self, tracer: TracerContext, model_watch: FunctionalModelWatch) -> None:
        self._tracer, self._model_watch = tracer, model_watch
        self._op_listeners: dict[int, _OpListener] = {}
        """Listeners of the running blocks, by the id of the block."""
        self._num_blocks = Counter[Any]()
        """Number of observed blocks by call site."""
        self._num_unmatched_blocks = Counter[Any]()
        """Number of blocks since the last block with a model input, by call site."""

    def begin(self, block: Any, call_site: Any) -> None:
        """Observe a block that starts.

        The block is not observed if its call site was observed often enough, if the program uses
        ``torch.compile``, or inside a functorch transform.
        """
        if (
            id(block) in self._op_listeners
            or self._num_unmatched_blocks[call_site] >= _MAX_UNMATCHED_BLOCKS
        ):
            return
        if (
            self._num_blocks[call_site] >= _MAX_BLOCKS
            or _is_compiling()
            or in_functorch_transform()
        ):
            return
        self._num_blocks[call_site] += 1
        listener = _OpListener(self, self._tracer.local.thread, call_site)
        self._op_listeners[id(block)] = listener
        listener.__enter__()  # type: ignore[no-untyped-call]

    def end(self, block: Any) -> None:
        """Stop observing a block."""
        listener = self._op_listeners.pop(id(block), None)
        if listener is None:
            return
        call_site = listener.call_site
        self._num_unmatched_blocks[call_site] = (
            0 if listener.has_match else self._num_unmatched_blocks[call_site] + 1
        )
        self._exit(listener)

    def end_all(self) -> None:
        """Stop observing all blocks when the trace ends."""
        for listener in self._op_listeners.values():
            self._exit(listener)
        self._op_listeners.clear()

    def _exit(self, listener: _OpListener) -> None:
        """Mute a listener, and remove it from the stack of function modes if it is on top.

        If blocks end out of order, another mode may be on top of the stack.
        """
        listener.is_muted = True
        depth = torch._C._len_torch_function_stack()
        if depth and torch._C._get_function_stack_at(depth - 1) is listener:
            listener.__exit__(None, None, None)

    def on_op(
        self, listener: _OpListener, thread: ThreadState, name: str, args: tuple[Any, ...]
    ) -> None:
        """Inspect one operation, if it may combine an input with a weight."""
        operand_positions = _OPERAND_POSITIONS.get(name)
        if (
            operand_positions is not None
            and self._tracer.is_on
            and len(args) > max(operand_positions[:2])
        ):
            self._tracer.run_safely(self._match_operands, listener, thread, args, operand_positions)

    def _match_operands(
        self,
        listener: _OpListener,
        thread: ThreadState,
        args: tuple[Any, ...],
        operand_positions: tuple[int, int, bool],
    ) -> None:
        """Report an operand as input of a model if the other operand is the model's first leaf."""
        input_position, weight_position, may_be_swapped = operand_positions
        values, weight = args[input_position], args[weight_position]
        if type(values) is not Tensor or not isinstance(weight, Tensor):
            return
        model, is_left = self._find_model(weight), True
        if model is None and may_be_swapped:
            values, weight, is_left = weight, values, False
            model = self._find_model(weight)
        if model is None or self._find_model(values) is not None:
            return
        rows = model.match_input(values.detach(), is_left=is_left)
        if rows is None or torch.is_grad_enabled():
            return
        listener.has_match = True
        if model.has_varying_uses:
            return  # the number of inputs of one pass is unknown without a graph
        listener.pending_inputs.append(rows)
        if len(listener.pending_inputs) < model.num_uses:
            return
        inputs, listener.pending_inputs = listener.pending_inputs, []
        if len({t.shape for t in inputs}) > 1 or len(rows) < _MIN_ROWS:
            return
        batch = rows if len(inputs) == 1 else torch.stack(inputs, 1)
        self._model_watch.on_no_grad_input(thread, model, batch)

    def _find_model(self, weight: Tensor) -> FunctionalModel | None:
        """Return the model whose first leaf shares storage with a tensor; None if no model does."""
        if weight.layout != torch.strided:
            return None
        address = weight.untyped_storage().data_ptr()
        return next((m for m in self._model_watch.models if m.storage_address() == address), None)


def _is_compiling() -> bool:
    """Return whether the program uses ``torch.compile``, which would compile the function mode."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    backends: dict[int, Any] = getattr(dynamo, "cached_backends", {})
    return compiler.is_compiling() or any(b is not None for b in backends.values())


def _call_site() -> Any:
    """Return the code position where a block or the call of a decorated function starts."""
    frame = sys._getframe(2)
    if frame.f_globals.get("__name__") == "torch.utils._contextlib" and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def observe_no_grad_blocks(tracer: TracerContext, model_watch: FunctionalModelWatch) -> None:
    """Record the inputs of functional models in blocks with disabled gradients."""
    listener = NoGradListener(tracer, model_watch)
    for context in _NO_GRAD_CONTEXTS:
        _patch_context(tracer, model_watch, listener, context)
    tracer.patches.on_restore(listener.end_all)


def _patch_context(
    tracer: TracerContext, model_watch: FunctionalModelWatch, listener: NoGradListener, context: Any
) -> None:
    original_enter, original_exit = context.__enter__, context.__exit__

    @functools.wraps(original_enter)
    def begin(block: Any) -> Any:
        result = original_enter(block)
        thread = tracer.local.thread
        network = thread.call.network
        is_functional = network >= 0 and network in model_watch.network_indices
        if tracer.is_on and is_functional and not thread.backward.is_running:
            tracer.run_safely(listener.begin, block, _call_site())
        return result

    @functools.wraps(original_exit)
    def end(block: Any, *args: Any) -> Any:
        tracer.run_safely(listener.end, block)
        return original_exit(block, *args)

    tracer.patches.replace(context, "__enter__", begin)
    tracer.patches.replace(context, "__exit__", end)
