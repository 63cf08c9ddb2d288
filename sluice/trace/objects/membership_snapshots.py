"""Takes snapshots of which parameters belong to which networks and optimizers."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sluice.trace.objects.attribute_names import (
    find_misspelled_requires_grad,
    find_tying_settings,
)
from sluice.trace.objects.object_tracker import NetworkEntry, ObjectTracker, OptimizerEntry
from sluice.trace.records.membership import (
    Membership,
    MisspelledAttributeRecord,
    NetworkRecord,
    OptimizerRecord,
    ParameterGroupRecord,
    ParameterRecord,
    TyingSettingRecord,
    UnregisteredModuleRecord,
)


class MembershipSnapshots:
    """Snapshots of the membership of all live objects."""

    def __init__(self, objects: ObjectTracker) -> None:
        self._objects = objects
        self._last_membership: Membership | None = None

    def take(self, step: int) -> Membership | None:
        """Return the membership before a step; None if it equals the previous membership.

        Step numbers and optimizer options are not compared.
        """
        self._objects.has_changed = False
        # Names of each parameter, and its tensor, by the index of the parameter.
        names: dict[int, list[str]] = {}
        tensors: dict[int, Tensor] = {}
        networks = tuple(
            self._network_record(entry, network, names, tensors)
            for entry, network in self._objects.networks.live_items()
        )
        optimizers = tuple(
            self._optimizer_record(entry, optimizer, tensors)
            for entry, optimizer in self._objects.optimizers.live_items()
        )
        membership = Membership(
            step=step,
            parameters=tuple(
                self._parameter_record(tensor, names.get(index, []))
                for index, tensor in sorted(tensors.items())
            ),
            optimizers=optimizers,
            networks=networks,
        )
        previous, self._last_membership = self._last_membership, membership
        if previous is not None and _comparison_key(previous) == _comparison_key(membership):
            return None
        return membership

    def _network_record(
        self,
        entry: NetworkEntry,
        network: nn.Module,
        names: dict[int, list[str]],
        tensors: dict[int, Tensor],
    ) -> NetworkRecord:
        """Return the record of a network, and add its parameters to ``names`` and ``tensors``."""
        indices = []
        for name, parameter in network.named_parameters(remove_duplicate=False):
            index = self._parameter_index(parameter, tensors)
            names.setdefault(index, []).append(f"{entry.name}.{name}")
            indices.append(index)
        unregistered_modules = [
            module for ref in entry.unregistered_modules.values() if (module := ref()) is not None
        ]
        return NetworkRecord(
            index=entry.index,
            kind=type(network).__name__,
            name=entry.name,
            parameters=tuple(dict.fromkeys(indices)),
            num_modules=sum(1 for _ in network.modules()),
            unregistered_modules=tuple(
                UnregisteredModuleRecord(
                    kind=type(module).__name__,
                    parameters=tuple(
                        self._parameter_index(p, tensors)
                        for p in module.parameters()
                        if p.requires_grad
                    ),
                )
                for module in unregistered_modules
            ),
            misspelled_attributes=tuple(self._misspelled_attributes(entry.name, network, tensors)),
            tying_settings=tuple(_tying_records(entry.name, network)),
            broken_ties=tuple(self._broken_ties(indices)),
        )

    def _broken_ties(self, parameter_indices: Collection[int]) -> Iterator[tuple[int, int]]:
        """Yield the broken ties between parameters of a network, as pairs of parameter indices."""
        for first, second in self._objects.tied_parameters.find_broken():
            first_entry = self._objects.parameters.get(first)
            second_entry = self._objects.parameters.get(second)
            if first_entry is None or second_entry is None:
                continue
            if {first_entry.index, second_entry.index} <= {*parameter_indices}:
                yield first_entry.index, second_entry.index

    def _misspelled_attributes(
        self, name: str, network: nn.Module, tensors: dict[int, Tensor]
    ) -> Iterator[MisspelledAttributeRecord]:
        owners: list[tuple[str, Any]] = [*network.named_modules(), *network.named_parameters()]
        for inner_name, owner in owners:
            for attribute in find_misspelled_requires_grad(owner):
                parameters = [owner] if isinstance(owner, Tensor) else owner.parameters()
                yield MisspelledAttributeRecord(
                    owner=f"{name}.{inner_name}" if inner_name else name,
                    attribute=attribute,
                    value=vars(owner)[attribute],
                    parameters=tuple(self._parameter_index(p, tensors) for p in parameters),
                )

    def _optimizer_record(
        self, entry: OptimizerEntry, optimizer: Any, tensors: dict[int, Tensor]
    ) -> OptimizerRecord:
        return OptimizerRecord(
            index=entry.index,
            kind=type(optimizer).__name__,
            steps=entry.num_steps,
            groups=tuple(
                ParameterGroupRecord(
                    parameters=tuple(self._parameter_index(p, tensors) for p in group["params"]),
                    options={
                        name: value
                        for name, value in group.items()
                        if isinstance(value, float | int | bool | str | None)
                    },
                )
                for group in optimizer.param_groups
            ),
        )

    def _parameter_index(self, parameter: Tensor, tensors: dict[int, Tensor]) -> int:
        """Return the index of a parameter, and add the parameter to ``tensors``."""
        index = self._objects.parameters.get_or_add(parameter).index
        tensors[index] = parameter
        return index

    def _parameter_record(self, tensor: Tensor, names: Iterable[str]) -> ParameterRecord:
        entry = self._objects.parameters.get_or_add(tensor)
        entry.has_had_gradient = entry.has_had_gradient or tensor.grad is not None
        return ParameterRecord(
            index=entry.index,
            names=tuple(names),
            # A lazy parameter has no shape yet, and a nested tensor has no fixed shape.
            shape=() if is_lazy(tensor) or tensor.is_nested else tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            is_trainable=tensor.requires_grad,
            has_had_gradient=entry.has_had_gradient,
        )


def _comparison_key(membership: Membership) -> tuple[Any, ...]:
    """Return a membership without step numbers and optimizer options, for comparisons."""
    return (
        membership.parameters,
        membership.networks,
        tuple((o.index, tuple(g.parameters for g in o.groups)) for o in membership.optimizers),
    )


def _tying_records(name: str, network: nn.Module) -> Iterator[TyingSettingRecord]:
    for inner_name, module in network.named_modules():
        for attribute, value in find_tying_settings(module):
            owner = f"{name}.{inner_name}" if inner_name else name
            yield TyingSettingRecord(owner=owner, attribute=attribute, value=value)
