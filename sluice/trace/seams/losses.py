"""Loss functions and look-up tables of ``torch.nn.functional``: what they are given.

Modules such as ``nn.CrossEntropyLoss`` and ``nn.Embedding`` call these.
"""

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, compiler
from torch.compiler import is_dynamo_compiling
from torch.nn import functional as F

from sluice.trace.evidence.losses import LossFact, NextTokens
from sluice.trace.graph import SHAPES
from sluice.trace.measuring import PLAIN
from sluice.trace.recorder import Thin
from sluice.trace.seams.evaluations import Evaluations
from sluice.trace.seams.ids import CLASSES, ids_outside
from sluice.trace.seams.inputs import InputWatch
from sluice.trace.seams.pairing import Pairing
from sluice.trace.targets import continued
from sluice.trace.tokens import are_tokens, next_tokens
from sluice.trace.tracer import Tracer
from sluice.trace.transforms import is_transformed

LOSSES = (
    "cross_entropy",
    "nll_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "gaussian_nll_loss",
    "poisson_nll_loss",
    "kl_div",
    "multi_margin_loss",
    "soft_margin_loss",
    "hinge_embedding_loss",
)
_PAIRED = (*CLASSES, *LOSSES[2:9])
"""Losses whose targets are told beside the rows of the input."""
_FIRST = 8
_MOST_KEYS = 32
_MOST_FACTS = 128
_MOST_PAIR_CALLS = 64
_MOST_REFUSED = 8
_MOST_HOPS = 8
_MOST_COLUMNS = 64


def watch_losses(tracer: Tracer) -> None:
    """See the calls of loss functions and of look-up tables."""
    if tracer.inputs is None:
        raise RuntimeError("the seam of inputs comes before that of losses")
    watch = LossWatch(tracer, tracer.inputs)
    tracer.losses = watch
    for kind in (*LOSSES, "embedding"):
        original = getattr(F, kind)
        tracer.patches.replace_function(F, kind, _watched(tracer, watch, kind, original))
    tracer.on_begin.append(watch.reset)
    tracer.on_end.append(watch.close_passes)


def _watched(
    tracer: Tracer, watch: "LossWatch", kind: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    is_loss, local, ref = kind != "embedding", tracer.local, weakref.ref

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if not tracer.is_on or is_dynamo_compiling() or compiler._is_compiling_flag:
            return original(*args, **kwargs)
        if watch.checks_ids:  # a device that refuses ids later takes the process with it
            tracer.guard(watch.check_early, kind, args, kwargs)
        try:
            found = original(*args, **kwargs)
        except (IndexError, RuntimeError):
            tracer.guard(watch.refused, kind, args, kwargs)
            raise
        if is_loss and type(found) is Tensor:
            if found.requires_grad:
                lane = local.lane
                # Weak, as what a program lets go of may be large.
                are_two = len(args) == 2 and type(args[0]) is type(args[1]) is Tensor
                lane.compared = (kind, ref(args[0]), ref(args[1]), kwargs) if are_two else None
                if lane.at >= 0 and not watch.passes.open:
                    return found
            try:
                watch.called(kind, args, kwargs, found)
            except Exception as error:  # as with ``guard``
                tracer.fail(error)
        return found

    # torch.jit.script compiles what stands behind it.
    function.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]
    return function


class _Key:
    """The calls of one loss function on one network, learning or not."""

    def __init__(self) -> None:
        self.calls = 0
        self.thin = Thin(_MOST_FACTS)
        self.looked_at = -1


