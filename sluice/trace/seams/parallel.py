"""What makes networks data parallel, and whether their weights stay the same on all ranks."""

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sluice.trace.evidence.surroundings import ParallelFact, WrapperFact
from sluice.trace.fingerprints import row_fingerprints
from sluice.trace.inventory import OptimizerEntry
from sluice.trace.tracer import Tracer

_SHARDING = frozenset({"FullyShardedDataParallel", "FSDPModule"})
"""Classes of networks whose parameters differ from rank to rank, as they should."""

_LOOKS = 64
"""Reductions at the start in which a gradient is looked for."""

_FIRST_STEPS = 8
"""Before which shards are looked for."""

_COMPARED = 64
"""Numbers that tell weights from gradients."""

BY_HAND = "all_reduce"


@dataclass(slots=True)
class _Wrapper:
    ref: "weakref.ref[Any]"
    inner: "weakref.ref[Any]"
    told: WrapperFact | None = None


def watch_parallel(tracer: Tracer) -> None:
    """Record wrappers for data parallel training, and the weights of each rank now and then."""
    seen = _Parallel(tracer)
    make = DistributedDataParallel.__init__

    @functools.wraps(make)
    def watched_make(wrapper: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        make(wrapper, module, *args, **kwargs)
        if tracer.is_on:
            tracer.guard(seen.made, wrapper, module)

    tracer.patches.replace(DistributedDataParallel, "__init__", watched_make)
    if torch.distributed.is_available():
        _watch_reductions(tracer, seen)

        tracer.before_step.append(seen.look_for_shards)
    tracer.on_begin.append(seen.reset)
    tracer.on_end.append(seen.tell)


def _watch_reductions(tracer: Tracer, seen: "_Parallel") -> None:
    reduce = torch.distributed.all_reduce

    @functools.wraps(reduce)
    def watched_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tracer.is_on and seen.looks < _LOOKS:
            tracer.guard(seen.reduces, tensor)
        return reduce(tensor, *args, **kwargs)

    tracer.patches.replace_function(torch.distributed, "all_reduce", watched_reduce)


class _Parallel:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """Forget all wrappers."""
        self._wrappers: list[_Wrapper] = []
        self._by_hand = False
        self.looks = self._steps = 0
        self._sharded: set[int] = set()
        if self.stepped in self._tracer.after_step:
            self._tracer.after_step.remove(self.stepped)

    def _begin(self) -> None:
        """Look after every step, from the first time that anything makes ranks share weights."""
        if self.stepped not in self._tracer.after_step:
            self._tracer.after_step.append(self.stepped)

    def made(self, wrapper: Any, module: nn.Module) -> None:
        """Hear of a wrapper."""
        self._begin()
        self._wrappers.append(_Wrapper(weakref.ref(wrapper), weakref.ref(module)))
        self.tell()

    def tell(self) -> None:
        """Write the wrappers of which something new is known."""
        tracer = self._tracer
        for index, known in enumerate(self._wrappers):
            inner, wrapper = known.inner(), known.ref()
            fact = WrapperFact(
                index=index,
                kind="DistributedDataParallel" if wrapper is None else type(wrapper).__name__,
                network=self._index(inner),
                wrapper=self._index(wrapper),
                step=tracer.steps,
            )
            told = known.told
            if wrapper is not None and (
                told is None or (told.network, told.wrapper) != (fact.network, fact.wrapper)
            ):
                known.told = fact
                tracer.recorder.write("wrapper", fact)

    def look_for_shards(self, _: OptimizerEntry, __: Any) -> None:
        """Write which networks are data parallel by shards, before the first steps."""
        if self._steps >= _FIRST_STEPS or not torch.distributed.is_initialized():
            return
        self._steps += 1
        for entry, network in self._tracer.inventory.networks.alive():
            if entry.index not in self._sharded and _is_sharded_over_all_ranks(network):
                self._sharded.add(entry.index)
                fact = WrapperFact(
                    index=len(self._wrappers) + entry.index,
                    kind="FullyShardedDataParallel",
                    network=-1,
                    wrapper=entry.index,
                    step=self._tracer.steps,
                )
                self._tracer.recorder.write("wrapper", fact)

    def reduces(self, tensor: Any) -> None:
        """See whether the ranks' gradients are summed by hand."""
        self.looks += 1
        if self._by_hand or not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            return
        tracer = self._tracer
        for entry, _ in tracer.inventory.optimizers.alive():
            learned = [p for p in entry.parameters() if p.grad is not None]
            grads = [p.grad for p in learned if p.grad is not None]
            if _is_among(tensor, grads) and not _begins_with(tensor, learned):
                self._by_hand = True
                self._begin()
                fact = WrapperFact(
                    index=-1, kind=BY_HAND, network=-1, wrapper=-1, step=tracer.steps
                )
                tracer.recorder.write("wrapper", fact)
                return

    def stepped(self, entry: OptimizerEntry, _: Any) -> None:
        """Ask for what the shared parameters are now."""
        tracer = self._tracer
        if tracer.steps & (tracer.steps - 1):
            return
        self.tell()
        if any(_is_sharded(network) for _, network in tracer.inventory.networks.alive()):
            return
        shared = self._shared(entry.parameters())
        if shared:
            self._ask(entry, shared)

    def _ask(self, entry: OptimizerEntry, shared: Sequence[Tensor]) -> None:
        tracer, step, index = self._tracer, self._tracer.steps, entry.index
        words = tracer.settings.sampled_weights
        with torch.no_grad():
            norms = torch._foreach_norm([p.detach() for p in shared])
            norm = torch.linalg.vector_norm(torch.stack([n.double() for n in norms]))
            prints = [row_fingerprints(p.detach()[None], words=words)[0] for p in shared]
        places = torch.arange(1, 2 * len(prints), 2, device=prints[0].device)
        # 52 bits: numbers are read from the device as floats.
        digest = (torch.stack(prints) * places).sum() & (2**52 - 1)

        def fill(values: Sequence[float]) -> None:
            fact = ParallelFact(
                step=step, optimizer=index, norm=values[0], digest=f"{int(values[1]):013x}"
            )
            tracer.recorder.write("parallel", fact)

        tracer.recorder.deferred.ask([norm, digest], fill)

    def _shared(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        plain = [p for p in parameters if type(p) in (Tensor, nn.Parameter) and p.numel()]
        if self._by_hand:
            return plain
        modules = [m for m in (known.inner() for known in self._wrappers) if m is not None]
        wrapped = {id(p) for module in modules for p in module.parameters()}
        return [p for p in plain if id(p) in wrapped]

    def _index(self, module: Any) -> int:
        entry = None if module is None else self._tracer.inventory.networks.known(module)
        return -1 if entry is None else entry.index


def _is_among(tensor: Tensor, grads: Sequence[Tensor]) -> bool:
    """Tell whether it is a gradient, in the memory of one, or all of them flattened."""
    if tensor.dim() == 1 and tensor.numel() == sum(grad.numel() for grad in grads):
        return bool(grads)
    return any(
        grad is tensor or (grad.data_ptr() == tensor.data_ptr() and grad.shape == tensor.shape)
        for grad in grads
        if grad.layout == torch.strided
    )


def _begins_with(tensor: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Tell whether it holds weights: ranks that average these now and then differ in between."""
    first = parameters[0].detach().reshape(-1)[:_COMPARED]
    own = tensor.detach().reshape(-1)[: len(first)].to(first)
    return torch.equal(own, first)


def _is_sharded(network: Any) -> bool:
    return any(cls.__name__ in _SHARDING for cls in type(network).__mro__)


def _is_sharded_over_all_ranks(network: Any) -> bool:
    """Tell whether every rank has rows of its own: none shares the work on a row."""
    if not _is_sharded(network):
        return False
    ranks = torch.distributed.get_world_size()
    group = getattr(network, "process_group", None)
    if group is not None:
        return bool(group.size() == ranks)
    meshes = [getattr(p, "device_mesh", None) for p in network.parameters()]
    return bool(meshes) and all(m is not None and m.ndim == 1 and m.size() == ranks for m in meshes)
