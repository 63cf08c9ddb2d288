"""What flows through networks in single learning passes: gradients, cuts, masks, probes.

Looked at are the passes at the first step and at powers of two, so each part may take its time.
"""

import functools
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.behind import ids_behind, ids_clamped, masks_behind
from sluice.trace.evidence.flow import CallFact, FlowFact, MaskFact, ProbeFact
from sluice.trace.graph import nodes_behind
from sluice.trace.inventory import NetworkEntry
from sluice.trace.masks import arguments, hidden_by, padding_in, paddings_in
from sluice.trace.probing import Probe, floats_in, later_tokens, later_values, padding, weights
from sluice.trace.targets import reached, tells_next_token, tells_own_token
from sluice.trace.tracer import Tracer
from sluice.trace.transforms import is_transformed

_MOST_CALLS = 1024
_MOST_HELD = 512
"""Outputs that are kept alive until the step, so that their memory is not given to others."""

_MOST_WAITING = 4
"""Passes that wait for a backward pass."""

_MOST_MASKS = 32
"""Facts of masks in a trace."""

_LONGER = 3
"""Halves: so much longer than those before is a text that probes did not see yet."""

_MOST_LOOKUPS = 64
"""Facts of rows below 0, or beyond a table, in a trace."""


@dataclass(slots=True)
class _Pass:
    """One forward pass that is looked at."""

    entry: NetworkEntry
    network: "weakref.ref[nn.Module]"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    calls: list[CallFact] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    """Of the graph, that made its outputs; None for one without."""


