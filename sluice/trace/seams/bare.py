"""Networks that are no modules: tensors in a list or a dict, and what they are given.

Nothing is called that could be watched. Before a backward pass the graph behind the loss still
holds what met its leaves first; it is given to what looks at the inputs of modules.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.graph import nodes_behind
from sluice.trace.lane import Lane
from sluice.trace.leaves import LOOKUPS, Met, as_rows, leaves_of, met_by_leaves, targets_in
from sluice.trace.recorder import Thin
from sluice.trace.seams.inputs import MOST_CALLS
from sluice.trace.tracer import Tracer

_MOST_LATER = 128
"""Backward passes at steps with statistics: another network may follow."""
_MOST_NETWORKS = 8
_UNEVEN = 2**31
"""Stands for a number of times that is another one from pass to pass."""


class BareTensors(nn.Module):
    """Stands for the module that there is none of; it has no parameters, and is never called."""


class Bare:
    """One network that is no module, told by the leaf that is used first."""

    def __init__(self, leaf: Tensor) -> None:
        self.network = BareTensors()
        self.index = -1
        self.leaf = weakref.ref(leaf)
        self.shape, self.row = leaf.shape, torch.Size()
        self.times, self.is_left, self.kind = 0, True, ""
        """How what it learns from meets the leaf: so often in a pass, which side, by which node."""
        self.part: slice | None = None
        self.num_times = 0
        """Of looks at this leaf."""

    def memory(self) -> int:
        """Return where the leaf has its numbers; 0 when it is gone."""
        leaf = self.leaf()
        is_plain = leaf is not None and leaf.layout == torch.strided
        return leaf.untyped_storage().data_ptr() if leaf is not None and is_plain else 0

    def learns_from(self, met: Met) -> None:
        """Remember how it is given what it learns from."""
        is_even = self.times in (0, met.times)
        self.times = met.times if is_even else _UNEVEN
        self.is_left, self.kind, self.part = met.is_left, met.kind, met.part
        self.row = met.values.shape[1:] if met.times == 1 else met.values.shape[2:]

    def as_learned(self, values: Tensor, *, is_left: bool) -> Tensor | None:
        """Return what meets its leaf elsewhere as what it learns from; None for something else."""
        leaf = self.leaf()
        if leaf is None or is_left != self.is_left or values.requires_grad:
            return None
        if self.part is not None and values.shape[-1:] != self.row[-1:]:
            values = values[..., self.part]
        is_lookup = self.kind in LOOKUPS
        rows = values if is_lookup else as_rows(values, leaf, kind=self.kind, is_left=is_left)
        is_other = rows is None or rows.dim() != len(self.row) + 1
        return None if is_other or rows is None or rows.shape[1:][-1:] != self.row[-1:] else rows

    def is_made_anew(self, leaf: Tensor) -> bool:
        """Tell whether a leaf stands for another one that lived for a single pass."""
        return self.num_times == 1 and self.leaf() is None and self.shape == leaf.shape


class BareWatch:
    """Looks behind the first losses of threads that call no network."""

    def __init__(self, tracer: Tracer, on_first: Callable[["BareWatch"], None]) -> None:
        self._tracer, self._on_first = tracer, on_first
        self._has_told = False
        self.reset()

    def reset(self) -> None:
        """Forget everything: at first, and in a process that was forked off."""
        self.indices = {-1}
        """Of the networks that are no modules, and of none."""
        self.leaves: list[Tensor] = []
        """Behind the loss of the backward pass that runs, if it is looked at."""
        self.networks: list[Bare] = []
        self._given: list[Tensor] = []
        self._looks_left, self._later, self._looked_at = MOST_CALLS, Thin(_MOST_LATER), -1

    def look_again(self) -> None:
        """Look at the pass that comes next."""
        self._looks_left = max(self._looks_left, 1)

    def meet(self, lane: Lane, loss: Tensor) -> None:
        """Look behind a loss: at first, and at some of those that follow."""
        if not self._is_due(loss):
            return
        began = self._tracer.clock()
        with torch.no_grad():
            nodes = [*nodes_behind(loss)]
            self.leaves = leaves_of(nodes)
            met = met_by_leaves(nodes)
            network = self._of(met[0].leaf) if met else None
            if network is not None:
                network.learns_from(met[0])
                self._given = [m.values for m in met]
                self._see(lane, network, nodes, loss)
        lane.spent += self._tracer.clock() - began

    def judge(self, lane: Lane, network: Bare, values: Tensor) -> None:
        """Hear of what a network is given without gradients."""
        tracer = self._tracer
        if tracer.inputs is None:
            return
        began = tracer.clock()
        tracer.inputs.see(lane, network.index, network.network, (values,), {})
        if lane.bad_input is not None:
            tracer.inputs.returned(None)
        lane.spent += tracer.clock() - began

    def release(self) -> None:
        """Let go of what was read: the backward pass is over."""
        self.leaves, self._given = [], []

    def _is_due(self, loss: Tensor) -> bool:
        if self._looks_left:
            self._looks_left -= 1
            return True
        if not bool(loss.detach().isfinite()) if loss.is_cpu else False:
            return True
        tracer = self._tracer
        if not tracer.has_statistics or self._looked_at == tracer.steps:
            return False
        self._looked_at = tracer.steps
        return self._later.takes_next()

    def _of(self, leaf: Tensor) -> Bare | None:
        """Return the network that begins with a leaf, a new one if need be."""
        found = next((b for b in self.networks if b.leaf() is leaf), None)
        if found is not None:
            found.num_times += 1
            return found
        found = next((b for b in self.networks if b.is_made_anew(leaf)), None)
        if found is not None:
            found.leaf = weakref.ref(leaf)
            return found
        if len(self.networks) >= _MOST_NETWORKS:
            return None
        found = Bare(leaf)
        found.num_times = 1
        found.index = self._tracer.inventory.networks.find(found.network).index
        self.networks.append(found)
        self.indices.add(found.index)
        self._looks_left = MOST_CALLS
        if not self._has_told:
            self._has_told = True
            self._on_first(self)
        return found

    def _see(self, lane: Lane, network: Bare, nodes: list[Any], loss: Tensor) -> None:
        tracer = self._tracer
        if tracer.inputs is None:
            return
        with torch.enable_grad():  # it learns
            tracer.inputs.see(lane, network.index, network.network, self._given, {})
        if lane.bad_input is not None:
            tracer.inputs.returned(loss.detach())
        told = targets_in(nodes)
        if told is None or tracer.losses is None:
            return
        kind, target, values = told
        tracer.losses.pair(kind, values, target)
        if not bool(loss.detach().isfinite().all()):
            tracer.inputs.look_for_bad(target, "target", learning=True)
