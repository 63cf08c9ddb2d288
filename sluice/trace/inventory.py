"""Takes the membership of parameters, networks and optimizers."""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from sluice.trace.attributes import misnamed, ties_said
from sluice.trace.evidence.membership import (
    GroupFact,
    Membership,
    MisnamedFact,
    NetworkFact,
    OptimizerFact,
    ParameterFact,
    StrayModule,
    TieFact,
)
from sluice.trace.gradients import FirstLook, GradientWatch
from sluice.trace.subjects import Registry
from sluice.trace.ties import Ties

_SENSITIVE = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
)
"""Modules that act differently in training and in evaluation."""


@dataclass(slots=True, eq=False)
class OptimizerEntry:
    """One optimizer of the program."""

    index: int
    ref: "weakref.ref[Any]"
    watch: GradientWatch = field(default_factory=GradientWatch)
    look: FirstLook = field(default_factory=FirstLook)
    steps: int = 0
    clipped: int = -1
    """Number of the last step before which the norm of its gradients was read."""
    num_groups: int = 0
    rates: list[Any] = field(default_factory=list)
    """Learning rates of the last step, by group."""
    searches: bool = False
    """It runs its closure more than once in a step, as LBFGS does, or not at all."""
    rests: bool = False
    """It has gradients from before the trace, and may never be used again."""
    codes: dict[tuple[str, ...], int] = field(default_factory=dict)
    """Of its steps, by their flags."""
    zero_code: int = -1
    """Of its ``zero_grad``."""
    clip_codes: dict[str, int] = field(default_factory=dict)
    """Of its clips, by their kind."""

    def parameters(self) -> list[Tensor]:
        """Return its parameters, group by group."""
        return [p for group in self.groups for p in group["params"]]

    def moments(self, parameter: Tensor) -> list[Tensor]:
        """Return what it keeps of the gradients of a parameter, as Adam and momentum do."""
        optimizer = self.ref()
        kept = {} if optimizer is None else optimizer.state.get(parameter, {})
        return [
            moment
            for moment in kept.values()
            if isinstance(moment, Tensor)
            and moment.is_floating_point()
            and moment.shape == parameter.shape
        ]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Its parameter groups; none when it is gone."""
        optimizer = self.ref()
        return [] if optimizer is None else optimizer.param_groups


@dataclass(slots=True)
class NetworkEntry:
    """One module that the program calls from outside any module."""

    index: int
    ref: "weakref.ref[Any]"
    name: str
    is_plain: bool
    """It has no parameters, as a loss function: its calls are no marks."""
    codes: dict[tuple[bool, int], int] = field(default_factory=dict)
    """Of its forwards, by whether there is a gradient, and by the loader. Empty when the mode must
    be looked at again."""
    names: dict[int, str] | None = None
    """Names of its modules by identity; None when they must be looked at again."""
    stray: dict[int, "weakref.ref[Any]"] = field(default_factory=dict)
    row_shape: tuple[int, ...] | None = None
    """Of a row that it returned at first; None until then."""
    longest: int = 0
    """Second dimension of what it was given, which is the length of a text or series."""
    next_flow: int = 0
    """Its forward pass is looked at when so many steps were made."""

    def forget_mode(self) -> None:
        """Look at the mode again when it is called next."""
        self.codes.clear()

    def mode_flags(self) -> tuple[str, ...]:
        """Return the mode it is in, as flags of a mark."""
        network: Any = self.ref()
        modes = {m.training for m in network.modules() if _is_sensitive(m)}
        return (
            "training" if network.training else "evaluating",
            *("sensitive training",) * (True in modes),
            *("sensitive evaluating",) * (False in modes),
        )


@dataclass(slots=True)
class ParameterEntry:
    """One parameter of the program."""

    index: int
    ref: "weakref.ref[Any]"
    has_had_gradient: bool = False


@dataclass(slots=True)
class SchedulerEntry:
    """One learning-rate scheduler of the program."""

    index: int
    ref: "weakref.ref[Any]"
    optimizer: int
    code: int
    """Of its steps."""


class Inventory:
    """The networks, parameters and optimizers that were met, and who belongs to whom."""

    def __init__(self) -> None:
        self.optimizers: Registry[OptimizerEntry] = Registry(
            lambda index, it: OptimizerEntry(index, weakref.ref(it))
        )
        self.networks: Registry[NetworkEntry] = Registry(self._network)
        self.parameters: Registry[ParameterEntry] = Registry(
            lambda index, it: ParameterEntry(index, weakref.ref(it))
        )
        self.ties = Ties()
        self.is_stale = True
        """Something was added since the last one was taken."""
        self._last: Membership | None = None
        self._names: dict[str, int] = {}

    def _network(self, index: int, network: nn.Module) -> NetworkEntry:
        self.is_stale = True
        kind = type(network).__name__
        self._names[kind] = number = self._names.get(kind, 0) + 1
        name = kind if number == 1 else f"{kind}_{number}"
        return NetworkEntry(index, weakref.ref(network), name, _is_plain(network))

    def forget_modes(self) -> None:
        """Look at the modes of all networks again when they are called next."""
        for entry, _ in self.networks.alive():
            entry.forget_mode()

    def forget_structure(self) -> None:
        """Look at the modules of all networks again when they are called next."""
        self.is_stale = True
        for entry, network in self.networks.alive():
            entry.names = None
            entry.is_plain = _is_plain(network)
            entry.forget_mode()

    def take(self, step: int) -> Membership | None:
        """Return who belongs to whom now; None when that is as it was the last time."""
        self.is_stale = False
        names: dict[int, list[str]] = {}
        tensors: dict[int, Tensor] = {}
        networks = tuple(
            self._network_fact(entry, network, names, tensors)
            for entry, network in self.networks.alive()
        )
        optimizers = tuple(
            self._optimizer_fact(entry, optimizer, tensors)
            for entry, optimizer in self.optimizers.alive()
        )
        taken = Membership(
            step=step,
            parameters=tuple(
                self._parameter_fact(tensor, names.get(key, []))
                for key, tensor in sorted(tensors.items())
            ),
            optimizers=optimizers,
            networks=networks,
        )
        before, self._last = self._last, taken
        return None if before is not None and _told(before) == _told(taken) else taken

    def _network_fact(
        self,
        entry: NetworkEntry,
        network: nn.Module,
        names: dict[int, list[str]],
        tensors: dict[int, Tensor],
    ) -> NetworkFact:
        own = []
        for name, parameter in network.named_parameters(remove_duplicate=False):
            index = self._index(parameter, tensors)
            names.setdefault(index, []).append(f"{entry.name}.{name}")
            own.append(index)
        stray = [module for ref in entry.stray.values() if (module := ref()) is not None]
        return NetworkFact(
            index=entry.index,
            kind=type(network).__name__,
            name=entry.name,
            parameters=tuple(dict.fromkeys(own)),
            num_modules=sum(1 for _ in network.modules()),
            stray=tuple(
                StrayModule(
                    kind=type(module).__name__,
                    parameters=tuple(
                        self._index(p, tensors) for p in module.parameters() if p.requires_grad
                    ),
                )
                for module in stray
            ),
            misnamed=tuple(self._misnamed(entry.name, network, tensors)),
            ties_said=tuple(_ties_said(entry.name, network)),
            parted=tuple(
                (one.index, other.index)
                for pair in self.ties.parted()
                for one, other in [map(self.parameters.known, pair)]
                if one is not None and other is not None and {one.index, other.index} <= {*own}
            ),
        )

    def _misnamed(
        self, name: str, network: nn.Module, tensors: dict[int, Tensor]
    ) -> Iterator[MisnamedFact]:
        owners: list[tuple[str, Any]] = [*network.named_modules(), *network.named_parameters()]
        for inner, owner in owners:
            for attribute in misnamed(owner):
                inside = [owner] if isinstance(owner, Tensor) else owner.parameters()
                yield MisnamedFact(
                    owner=f"{name}.{inner}" if inner else name,
                    attribute=attribute,
                    value=vars(owner)[attribute],
                    parameters=tuple(self._index(p, tensors) for p in inside),
                )

    def _optimizer_fact(
        self, entry: OptimizerEntry, optimizer: Any, tensors: dict[int, Tensor]
    ) -> OptimizerFact:
        return OptimizerFact(
            index=entry.index,
            kind=type(optimizer).__name__,
            steps=entry.steps,
            groups=tuple(
                GroupFact(
                    parameters=tuple(self._index(p, tensors) for p in group["params"]),
                    options={
                        name: value
                        for name, value in group.items()
                        if isinstance(value, float | int | bool | str | None)
                    },
                )
                for group in optimizer.param_groups
            ),
        )

    def _index(self, parameter: Tensor, tensors: dict[int, Tensor]) -> int:
        index = self.parameters.find(parameter).index
        tensors[index] = parameter
        return index

    def _parameter_fact(self, tensor: Tensor, names: Iterable[str]) -> ParameterFact:
        entry = self.parameters.find(tensor)
        entry.has_had_gradient = entry.has_had_gradient or tensor.grad is not None
        return ParameterFact(
            index=entry.index,
            names=tuple(names),
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            is_trainable=tensor.requires_grad,
            has_had_gradient=entry.has_had_gradient,
        )


def _told(membership: Membership) -> tuple[Any, ...]:
    """Return what makes a membership another one: not its step, counts or learning rates."""
    return (
        membership.parameters,
        membership.networks,
        tuple((o.index, tuple(g.parameters for g in o.groups)) for o in membership.optimizers),
    )


def _ties_said(name: str, network: nn.Module) -> Iterator[TieFact]:
    for inner, module in network.named_modules():
        for attribute, value in ties_said(module):
            owner = f"{name}.{inner}" if inner else name
            yield TieFact(owner=owner, attribute=attribute, value=value)


def _is_plain(network: nn.Module) -> bool:
    return next(network.parameters(), None) is None


def _is_sensitive(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.modules.rnn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, _SENSITIVE)
