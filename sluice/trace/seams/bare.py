"""Networks that are no modules: tensors in a list or a dict, and what they are given.

Nothing is called that could be watched. Before a backward pass the graph behind the loss still
holds what met its leaves first; it is given to what looks at the inputs of modules.
"""

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from sluice.trace.graph import nodes_behind
from sluice.trace.lane import Lane
from sluice.trace.leaves import leaves_of, met_by_leaves, targets_in
from sluice.trace.recorder import Thin
from sluice.trace.seams.inputs import MOST_CALLS
from sluice.trace.tracer import Tracer

_MOST_LATER = 128
"""Backward passes at steps with statistics: another network may follow."""
_MOST_NETWORKS = 8


class BareTensors(nn.Module):
    """Stands for the module that there is none of; it has no parameters, and is never called."""


class Bare:
    """One network that is no module, told by the leaf that is used first."""

    def __init__(self, leaf: Tensor) -> None:
        self.network = BareTensors()
        self.index = -1
        self.leaf = weakref.ref(leaf)
        self.shape = leaf.shape
        self.num_times = 0
        """Of looks at this leaf."""

    def is_made_anew(self, leaf: Tensor) -> bool:
        """Tell whether a leaf stands for another one that lived for a single pass."""
        return self.num_times == 1 and self.leaf() is None and self.shape == leaf.shape


class BareWatch:
    """Looks behind the first losses of threads that call no network."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """Forget everything: at first, and in a process that was forked off."""
        self.indices = {-1}
        """Of the networks that are no modules, and of none."""
        self.leaves: list[Tensor] = []
        """Behind the loss of the backward pass that runs, if it is looked at."""
        self._networks: list[Bare] = []
        self._given: list[Tensor] = []
        self._looks_left, self._later, self._looked_at = MOST_CALLS, Thin(_MOST_LATER), -1

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
                self._given = [m.values for m in met]
                self._see(lane, network, nodes, loss)
        lane.spent += self._tracer.clock() - began

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
        found = next((b for b in self._networks if b.leaf() is leaf), None)
        if found is not None:
            found.num_times += 1
            return found
        found = next((b for b in self._networks if b.is_made_anew(leaf)), None)
        if found is not None:
            found.leaf = weakref.ref(leaf)
            return found
        if len(self._networks) >= _MOST_NETWORKS:
            return None
        found = Bare(leaf)
        found.num_times = 1
        found.index = self._tracer.inventory.networks.find(found.network).index
        self._networks.append(found)
        self.indices.add(found.index)
        self._looks_left = MOST_CALLS
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


def watch_bare(tracer: Tracer) -> None:
    """Look at networks that are no modules; the seam of backward passes calls it."""
    tracer.bare = BareWatch(tracer)
    tracer.on_begin.append(tracer.bare.reset)