class Flows:
    """Follows the passes of every thread."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """Forget everything: at first, and in a process that was forked off."""
        self._held: dict[int, tuple[Tensor, str]] = {}
        self._passes: list[_Pass] = []
        self.now: dict[int, _Pass] = {}
        """The pass that is looked at, by thread; asked for at every call."""
        self._masks = self._lookups = 0
        self._probed: set[tuple[int, str]] = set()
        self.is_due = False
        """Some pass waits for its backward pass."""

    def forget(self) -> None:
        """Leave a pass that ended with an exception, and those that nothing learned from."""
        if self.now:
            self.now.pop(threading.get_ident(), None)
        if len(self._passes) > _MOST_WAITING:
            self._passes.clear()
            self._held.clear()

    def wants(self) -> bool:
        """Tell whether a pass that begins may learn."""
        return (
            torch.is_grad_enabled()
            and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
            and not is_transformed()
        )

    def heard_length(self, entry: NetworkEntry, length: int) -> None:
        """Look again where texts or series are longer by half than any before: a mask may end."""
        if 2 * length > _LONGER * entry.longest:
            if entry.longest and self._tracer.steps:
                entry.next_flow = self._tracer.steps
                self._probed = {key for key in self._probed if key[0] != entry.index}
            entry.longest = length

    def begin(
        self, entry: NetworkEntry, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Hear of a pass that is looked at."""
        entry.next_flow = max(2 * self._tracer.steps, 1)
        self.now[threading.get_ident()] = _Pass(entry, weakref.ref(module), args, kwargs)

    def inside(
        self,
        name: str,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> None:
        """Hear of the call of a module, of which the network itself is the last."""
        now = self.now.get(threading.get_ident())
        if now is None:
            return
        full = f"{now.entry.name}.{name}" if name else now.entry.name
        if (module._parameters or not module._modules) and len(now.calls) < _MOST_CALLS:
            now.calls.append(self._call(name, module, (args, kwargs), output))
        if isinstance(module, nn.MultiheadAttention):
            self._mask(now, name, args, kwargs)
        if not name:
            now.nodes = [tensor.grad_fn for tensor in floats_in(output)]
        # What learns and runs without gradients is held, too: somebody may learn from it.
        is_off = not torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
        for tensor in floats_in(output):
            if (tensor.requires_grad or is_off) and len(self._held) < _MOST_HELD:
                self._held.setdefault(_memory(tensor), (tensor.detach(), full))

    def _call(self, name: str, module: nn.Module, given: Any, output: Any) -> CallFact:
        inputs = list(floats_in(given))
        cuts = (
            self._held[_memory(t)][1]
            for t in inputs
            if not t.requires_grad and _memory(t) in self._held
        )
        # The projection inside of an attention is used without a call.
        owner = isinstance(module, nn.MultiheadAttention)
        return CallFact(
            module=name,
            kind=type(module).__name__,
            parameters=tuple(
                self._tracer.inventory.parameters.find(p).index
                for p in module.parameters(recurse=owner)
            ),
            takes_gradient=any(t.requires_grad for t in inputs),
            gives_gradient=any(t.requires_grad for t in floats_in(output)),
            cut_from=next(cuts, ""),
        )

    def end(self) -> None:
        """Hear that a pass is over."""
        tracer = self._tracer
        now = self.now.pop(threading.get_ident(), None)
        if now is None:
            return
        fact = FlowFact(step=tracer.steps, network=now.entry.index, calls=tuple(now.calls))
        tracer.recorder.write("flow", fact)
        self._passes.append(now)
        self.is_due = True

    def learn(self, loss: Tensor | None) -> None:
        """Hear of the backward pass: what is learned is known now, and the inputs are still there.

        One pass on a copy may follow.
        """
        passes, self._passes = self._passes, []
        self._held.clear()
        self.is_due = False
        nodes = [] if loss is None or not passes else [*nodes_behind(loss)]
        self._look_behind(nodes, passes)
        for done in passes:
            network = done.network()
            if network is not None:
                self._probe(done, network, loss)

    def _look_behind(self, nodes: list[Any], passes: list[_Pass]) -> None:
        tracer, lane = self._tracer, self._tracer.local.lane
        step = tracer.steps
        for done in passes:
            if not nodes or self._masks >= _MOST_MASKS:
                continue
            for pads in paddings_in((done.args, done.kwargs)):
                for mask in masks_behind(nodes, pads, step=step, network=done.entry.index):
                    self._masks += 1
                    tracer.recorder.write("mask", mask)
        if self._lookups < _MOST_LOOKUPS:
            given = [t for done in passes for t in arguments((done.args, done.kwargs))]
            at = {"step": step, "network": lane.called, "loader": lane.loader}
            for ids in (*ids_behind(nodes, **at), *ids_clamped(nodes, given, **at)):
                self._lookups += 1
                tracer.recorder.write("ids", ids)

    def _probe(self, done: _Pass, network: nn.Module, loss: Tensor | None) -> None:
        given = (done.args, done.kwargs)
        told = None if loss is None else tells_next_token(loss, given)
        if told is not None:
            probe = functools.partial(later_tokens, network, given, told[0], along=told[1])
            self._try(done, "later tokens", probe)
        else:
            ids = None if loss is None else tells_own_token(loss, given)
            if ids is not None:
                probe = functools.partial(later_tokens, network, given, ids, own=True)
                self._try(done, "own tokens", probe)
        ref = self._tracer.local.lane.continued
        series = None if ref is None else ref()
        if series is not None and any(series is t for t in arguments(given)):
            probe = functools.partial(later_values, network, given, series)
            self._try(done, "later tokens", probe)
        if padding_in(given) is not None:
            self._try(done, "padding", functools.partial(padding, network, given))
        left_out = self._left_out(done, network) if self._tracer.steps >= 2 else []
        if left_out and loss is not None:
            used = reached(loss, done.nodes)
            if used:
                probe = functools.partial(weights, network, given, left_out, used)
                self._try(done, "weights", probe)

    def _left_out(self, done: _Pass, network: nn.Module) -> list[str]:
        """Return names of parameters that were used at several steps, and never had a gradient."""
        inventory = self._tracer.inventory
        called = {p for call in done.calls for p in call.parameters}
        found = []
        for name, parameter in network.named_parameters():
            entry = inventory.parameters.find(parameter)
            entry.has_had_gradient = entry.has_had_gradient or parameter.grad is not None
            if parameter.requires_grad and not entry.has_had_gradient and entry.index in called:
                found.append(name)
        return found

    def _try(self, done: _Pass, kind: Any, probe: Any) -> None:
        tracer, key = self._tracer, (done.entry.index, kind)
        if key in self._probed:
            return
        self._probed.add(key)
        lane, before = tracer.local.lane, tracer.local.lane.in_forward
        lane.in_forward = lane.in_probe = True  # calls of the copy are no marks, its losses none
        try:
            found: Probe | None = probe()
        finally:
            lane.in_forward, lane.in_probe = before, False
        if found is not None:
            tracer.recorder.write(
                "probe",
                ProbeFact(
                    step=tracer.steps,
                    network=done.entry.index,
                    probe=kind,
                    changed=found.changed,
                    largest_effect=found.largest_effect,
                    real_effect=found.real_effect,
                    parameters=tuple(
                        tracer.inventory.parameters.find(p).index for p in found.parameters
                    ),
                ),
            )

    def _mask(
        self,
        now: _Pass,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        mask = kwargs.get("key_padding_mask", args[3] if len(args) > 3 else None)
        if mask is None or self._masks >= _MOST_MASKS:
            return
        found = paddings_in((now.args, now.kwargs))
        pads = next((pads for pads in found if pads.shape == mask.shape), None)
        if pads is None:
            return
        self._masks += 1
        masked = hidden_by(mask)
        fact = MaskFact(
            step=self._tracer.steps,
            network=now.entry.index,
            module=name,
            num_rows=pads.shape[0],
            num_masked=int(masked.sum()),
            num_positions=pads.numel(),
            num_padding=int(pads.sum()),
            num_padding_masked=int((masked & pads).sum()),
        )
        self._tracer.recorder.write("mask", fact)


def _memory(tensor: Tensor) -> int:
    if tensor.layout != torch.strided:
        return id(tensor)
    return tensor.untyped_storage().data_ptr() or id(tensor)
