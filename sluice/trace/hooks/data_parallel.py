"""Records data-parallel wrappers and digests of weights, which must be equal on all ranks."""

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sluice.trace.hooks.calls import report_calls
from sluice.trace.inspection.fingerprints import row_fingerprints
from sluice.trace.objects.object_tracker import OptimizerEntry
from sluice.trace.program_events import StepBegins, StepEnded, TraceBegan, TraceEnded
from sluice.trace.records.environment import DataParallelRecord, RankWeightsRecord
from sluice.trace.tracer_context import TracerContext

_SHARDED_CLASS_NAMES = frozenset({"FullyShardedDataParallel", "FSDPModule"})
"""Classes whose networks are sharded: each rank holds a different part of the weights."""

_MAX_INSPECTED_REDUCTIONS = 64
"""Number of first ``all_reduce`` calls whose tensor is checked for gradients."""

_NUM_FIRST_STEPS = 8
"""Number of first steps at which networks are checked for sharding."""

_MAX_COMPARED_VALUES = 64
"""Number of first values of a reduced tensor that are compared with the first weights. A program
may average its weights instead of its gradients."""

_CONSUMER_NAME = "comparison of ranks"
"""Name under which this module requests that every step is recorded fully."""

ALL_REDUCE = "all_reduce"
"""``DataParallelRecord.kind`` of a program that reduces its gradients itself."""


_PROCESS_GROUPS: dict[int, Any] = {}
"""Process groups of wrappers, by object id. They are kept until the process ends, to avoid a
deadlock (torch 2.13). The destructor of a gloo group joins the group's threads while it holds the
GIL. A thread may need the GIL to release a Python object of a traced backward pass."""


@dataclass(slots=True)
class _WrapperEntry:
    wrapper: "weakref.ref[Any]"
    module: "weakref.ref[Any]"
    """The wrapped network."""
    last_record: DataParallelRecord | None = None
    """Last record that was written; None before the first record."""


def watch_parallel(tracer: TracerContext) -> None:
    """Record data-parallel wrappers, and digests of this rank's weights at steps 1, 2, 4, 8, ..."""
    watch = _DataParallelWatch(tracer)

    def on_created(_: None, wrapper: Any, module: Any, *__: Any, **___: Any) -> None:
        watch.on_wrapper(wrapper, module)
        process_group = getattr(wrapper, "process_group", None)
        _PROCESS_GROUPS[id(process_group)] = process_group

    report_calls(tracer, DistributedDataParallel, "__init__", on_created)
    if torch.distributed.is_available():
        _watch_reductions(tracer, watch)
        tracer.bus.subscribe(StepBegins, lambda _: watch.record_sharded_networks())
    tracer.bus.subscribe(TraceBegan, lambda _: watch.reset())
    tracer.bus.subscribe(TraceEnded, lambda _: watch.write_wrappers())


def _watch_reductions(tracer: TracerContext, watch: "_DataParallelWatch") -> None:
    all_reduce = torch.distributed.all_reduce

    @functools.wraps(all_reduce)
    def watched_all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tracer.is_on and watch.num_reductions < _MAX_INSPECTED_REDUCTIONS:
            tracer.run_safely(watch.on_reduction, tensor)
        return all_reduce(tensor, *args, **kwargs)

    tracer.patches.replace_function(torch.distributed, "all_reduce", watched_all_reduce)


