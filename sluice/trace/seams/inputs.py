"""What networks are given: its columns, rows and tokens, at the first calls of each kind."""

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.columns import ColumnSums, has_channels
from sluice.trace.evidence.inputs import BadNumbersFact, InputFact, RowsFact
from sluice.trace.fingerprints import NETWORK
from sluice.trace.lane import Lane
from sluice.trace.measuring import first_tensor
from sluice.trace.tokens import TokenCounts, are_tokens
from sluice.trace.tracer import Tracer
from sluice.trace.transforms import is_transformed

MOST_CALLS = 64
_MORE_CALLS = 16
"""After those, of calls that follow a backward pass of the same step."""
_WRITTEN_AT = (1, 4, 16)
_MOST_GROUPS = 16
_MOST_ROWS = 1024
_MOST_TENSORS = 4
_MOST_BAD = 8
_SHOWN = 8
_SOME_ROWS = 64
_WIDE, _FAR_APART, _NEAREST = 512, 32, 0.4
"""Numbers of a row in which two rows differ: of all, in most pairs, and in the nearest pair."""
_SEVERAL = 8
_HARDLY = 0.5
"""Of some numbers, so many are different from all others."""

_STRIDED = torch.strided
_LEAST_ALIKE = 8
"""Rows; in fewer, those of any two batches may go together."""
_ALIKE = 0.8
"""Mean correlation of columns with those of the call before; the longest steps are those of few:
of 10 calls of a diffusion model with a cosine schedule 5 are beyond it, and 3 beyond 0.9."""


class CallGroup:
    """The calls of one network in one mode, on the batches of one loader."""

    def __init__(self, network: int, loader: int, *, has_grad: bool, is_training: bool) -> None:
        self.network, self.loader = network, loader
        self.is_learning = has_grad and is_training
        self.may_learn = has_grad
        self.sampled: SampledSteps | None = None
        """Of calls that neither learn nor have a loader."""
        self.calls = self.rows = self.first_step = self.step = 0
        self.more_left = _MORE_CALLS
        self.is_made = self.may_be_made = self.is_continuous = False
        self.shape: tuple[int, ...] = ()
        self.dtype = ""
        self.columns: ColumnSums | None = None
        self.channels: ColumnSums | None = None
        self.tokens: TokenCounts | None = None
        self.more_tokens: dict[int, TokenCounts] = {}
        """Of the other tensors that are given, by their place."""
        self.waits = self.may_learn and not self.is_learning
        """A backward pass that follows is news."""
        self.waiting: list[RowsFact] = []
        """Of a network in evaluation mode that may learn all the same."""


class SampledSteps:
    """How many calls were given what was made of the input before, as a sampler does it.

    A diffusion model draws its rows from noise and goes on from each answer: between two calls at
    one step of the training every row has moved a little.
    """

    def __init__(self) -> None:
        self._before: Tensor | None = None
        self._step = self._others = self._moved = 0

    def add(self, tensor: Tensor, step: int) -> None:
        """Compare some numbers of a call with those of the call before."""
        some = tensor.detach()[:_SOME_ROWS]
        some = some.reshape(some.shape[0], -1)[:, :_SOME_ROWS].to("cpu", torch.float64, copy=True)
        before, self._before = self._before, some
        if before is not None and before.shape == some.shape and before.equal(some):
            return
        self._others += 1
        if before is not None and before.shape == some.shape and step == self._step:
            self._moved += _go_together(before, some)
        self._step = step

    @property
    def are_most(self) -> bool:
        """Of the calls with other numbers than the one before, half or more."""
        return 0 < self._others <= 2 * self._moved