class LossWatch:
    """Sees what loss functions and look-up tables are given, in one thread after another."""

    def __init__(self, tracer: Tracer, inputs: InputWatch) -> None:
        self._tracer, self._inputs = tracer, inputs
        self._signatures = {kind: inspect.signature(getattr(F, kind)) for kind in LOSSES}
        self._reductions = {
            kind: list(told.parameters).index("reduction")
            for kind, told in self._signatures.items()
        }
        """Place of that argument."""
        self._signatures["embedding"] = inspect.signature(F.embedding)
        self.reset()

    def reset(self) -> None:
        """Forget everything: at first, and in a process that was forked off."""
        self._keys: dict[tuple[str, int, bool], _Key] = {}
        self.passes = Evaluations(self._tracer)
        self._pairs = Pairing(self._tracer)
        self._num_refused = 0
        self._num_early = 0
        self.checks_ids = torch.cuda.is_available()

    def begin_phase(self) -> None:
        """Look at the next calls, and at targets beside their rows, as at the first ones."""
        for known in self._keys.values():
            known.calls = 0
        self._pairs.begin_phase()

    # ---- calls

    def called(
        self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], found: Tensor
    ) -> None:
        """Look at one call that returned a loss."""
        tracer = self._tracer
        lane, learning = tracer.local.lane, found.requires_grad
        place = self._reductions[kind]
        is_mean = (args[place] if len(args) > place else kwargs.get("reduction", "mean")) == "mean"
        if learning:
            if self.passes.open:
                self.passes.write()
            if is_mean and not found.dim():
                lane.means.append(weakref.ref(found))
        elif lane.in_probe or is_transformed():
            return
        else:
            loss = found.detach()
            if not is_mean:
                loss = self._mean(kind, args, kwargs, loss)
            self.passes.add(
                kind, loss.reshape(()).float() if loss.numel() == 1 else loss.float().mean()
            )
        known = self._keys.get((kind, lane.called, learning))
        if known is None:
            if len(self._keys) >= _MOST_KEYS:
                return
            known = self._keys[kind, lane.called, learning] = _Key()
        known.calls += 1
        if known.calls > _MOST_PAIR_CALLS and not tracer.has_statistics:
            return
        is_first = known.calls <= _FIRST
        looks = is_first or (tracer.has_statistics and known.looked_at != tracer.steps)
        pairs = learning and known.calls <= _MOST_PAIR_CALLS and kind in _PAIRED
        if not (looks or pairs) or is_transformed():
            return
        if is_first and learning and len(args) > 1:
            lane.continued = continued(lane.given, args[1])
        if looks:
            known.looked_at = tracer.steps
            if is_first or known.thin.takes_next():
                self._look(kind, args, kwargs, found)
        if pairs:
            given = self._given(kind, args, kwargs)
            self._pairs.add(kind, given.get("input"), given.get("target"))

    def pair(self, kind: str, values: Tensor | None, target: Tensor) -> None:
        """Take the targets of a loss that is told by its graph."""
        if kind in _PAIRED:
            self._pairs.add(kind, values, target)

    def refused(self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Look at a call that raised: were ids outside the table, numbers outside the domain?"""
        if self._num_refused >= _MOST_REFUSED:
            return
        self._num_refused += 1
        self._check_ids(kind, args, kwargs)
        if kind == "binary_cross_entropy":
            self._look(kind, args, kwargs, None)

    def check_early(self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Look at ids before a device does, in the first calls."""
        if kind not in (*CLASSES, "embedding"):
            return
        self._num_early += 1
        if self._num_early >= 4 * _FIRST:
            self.checks_ids = False
        self._check_ids(kind, args, kwargs)

    def bad_loss(self) -> None:
        """Look for what made a loss NaN or infinite: the input, the target, none supervised."""
        lane = self._tracer.local.lane
        for ref in lane.given:
            tensor = ref()
            if tensor is not None:
                self._inputs.look_for_bad(tensor, "input", learning=True)
        if lane.compared is None:
            return
        kind, of_input, of_target, kwargs = lane.compared
        target = of_target()
        if target is None:
            return
        self._inputs.look_for_bad(target, "target", learning=True)
        if kind in CLASSES:
            values = of_input()
            gone = torch.full((1,), torch.nan)  # the program let go of it; its target tells
            self._look(kind, (gone if values is None else values, target), kwargs, None)

    def close_passes(self) -> None:
        """Write the passes of evaluation that are open: at the end, and when weights are loaded."""
        self.passes.write()

    # ---- what they were given

    def _given(self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = self._signatures[kind].bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def _mean(
        self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], loss: Tensor
    ) -> Tensor:
        """Return a sum, or one loss for each row, as a mean over what they were compared with."""
        target = self._given(kind, args, kwargs).get("target")
        total = loss.sum()
        return total / max(target.numel(), 1) if isinstance(target, Tensor) else total

    def _look(
        self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], found: Tensor | None
    ) -> None:
        tracer, lane = self._tracer, self._tracer.local.lane
        given = self._given(kind, args, kwargs)
        values: Any = given.get("input")
        target: Any = given.get("target")
        if type(values) not in PLAIN or type(target) not in PLAIN or not values.numel():
            return
        began = tracer.clock()
        learning = torch.is_grad_enabled() if found is None else found.requires_grad
        with torch.no_grad():
            fact = self._fact(kind, given, values, target, found, learning=learning)
        tracer.recorder.write("loss", fact)
        if tracer.has_statistics:
            lane.spent += tracer.clock() - began

    def _fact(
        self,
        kind: str,
        given: Mapping[str, Any],
        values: Tensor,
        target: Tensor,
        found: Tensor | None,
        *,
        learning: bool,
    ) -> LossFact:
        lane = self._tracer.local.lane
        is_integer = not target.is_floating_point()
        low, high = (float(v) for v in torch.aminmax(values.detach().float()))
        sums = (float("nan"), float("nan"))
        if values.dim() > 1 and values.shape[1] > 1:
            parts = values.detach().float()
            total = (parts.exp() if kind == "nll_loss" else parts).sum(1)
            sums = float(total.min()), float(total.max())
        counts = torch.ones_like(target, dtype=torch.bool)
        if kind in CLASSES and is_integer:
            counts = target != given["ignore_index"]
        kept = target.detach()[counts]
        num = int(counts.sum())
        ends = [float(v) for v in torch.aminmax(kept.double())] if num else [float("nan")] * 2
        return LossFact(
            step=self._tracer.steps,
            kind=kind,
            network=lane.called,
            loader=lane.loader,
            is_learning=learning,
            reduction=str(given["reduction"]),
            made_by=_made_by(values),
            input_shape=tuple(values.shape),
            target_shape=tuple(target.shape),
            smallest=low,
            largest=high,
            row_sum_low=sums[0],
            row_sum_high=sums[1],
            target_is_integer=is_integer,
            target_smallest=ends[0],
            target_largest=ends[1],
            num_targets=target.numel(),
            num_supervised=num,
            num_classless=_classless(target),
            column_counts=_column_counts(target) if kind.startswith("binary") else (),
            value=float("nan") if found is None else float(found.detach().float().mean()),
            tokens=self._next_tokens(target, counts) if kind in CLASSES and is_integer else None,
        )

    def _next_tokens(self, target: Tensor, counts: Tensor) -> NextTokens | None:
        """Return how targets lie beside the tokens they follow best."""
        told = []
        for ref in self._tracer.local.lane.given:
            ids = ref()
            if ids is not None and are_tokens(ids):
                found = next_tokens(ids, target, counts)
                if found is not None:
                    told.append(found)
        return max(told, key=lambda t: t.next_share, default=None)

    def _check_ids(self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        fact = ids_outside(kind, self._given(kind, args, kwargs), self._tracer)
        if fact is not None:
            self._tracer.recorder.write("ids", fact)


def _classless(target: Tensor) -> int:
    """Return how many rows of one-hot targets have no class; 0 when they are something else."""
    return int((target.detach().sum(1) == 0).sum()) if _is_one_hot(target) else 0


def _column_counts(target: Tensor) -> tuple[int, ...]:
    if not _is_one_hot(target) or not 2 < target.shape[1] <= _MOST_COLUMNS:
        return ()
    return tuple(int(count) for count in target.detach().sum(0).tolist())


def _is_one_hot(target: Tensor) -> bool:
    """Tell whether each row has a single 1, or none."""
    if target.dim() != 2 or not target.is_floating_point():
        return False
    table = target.detach()
    return bool(((table == 0) | (table == 1)).all()) and bool((table.sum(1) <= 1).all())


def _made_by(values: Tensor) -> str:
    """Return the name of the node that made some numbers, before they changed only their shape."""
    node = values.grad_fn
    for _ in range(_MOST_HOPS):
        if node is None:
            return ""
        name: str = node.name()
        if name not in SHAPES or not node.next_functions:
            return name
        node = node.next_functions[0][0]
    return "" if node is None else str(node.name())