class _DataParallelWatch:
    def __init__(self, tracer: TracerContext) -> None:
        self._tracer = tracer
        self.reset()

    def reset(self) -> None:
        """Forget all wrappers."""
        self._wrappers: list[_WrapperEntry] = []
        self._reduces_manually = False
        """Whether the program calls ``all_reduce`` for its gradients."""
        self.num_reductions = 0
        """Number of inspected calls of ``all_reduce``."""
        self._num_checked_steps = 0
        """Number of steps at which networks were checked for sharding."""
        self._sharded_networks: set[int] = set()
        """Indices of the networks that are sharded over all ranks."""
        self._tracer.bus.unsubscribe(StepEnded, self._after_step)

    def _observe_every_step(self) -> None:
        """Observe every step from now on, because the ranks train the same weights."""
        if _CONSUMER_NAME not in self._tracer.sampling.every_step_needed_by:
            self._tracer.sampling.every_step_needed_by.add(_CONSUMER_NAME)
            self._tracer.bus.subscribe(StepEnded, self._after_step)

    def on_wrapper(self, wrapper: Any, module: nn.Module) -> None:
        """Record a new wrapper."""
        self._observe_every_step()
        self._wrappers.append(_WrapperEntry(weakref.ref(wrapper), weakref.ref(module)))
        self.write_wrappers()

    def write_wrappers(self) -> None:
        """Write records of new wrappers, and of wrappers whose network indices changed."""
        tracer = self._tracer
        for index, entry in enumerate(self._wrappers):
            wrapper, last_record = entry.wrapper(), entry.last_record
            if wrapper is None:
                continue
            record = DataParallelRecord(
                index=index,
                kind=type(wrapper).__name__,
                network=self._network_index(entry.module()),
                wrapper=self._network_index(wrapper),
                step=tracer.steps.last_step,
            )
            if (
                last_record is None
                or last_record.network != record.network
                or last_record.wrapper != record.wrapper
            ):
                entry.last_record = record
                tracer.recorder.write("wrapper", record)

    def record_sharded_networks(self) -> None:
        """Record the networks that are sharded over all ranks, before each of the first 8 steps."""
        if self._num_checked_steps >= _NUM_FIRST_STEPS or not torch.distributed.is_initialized():
            return
        self._num_checked_steps += 1
        for entry, network in self._tracer.objects.networks.live_items():
            if entry.index not in self._sharded_networks and _is_sharded_over_all_ranks(network):
                self._sharded_networks.add(entry.index)
                record = DataParallelRecord(
                    index=len(self._wrappers) + entry.index,
                    kind="FullyShardedDataParallel",
                    network=-1,
                    wrapper=entry.index,
                    step=self._tracer.steps.last_step,
                )
                self._tracer.recorder.write("wrapper", record)

    def on_reduction(self, tensor: Any) -> None:
        """Record that the program reduces gradients itself, if ``tensor`` contains gradients."""
        self.num_reductions += 1
        is_float = isinstance(tensor, Tensor) and tensor.is_floating_point()
        if self._reduces_manually or not is_float:
            return
        tracer = self._tracer
        for entry, _ in tracer.objects.optimizers.live_items():
            parameters = [p for p in entry.parameters() if p.grad is not None]
            grads = [p.grad for p in parameters if p.grad is not None]
            if _is_gradient(tensor, grads) and not _begins_with_weights(tensor, parameters):
                self._reduces_manually = True
                self._observe_every_step()
                record = DataParallelRecord(
                    index=-1, kind=ALL_REDUCE, network=-1, wrapper=-1, step=tracer.steps.last_step
                )
                tracer.recorder.write("wrapper", record)
                return

    def _after_step(self, ended: StepEnded) -> None:
        """Request a digest of the shared parameters, at steps that are powers of two.

        Nothing is requested if any network is sharded, because ranks then have different weights.
        """
        tracer, entry = self._tracer, ended.entry
        if tracer.steps.last_step & (tracer.steps.last_step - 1):
            return
        self.write_wrappers()
        if any(_is_sharded(network) for _, network in tracer.objects.networks.live_items()):
            return
        parameters = self._shared_parameters(entry.parameters())
        if parameters:
            self._request_digest(entry, parameters)

    def _request_digest(self, entry: OptimizerEntry, parameters: Sequence[Tensor]) -> None:
        tracer, step, index = self._tracer, self._tracer.steps.last_step, entry.index
        sample_size = tracer.settings.sampled_weights
        with torch.no_grad():
            norms = torch._foreach_norm([p.detach() for p in parameters])
            norm = torch.linalg.vector_norm(torch.stack([n.double() for n in norms]))
            fingerprints = [
                row_fingerprints(p.detach()[None], sample_size=sample_size)[0] for p in parameters
            ]
        # Different multipliers make the digest depend on the order of the parameters.
        multipliers = torch.arange(1, 2 * len(fingerprints), 2, device=fingerprints[0].device)
        # The digest has 52 bits, because it is read from the device as a 64-bit float.
        digest = (torch.stack(fingerprints) * multipliers).sum() & (2**52 - 1)

        def write_record(values: Sequence[float]) -> None:
            record = RankWeightsRecord(
                step=step, optimizer=index, norm=values[0], digest=f"{int(values[1]):013x}"
            )
            tracer.recorder.write("parallel", record)

        tracer.recorder.device_reads.request([norm, digest], write_record)

    def _shared_parameters(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the parameters that must be equal on all ranks."""
        unsharded_parameters = [
            p for p in parameters if type(p) in (Tensor, nn.Parameter) and p.numel()
        ]
        if self._reduces_manually:
            return unsharded_parameters
        modules = [m for m in (entry.module() for entry in self._wrappers) if m is not None]
        wrapped_ids = {id(p) for module in modules for p in module.parameters()}
        return [p for p in unsharded_parameters if id(p) in wrapped_ids]

    def _network_index(self, module: Any) -> int:
        entry = None if module is None else self._tracer.objects.networks.get(module)
        return -1 if entry is None else entry.index


def _is_gradient(tensor: Tensor, grads: Sequence[Tensor]) -> bool:
    """Return whether a tensor is one of the gradients, or probably contains all of them.

    A 1-D tensor probably contains all gradients if it has as many values as all gradients together.
    """
    if tensor.dim() == 1 and tensor.numel() == sum(grad.numel() for grad in grads):
        return bool(grads)
    return any(
        grad is tensor or (grad.data_ptr() == tensor.data_ptr() and grad.shape == tensor.shape)
        for grad in grads
        if grad.layout == torch.strided
    )


def _begins_with_weights(tensor: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Return whether a tensor begins with the values of the first weights.

    A program that reduces such a tensor averages weights, not gradients. Between two averages, the
    weights of its ranks differ, so the ranks are not compared.
    """
    weights = parameters[0].detach().reshape(-1)[:_MAX_COMPARED_VALUES]
    values = tensor.detach().reshape(-1)[: len(weights)].to(weights)
    return torch.equal(values, weights)


def _is_sharded(network: Any) -> bool:
    return any(cls.__name__ in _SHARDED_CLASS_NAMES for cls in type(network).__mro__)


def _is_sharded_over_all_ranks(network: Any) -> bool:
    """Return whether a network is sharded over all ranks, so that all ranks need different rows."""
    if not _is_sharded(network):
        return False
    num_ranks = torch.distributed.get_world_size()
    process_group = getattr(network, "process_group", None)
    if process_group is not None:
        return bool(process_group.size() == num_ranks)
    meshes = [getattr(p, "device_mesh", None) for p in network.parameters()]
    return bool(meshes) and all(
        mesh is not None and mesh.ndim == 1 and mesh.size() == num_ranks for mesh in meshes
    )
