"""Tracks the networks, parameters, optimizers and schedulers of a program."""

import weakref
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from sluice.trace.objects.gradient_state import GradientCheck, GradientTracker
from sluice.trace.objects.object_index import ObjectIndex
from sluice.trace.objects.weight_tying import TiedParameters

_MODE_DEPENDENT_LAYERS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.RReLU,
)
"""Layers without dropout whose output depends on the training or evaluation mode."""


@dataclass(slots=True, eq=False)
class OptimizerEntry:
    """One optimizer of the program."""

    index: int
    ref: "weakref.ref[Any]"
    gradient_tracker: GradientTracker = field(default_factory=GradientTracker)
    gradient_check: GradientCheck = field(default_factory=GradientCheck)
    num_steps: int = 0
    """Number of steps that ended, including skipped steps."""
    last_norm_read_step: int = -1
    """Number of the step of this optimizer, counted from 1, in which the tracer last read the norm
    of the gradients before they were clipped. -1 if it read no norm, for example on a GPU."""
    num_groups: int = 0
    """Number of parameter groups at the last step."""
    learning_rates: list[Any] = field(default_factory=list)
    """Learning rate of each group at the last step."""
    has_irregular_closure_calls: bool = False
    """Whether a step that was given a closure called it several times, as LBFGS does, or never."""
    has_untraced_gradients: bool = False
    """Whether gradients of the optimizer may date from before the trace. Reset by the first
    gradient check after a step of the optimizer, or after its gradients were cleared."""
    step_codes: dict[tuple[str, ...], int] = field(default_factory=dict)
    """Event codes of its steps, by the flags of the step event."""
    zero_grad_code: int = -1
    """Event code of its ``zero_grad``; -1 before its first call."""
    clip_codes: dict[str, int] = field(default_factory=dict)
    """Event codes of its gradient clips, by the flag of the clip event."""

    def parameters(self) -> list[Tensor]:
        """Return the parameters of the optimizer, group by group."""
        return [p for group in self.groups for p in group["params"]]

    def moments(self, parameter: Tensor) -> list[Tensor]:
        """Return the state tensors of a parameter that have its shape, such as moments of Adam."""
        optimizer = self.ref()
        state = {} if optimizer is None else optimizer.state.get(parameter, {})
        return [
            moment
            for moment in state.values()
            if isinstance(moment, Tensor)
            and moment.is_floating_point()
            and moment.shape == parameter.shape
        ]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the optimizer; empty if it was deleted."""
        optimizer = self.ref()
        return [] if optimizer is None else optimizer.param_groups


@dataclass(slots=True)
class NetworkEntry:
    """One module that the program calls directly, not from the forward pass of a network."""

    index: int
    ref: "weakref.ref[Any]"
    name: str
    """Class name; with a number from the second network of the class on, such as 'Net_2'."""
    has_no_parameters: bool
    """Whether the module has no parameters, such as a loss function. Calls of such a module are not
    recorded."""
    forward_codes: dict[tuple[bool, int], int] = field(default_factory=dict)
    """Event codes of its forward passes, by (requires gradient, index of the loader). Empty if the
    mode must be read again."""
    module_names: dict[int, str] | None = None
    """Names of its modules by the id of the module; None if the names must be read again."""
    unregistered_modules: dict[int, "weakref.ref[Any]"] = field(default_factory=dict)
    """Trainable modules that run inside the network but are not registered in it, by their id."""
    output_row_shape: tuple[int, ...] | None = None
    """Shape of a row of the first output; None before the first call."""
    max_length: int = 0
    """Maximum length of a text or series so far: size of the second dimension of the first
    argument."""
    next_inspection_step: int = 0
    """Number of optimizer steps after which its next forward pass is inspected."""

    def invalidate_mode(self) -> None:
        """Make the next call read the mode again."""
        self.forward_codes.clear()

    def mode_flags(self) -> tuple[str, ...]:
        """Return the current mode as event flags.

        "sensitive training" and "sensitive evaluating" mean that a module whose output depends on
        the mode, such as dropout, is in that mode.
        """
        network: Any = self.ref()
        modes = {m.training for m in network.modules() if _is_mode_dependent(m)}
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
    """Whether the parameter had a gradient at any inspection so far."""


@dataclass(slots=True)
class SchedulerEntry:
    """One learning-rate scheduler of the program."""

    index: int
    ref: "weakref.ref[Any]"
    optimizer: int
    """Index of its optimizer; -1 without an optimizer."""
    step_code: int = -1
    """Event code of its steps; -1 before its settings are recorded."""


class ObjectTracker:
    """Networks, parameters, optimizers and schedulers of the program."""

    def __init__(self) -> None:
        self.optimizers: ObjectIndex[OptimizerEntry] = ObjectIndex(
            lambda index, optimizer: OptimizerEntry(index, weakref.ref(optimizer))
        )
        self.networks: ObjectIndex[NetworkEntry] = ObjectIndex(self._network_entry)
        self.parameters: ObjectIndex[ParameterEntry] = ObjectIndex(
            lambda index, parameter: ParameterEntry(index, weakref.ref(parameter))
        )
        self.schedulers: ObjectIndex[SchedulerEntry] = ObjectIndex(self._scheduler_entry)
        self.tied_parameters = TiedParameters()
        self.has_changed = True
        """Whether an object was added, or a module changed, since the last snapshot."""
        self._num_networks_by_class: dict[str, int] = {}
        """Number of networks so far, by class name."""

    def _network_entry(self, index: int, network: nn.Module) -> NetworkEntry:
        self.has_changed = True
        kind = type(network).__name__
        self._num_networks_by_class[kind] = number = self._num_networks_by_class.get(kind, 0) + 1
        name = kind if number == 1 else f"{kind}_{number}"
        return NetworkEntry(index, weakref.ref(network), name, _has_no_parameters(network))

    def _scheduler_entry(self, index: int, scheduler: Any) -> SchedulerEntry:
        optimizer = getattr(scheduler, "optimizer", None)
        optimizer_index = -1 if optimizer is None else self.optimizers.get_or_add(optimizer).index
        return SchedulerEntry(index, weakref.ref(scheduler), optimizer_index)

    def invalidate_modes(self) -> None:
        """Make the next call of each network read its mode again."""
        for entry, _ in self.networks.live_items():
            entry.invalidate_mode()

    def invalidate_structure(self) -> None:
        """Make the next call of each network read its modules again."""
        self.has_changed = True
        for entry, network in self.networks.live_items():
            entry.module_names = None
            entry.has_no_parameters = _has_no_parameters(network)
            entry.invalidate_mode()


def _has_no_parameters(network: nn.Module) -> bool:
    return next(network.parameters(), None) is None


def _is_mode_dependent(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.modules.rnn.RNNBase | nn.MultiheadAttention):
        return module.dropout > 0
    return isinstance(module, _MODE_DEPENDENT_LAYERS)