class InputWatch:
    """Sees what networks are given, in one thread after another."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """Forget everything: at first, and in a process that was forked off."""
        self._groups: dict[tuple[int, int, bool, bool], CallGroup] = {}
        self._num_bad = 0
        self._seen_bad: set[tuple[int, str]] = set()

    def see(
        self,
        lane: Lane,
        network: int,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Look at one call from outside, before it runs."""
        if lane.bad_input is not None:  # the call before this one raised
            self.returned(None)
        lane.called = network
        lane.given = given(args, kwargs)
        key = (network, lane.loader, torch.is_grad_enabled(), module.training)
        group = self._groups.get(key)
        if group is None and len(self._groups) < _MOST_GROUPS:
            group = CallGroup(key[0], key[1], has_grad=key[2], is_training=key[3])
            self._groups[key] = group
        lane.group = group
        if group is None or not lane.given:
            return
        if group.calls >= MOST_CALLS:
            # The second batch of a step, and later ones, may be new.
            if not (lane.losses and group.more_left):
                return
            group.more_left -= 1
        tensor = lane.given[0]()
        if tensor is None or not tensor.dim() or not tensor.numel() or tensor.is_complex():
            return
        if not is_transformed():
            self._look(group, tensor)

    def learned(self, group: CallGroup) -> None:
        """Hear that a backward pass follows the last call."""
        group.is_learning = True
        for fact in group.waiting:
            self._tracer.recorder.write("rows", fact.model_copy(update={"is_learning": True}))
        group.waiting = []

    def look_for_bad(
        self, tensor: Tensor, what: Any, *, learning: bool, is_running: bool = False
    ) -> bool:
        """Record a tensor with NaN or infinity; return whether it has any.

        Args:
            tensor: That was given to a network or to a loss function.
            what: 'input' or 'target'.
            learning: Gradients may follow.
            is_running: The network is about to run: it is recorded when that has returned.
        """
        tracer = self._tracer
        lane, values = tracer.local.lane, tensor.detach()
        if not values.is_floating_point() or not values.dim() or not values.numel():
            return False
        bad = ~values.isfinite()
        if not bool(bad.any()):
            return False
        key = (tracer.steps, what)
        if self._num_bad >= _MOST_BAD or key in self._seen_bad:
            return True
        self._num_bad += 1
        self._seen_bad.add(key)
        row = values[0].numel()
        table = bad.reshape(values.shape[0], -1)
        if row > 64 and values.dim() > 2:  # as columns are counted elsewhere
            columns = bad.reshape(-1, values.shape[-1]).any(0).nonzero()[:, 0].tolist()
        else:
            columns = table.any(0).nonzero()[:, 0].tolist()
        rows = table.any(1).nonzero()[:, 0].tolist()
        nan = int(values.isnan().sum())
        fact = BadNumbersFact(
            step=tracer.steps,
            network=lane.called,
            loader=lane.loader,
            what=what,
            is_learning=learning,
            shape=tuple(values.shape),
            num_nan=nan,
            num_infinite=int(bad.sum()) - nan,
            columns=tuple(columns[:_SHOWN]),
            num_columns=len(columns),
            rows=tuple(rows[:_SHOWN]),
            num_rows=len(rows),
        )
        if is_running:
            lane.bad_input = fact
        else:
            tracer.recorder.write("bad_numbers", fact)
        return True

    def returned(self, tensor: Tensor | None) -> None:
        """Record the input that was not finite, with what the network made of it."""
        lane = self._tracer.local.lane
        fact, lane.bad_input = lane.bad_input, None
        if tensor is not None and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            fact = fact.model_copy(update={"reaches_output": True})
        self._tracer.recorder.write("bad_numbers", fact)

    def finish(self) -> None:
        """Write what was counted since it was written last."""
        if self._tracer.local.lane.bad_input is not None:
            self.returned(None)
        for group in self._groups.values():
            if group.calls not in (0, *_WRITTEN_AT, MOST_CALLS):
                self._write(group)
            for fact in group.waiting:
                self._tracer.recorder.write("rows", fact)
            group.waiting = []

    def _look(self, group: CallGroup, tensor: Tensor) -> None:
        tracer = self._tracer
        began = tracer.clock()
        with torch.no_grad():
            group.step = tracer.steps
            if not group.calls:
                group.first_step = tracer.steps
                group.dtype = str(tensor.dtype).removeprefix("torch.")
                group.is_continuous = _is_continuous(tensor)
                group.may_be_made = any(
                    entry.row_shape == tensor.shape[1:] and entry.index != group.network
                    for entry in tracer.inventory.networks.entries
                )
                if group.loader == -1 and not group.may_learn:
                    group.sampled = SampledSteps()
            group.calls += 1
            group.rows += tensor.shape[0]
            group.shape = tuple(tensor.shape)
            group.is_made = group.is_made or _is_made(tensor, tracer.local.lane.made)
            if tensor.is_floating_point():
                if group.columns is None:
                    group.columns = ColumnSums(tensor)
                    if has_channels(tensor):
                        group.channels = ColumnSums(tensor, by_channel=True)
                group.columns.add(tensor)
                if group.channels is not None:
                    group.channels.add(tensor)
                if group.sampled is not None and tensor.layout == torch.strided:
                    group.sampled.add(tensor, tracer.steps)
                self.look_for_bad(tensor, "input", learning=group.may_learn, is_running=True)
            elif are_tokens(tensor):
                if group.tokens is None:
                    group.tokens = TokenCounts(tensor)
                group.tokens.add(tensor)
            self._write_rows(group, tensor)
            for place, ref in enumerate(tracer.local.lane.given[1:], 1):
                other = ref()
                if other is not None and are_tokens(other) and other.numel():
                    counts = group.more_tokens.setdefault(place, TokenCounts(other))
                    counts.add(other)
        if group.calls in (*_WRITTEN_AT, MOST_CALLS):
            self._write(group)
        if tracer.has_statistics:
            tracer.local.lane.spent += tracer.clock() - began

    def _write_rows(self, group: CallGroup, tensor: Tensor) -> None:
        tracer = self._tracer
        words = tracer.settings.row_words
        prints = tracer.row_prints.of(tensor, words=words, place=NETWORK)
        fact = RowsFact(
            step=tracer.steps,
            network=group.network,
            loader=group.loader,
            is_learning=group.is_learning,
            is_whole=not tensor.is_floating_point(),
            is_continuous=group.is_continuous,
            rows=prints[:_MOST_ROWS],
            num_rows=tensor.shape[0],
        )
        if group.may_learn and not group.is_learning:
            group.waiting.append(fact)
        else:
            tracer.recorder.write("rows", fact)

    def _write(self, group: CallGroup) -> None:
        together = group.channels or group.columns
        fact = InputFact(
            step=group.step,
            first_step=group.first_step,
            network=group.network,
            loader=group.loader,
            is_learning=group.is_learning,
            num_calls=group.calls,
            num_rows=group.rows,
            shape=group.shape,
            is_made=group.is_made or (group.sampled is not None and group.sampled.are_most),
            may_be_made=group.may_be_made,
            dtype=group.dtype,
            by_position=group.columns is not None and group.columns.by_position,
            columns=() if group.columns is None else group.columns.facts(),
            channels=() if group.channels is None else group.channels.facts(),
            correlations=() if together is None else together.correlations(),
            tokens=None if group.tokens is None else group.tokens.fact(),
            more_tokens=tuple(counts.fact() for counts in group.more_tokens.values()),
        )
        self._tracer.recorder.write("input", fact)


