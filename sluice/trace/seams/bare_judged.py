"""What networks of bare tensors are given where they do not learn: in blocks without gradients.

Nothing is called there, and no graph is left behind. So operations are listened to in the first
blocks of each place of a program, once such a network is known; what a block computes stays the
same.
"""

import functools
import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor, compiler
from torch.overrides import TorchFunctionMode

from sluice.trace.lane import Lane
from sluice.trace.seams.bare import Bare, BareWatch
from sluice.trace.tracer import Tracer
from sluice.trace.transforms import is_transformed

_MOST_BLOCKS, _MOST_SILENT = 64, 16
"""Of one place in the program, and without a word before that: an update of the weights, say."""
_LEAST_ROWS = 2
"""Single ones are mostly drawn from a network, and judge nothing."""
_PLACES: dict[str, tuple[int, int, bool]] = {
    **dict.fromkeys(("matmul", "__matmul__", "mm", "bmm", "mv", "mul", "__mul__"), (0, 1, True)),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), (1, 2, True)),
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "embedding"), (0, 1, False)),
    "__getitem__": (1, 0, False),
    "index_select": (2, 0, False),
}
"""Where an operation has its numbers and its weights, and whether these may change places."""
_BLOCKS = (torch.no_grad, torch.inference_mode)


class _Ear(TorchFunctionMode):
    """Hears the operations of one block."""

    def __init__(self, judged: "BareJudged", lane: Lane) -> None:
        super().__init__()
        self._judged, self._lane = judged, lane
        self.waiting: list[Tensor] = []
        self.is_deaf = self.has_heard = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # A loss function that is watched comes here from inside, and is watched once.
        original = getattr(func, "__prepare_scriptable__", None)
        found = (func if original is None else original())(*args, **(kwargs or {}))
        if not self.is_deaf and not kwargs:
            self._judged.hear(self, self._lane, getattr(func, "__name__", ""), args)
        return found


class BareJudged:
    """Listens in blocks without gradients."""

    def __init__(self, tracer: Tracer, bare: BareWatch) -> None:
        self._tracer, self._bare = tracer, bare
        self._open: dict[int, _Ear] = {}
        self._blocks, self._silent = Counter[Any](), Counter[Any]()
        self._places: dict[int, Any] = {}

    def begin(self, block: Any, place: Any) -> None:
        """Listen in a block that begins, unless its place is known well enough."""
        if id(block) in self._open or self._silent[place] >= _MOST_SILENT:
            return
        if self._blocks[place] >= _MOST_BLOCKS or _compiles() or is_transformed():
            return
        self._blocks[place] += 1
        self._places[id(block)] = place
        ear = self._open[id(block)] = _Ear(self, self._tracer.local.lane)
        ear.__enter__()  # type: ignore[no-untyped-call]

    def end(self, block: Any) -> None:
        """Listen no more."""
        ear, place = self._open.pop(id(block), None), self._places.pop(id(block), None)
        if ear is None:
            return
        self._silent[place] = 0 if ear.has_heard else self._silent[place] + 1
        self._leave(ear)

    def end_all(self) -> None:
        """Listen no more anywhere: the trace ends."""
        for ear in self._open.values():
            self._leave(ear)
        self._open.clear()

    def _leave(self, ear: _Ear) -> None:
        ear.is_deaf = True
        num = torch._C._len_torch_function_stack()
        # One of the program's own may be above it, where blocks end in another order.
        if num and torch._C._get_function_stack_at(num - 1) is ear:
            ear.__exit__(None, None, None)

    def hear(self, ear: _Ear, lane: Lane, name: str, args: tuple[Any, ...]) -> None:
        """Hear of one operation."""
        places = _PLACES.get(name)
        if places is not None and self._tracer.is_on and len(args) > max(places[:2]):
            self._tracer.guard(self._hear, ear, lane, args, places)

    def _hear(
        self, ear: _Ear, lane: Lane, args: tuple[Any, ...], places: tuple[int, int, bool]
    ) -> None:
        values, weight = args[places[0]], args[places[1]]
        if type(values) is not Tensor or not isinstance(weight, Tensor):
            return
        network, is_left = self._begins_with(weight), True
        if network is None and places[2]:
            values, weight, is_left = weight, values, False
            network = self._begins_with(weight)
        if network is None or self._begins_with(values) is not None:
            return
        told = network.as_learned(values.detach(), is_left=is_left)
        if told is None or torch.is_grad_enabled():
            return
        ear.has_heard = True
        ear.waiting.append(told)
        if len(ear.waiting) < network.times:
            return
        waiting, ear.waiting = ear.waiting, []
        if len({t.shape for t in waiting}) > 1 or len(told) < _LEAST_ROWS:
            return
        whole = told if len(waiting) == 1 else torch.stack(waiting, 1)
        self._bare.judge(lane, network, whole)

    def _begins_with(self, weight: Tensor) -> Bare | None:
        if weight.layout != torch.strided:
            return None
        memory = weight.untyped_storage().data_ptr()
        return next((b for b in self._bare.networks if b.memory() == memory), None)


def _compiles() -> bool:
    """Tell whether the program compiles anything, which would see who listens."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    backends: dict[int, Any] = getattr(dynamo, "cached_backends", {})
    return compiler.is_compiling() or any(b is not None for b in backends.values())


def _place() -> Any:
    """Return where a block begins; of a function that is one, where it is called."""
    frame = sys._getframe(2)
    if frame.f_globals.get("__name__") == "torch.utils._contextlib" and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def watch_bare(tracer: Tracer) -> None:
    """Look at networks that are no modules; the seam of backward passes calls it.

    Blocks without gradients are listened to from the first such network on.
    """
    tracer.bare = BareWatch(tracer, lambda bare: _listen(tracer, bare))
    tracer.on_begin.append(tracer.bare.reset)


def _listen(tracer: Tracer, bare: BareWatch) -> None:
    judged, local = BareJudged(tracer, bare), tracer.local
    for kind in _BLOCKS:
        _replace(tracer, bare, judged, local, kind)
    tracer.patches.on_restore(judged.end_all)


def _replace(tracer: Tracer, bare: BareWatch, judged: BareJudged, local: Any, kind: Any) -> None:
    enter, leave = kind.__enter__, kind.__exit__

    @functools.wraps(enter)
    def begin(block: Any) -> Any:
        found = enter(block)
        lane = local.lane
        if tracer.is_on and not lane.in_backward and lane.called in bare.indices - {-1}:
            tracer.guard(judged.begin, block, _place())
        return found

    @functools.wraps(leave)
    def end(block: Any, *args: Any) -> Any:
        tracer.guard(judged.end, block)
        return leave(block, *args)

    tracer.patches.replace(kind, "__enter__", begin)
    tracer.patches.replace(kind, "__exit__", end)