def given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple["weakref.ref[Tensor]", ...]:
    """Return weak references to the tensors of a call."""
    if len(args) == 1 and not kwargs and type(args[0]) is Tensor and args[0].layout is _STRIDED:
        return (weakref.ref(args[0]),)
    return tuple(map(weakref.ref, _tensors(args, kwargs)))


def watch_inputs(tracer: Tracer) -> None:
    """Look at what networks are given; the calls come from the seam of modules."""
    watch = InputWatch(tracer)
    tracer.inputs = watch
    tracer.on_begin.append(watch.reset)
    tracer.on_end.append(watch.finish)


def _is_continuous(tensor: Tensor) -> bool:
    """Tell whether equal rows are copies: numbers hardly ever repeat, or no two rows are near."""
    if not tensor.is_floating_point() or tensor.dim() < 2 or tensor.layout != torch.strided:
        return False
    some = tensor.detach().reshape(tensor.shape[0], -1)[:_SOME_ROWS, :_SOME_ROWS]
    # Few numbers of 16 bits are equal by chance in a row or two of thousands.
    least = 2 if tensor.element_size() > 2 else _SEVERAL
    if some.shape[1] >= least and some.unique().numel() > _HARDLY * some.numel():
        return True
    wide = tensor.detach().reshape(tensor.shape[0], -1)[:_SOME_ROWS, :_WIDE]
    apart = (wide[:, None] != wide[None]).sum(-1).flatten()
    apart = apart[apart > 0]
    if not apart.numel():
        return False
    typical = float(apart.median())
    return typical >= _FAR_APART and float(apart.min()) >= _NEAREST * typical


def _is_made(tensor: Tensor, made: "weakref.ref[Tensor] | None") -> bool:
    """Tell whether a tensor is what a network returned, or was computed with gradients."""
    if tensor.requires_grad:
        return True
    other = None if made is None else made()
    if other is None or tensor.layout != torch.strided or other.layout != torch.strided:
        return False
    return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _go_together(one: Tensor, other: Tensor) -> bool:
    """Tell whether the rows differ in two batches in nearly the same way, by the mean column."""
    if one.shape[0] < _LEAST_ALIKE:
        return False
    one, other = (t - t.mean(0) for t in (one, other))
    length = (one.square().sum(0) * other.square().sum(0)).sqrt()
    varies = length > 0
    return bool(((one * other).sum(0)[varies] / length[varies]).mean() > _ALIKE)


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the plain tensors of a call, at most 4; when there are none, those in containers."""
    given = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
    return [*islice(_plain(given or [*args, *kwargs.values()]), _MOST_TENSORS)]


def _plain(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            if first_tensor(value) is not None:
                yield value
        elif isinstance(value, Mapping):
            yield from _plain(value.values())
        elif isinstance(value, list | tuple):
            yield from _plain(value)
