"""Diagnoses why parameters get no gradient: disconnected, dead, zero-initialised or by design."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import nn

from sluice.findings.check_outcome import CheckOutcome
from sluice.models.module_activity import RECTIFIERS, ModuleActivity
from sluice.models.parameter_names import format_names

_NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
"""Layers that normalise their inputs, such as batch norm."""

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
"""Modules whose inputs are token ids."""

_MODULE_CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Containers whose modules may be unused by design, such as experts."""

_BY_DESIGN_CAUSE = (
    "The parameters have no influence on the loss of these rows: a bias before a normalisation, "
    "recurrent weights with seq_len 1, a rare token, or an expert to which no row was routed."
)
_BY_DESIGN_FIX = (
    "No action is required if this is intended; otherwise check how the named parameters are used."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingGradients:
    """The trainable parameters that got no nonzero gradient in any batch, by name."""

    missing: frozenset[str]
    """Parameters without a gradient: there is no path from the loss."""
    zero: frozenset[str]
    """Parameters whose gradient is exactly 0 everywhere."""
    num_trainable: int
    num_batches: int

    @property
    def parameters(self) -> frozenset[str]:
        """All parameters with a missing or zero gradient."""
        return self.missing | self.zero


def judge_missing_gradients(
    model: nn.Module, missing_gradients: MissingGradients, activity: Mapping[str, ModuleActivity]
) -> tuple[CheckOutcome, ...]:
    """Return findings about parameters that never get a gradient, failures first.

    These healthy designs cause at most a warning:

    - an expert to which no row was routed or whose output has weight 0, while another module of the
      same class gets gradients;
    - a single bias, recurrent weights with windows of one row, and a token that does not occur.

    Failures are classified by the inputs and outputs of the modules: disconnected (no gradient at
    all), dead (no unit above 0, or the next layer gets only zeros), zero-initialised, or a zero
    gradient for another reason.

    Args:
        model: Model after the batches.
        missing_gradients: Parameters without a nonzero gradient in any batch.
        activity: Activity of the modules in these batches.

    Assumes:
        Modules are called. If a network uses only the weights of a layer, the activity of the layer
        is unknown, and a dead layer is reported as a layer with zero gradients.
    """
    diagnosis = _Diagnosis(model, missing_gradients, activity)
    findings = [
        diagnosis.find_disconnected(),
        diagnosis.find_dead(),
        diagnosis.find_initialised_at_zero(),
        diagnosis.find_zero_gradients(),
        diagnosis.find_by_design(),
    ]
    return tuple(finding for finding in findings if finding is not None)


class _Diagnosis:
    """Finds the causes of missing gradients from the parameters of one network, by module."""

    def __init__(
        self,
        model: nn.Module,
        missing_gradients: MissingGradients,
        activity: Mapping[str, ModuleActivity],
    ) -> None:
        self.missing_gradients, self.activity = missing_gradients, activity
        self.modules = dict(model.named_modules())
        first_name_by_id = {id(parameter): name for name, parameter in model.named_parameters()}
        self.trainable_parameters = {
            module_name: {
                # A tied parameter has its first name everywhere, as in ``missing_gradients``.
                first_name_by_id[id(parameter)]: parameter
                for parameter in module.parameters(recurse=False)
                if parameter.requires_grad
            }
            for module_name, module in self.modules.items()
        }
        names = {name for parameters in self.trainable_parameters.values() for name in parameters}
        self.names_with_nonzero_gradient = names - missing_gradients.parameters
        self.idle_modules = {
            module_name
            for module_name, parameters in self.trainable_parameters.items()
            if parameters
            and set(parameters) <= missing_gradients.parameters
            and self._is_idle(module_name)
        }
        """Names of modules without gradient, whose equivalent module gets gradients instead."""
        self.zero_layers = {
            module_name
            for module_name, parameters in self.trainable_parameters.items()
            if set(parameters) <= missing_gradients.zero
            and any(parameter.ndim > 1 for parameter in parameters.values())
            and not isinstance(self.modules[module_name], _EMBEDDINGS)
        }
        """Names of modules that have a weight matrix and in which all gradients are 0."""

    def find_disconnected(self) -> CheckOutcome | None:
        """Return a failure for parameters that the loss does not depend on; None without any."""
        disconnected_names = [
            name
            for name in self._in_module_order(self.missing_gradients.missing)
            if _parent_name(name) not in self.idle_modules
        ]
        if not disconnected_names:
            return None
        unused_modules = {
            module_name
            for module_name in map(_parent_name, disconnected_names)
            if not self._has_run(module_name)
        }
        note = f" {format_names(sorted(unused_modules))} never ran." if unused_modules else ""
        return CheckOutcome(
            outcome="fail",
            summary=f"{len(disconnected_names):,} of {self.missing_gradients.num_trainable:,} "
            f"trainable parameters got no gradient: {format_names(disconnected_names)}.{note}",
            fault="detached subgraph",
        )

    def find_dead(self) -> CheckOutcome | None:
        """Return a finding for a layer without active units; None without such a layer.

        The finding is a failure if the layer blocks learning, otherwise a warning.
        """
        match = (
            self._layer_before_dead_rectifier()
            or self._dead_layer()
            or self._layer_before_zero_input()
        )
        if match is None:
            return None
        dead_layer, description = match
        blocks_learning = dead_layer in self._zero_layers_and_norm_layers() or any(
            layer not in self.idle_modules for layer in self.zero_layers
        )
        if not blocks_learning:
            return CheckOutcome(outcome="warn", summary=f"{description}.", fault="dead units")
        blocked_names = self._in_module_order(self.missing_gradients.zero)
        return CheckOutcome(
            outcome="fail",
            summary=f"{description}; therefore the gradient of {format_names(blocked_names)} is "
            "exactly 0.",
            fault="dead units",
        )

    def _describe_batches(self) -> str:
        """Return the number of batches with its noun."""
        count = self.missing_gradients.num_batches
        return f"{count:,} {'batch' if count == 1 else 'batches'}"

    def _layer_before_dead_rectifier(self) -> tuple[str, str] | None:
        """Return the name of the layer before a ReLU without active units, and a description."""
        for name, activity in self.activity.items():
            if activity.is_dead and isinstance(self.modules[name], RECTIFIERS):
                if self._weights_are_zero(activity.previous_module_with_weights):
                    continue
                return activity.previous_module_with_weights, _describe_dead(name, activity)
        return None

    def _dead_layer(self) -> tuple[str, str] | None:
        """Return a layer without gradient whose outputs are never above 0, and a description.

        None without such a layer.
        """
        for name, activity in self.activity.items():
            # A layer with a single unit, such as an output, may be below 0 in every example.
            is_dead = (
                activity.is_dead
                and activity.num_units > 1
                and name in self._zero_layers_and_norm_layers()
            )
            if is_dead and self.names_with_nonzero_gradient and not self._weights_are_zero(name):
                return name, _describe_dead(name, activity)
        return None

    def _layer_before_zero_input(self) -> tuple[str, str] | None:
        """Return a layer without gradient whose next layer gets only zeros, and a description.

        None without such a layer.
        """
        for name, activity in self.activity.items():
            if not activity.num_examples or activity.has_nonzero_input is not False:
                continue
            layer = activity.previous_module_with_weights
            if layer in self.zero_layers and not self._weights_are_zero(layer):
                num_units = self.activity[layer].num_units
                return layer, (
                    f"0 of {num_units} units of {layer} are active: all inputs of {name} are 0 in "
                    f"{activity.num_examples:,} examples"
                )
        return None

    def find_initialised_at_zero(self) -> CheckOutcome | None:
        """Return a failure for layers whose weights stay at their initial 0; None without any."""
        layers = [
            module_name
            for module_name in self.zero_layers
            if self._weights_are_zero(module_name)
            and module_name not in self.idle_modules
            and self._has_nonzero_input(module_name)
        ]
        if not layers:
            return None
        return CheckOutcome(
            outcome="fail",
            summary=f"The weights of {format_names(layers)} are all 0 and get a gradient of "
            f"exactly 0 in {self._describe_batches()}.",
            fault="zero gradients",
            cause="The layer and an adjacent layer were initialised at 0, so neither layer gets a "
            "gradient.",
            fix="Initialise randomly. Only the last layer of a branch may be initialised at 0.",
        )

    def find_zero_gradients(self) -> CheckOutcome | None:
        """Return a failure for layers with a zero gradient of any cause; None without any."""
        layers = [
            module_name for module_name in self.zero_layers if module_name not in self.idle_modules
        ]
        are_all_zero = self.missing_gradients.zero and not self.names_with_nonzero_gradient
        if not layers and not are_all_zero:
            return None
        names = self._in_module_order(
            self.missing_gradients.zero
            if are_all_zero
            else {name for module_name in layers for name in self.trainable_parameters[module_name]}
        )
        return CheckOutcome(
            outcome="fail",
            summary=f"{len(names):,} of {self.missing_gradients.num_trainable:,} gradients are "
            f"exactly 0 in {self._describe_batches()}: "
            f"{format_names(names)}.",
            fault="zero gradients",
        )

    def find_by_design(self) -> CheckOutcome | None:
        """Return a warning for parameters that may have no gradient by design; None without any."""
        idle_parameters = {
            name
            for name in self.missing_gradients.missing
            if _parent_name(name) in self.idle_modules
        }
        remaining_names = self._in_module_order(self.missing_gradients.zero | idle_parameters)
        if not remaining_names:
            return None
        return CheckOutcome(
            outcome="warn",
            summary=f"{len(remaining_names):,} of {self.missing_gradients.num_trainable:,} "
            f"trainable parameters got no nonzero gradient in {self._describe_batches()}: "
            f"{format_names(remaining_names)}.",
            fault="zero gradients",
            cause=_BY_DESIGN_CAUSE,
            fix=_BY_DESIGN_FIX,
        )

    def _is_idle(self, module_name: str) -> bool:
        """Return whether an equivalent of the module, or of one of its parents, learns.

        An equivalent has the same class. It must also be in the same ``ModuleList`` or
        ``ModuleDict`` if the module did not run, or have the same input if the module ran.
        """
        return any(self._has_learning_equivalent(name) for name in _name_and_parents(module_name))

    def _has_learning_equivalent(self, name: str) -> bool:
        module, activity = self.modules[name], self.activity.get(name)
        parent = self.modules[_parent_name(name)] if name else None
        is_in_list = isinstance(parent, _MODULE_CONTAINERS)
        for other_name, other_module in self.modules.items():
            if type(other_module) is not type(module) or _are_related(other_name, name):
                continue
            if not self._has_run(name):
                is_equivalent = is_in_list and _parent_name(other_name) == _parent_name(name)
            else:
                other_activity = self.activity.get(other_name)
                is_equivalent = (
                    activity is not None
                    and other_activity is not None
                    and activity.input_key == other_activity.input_key
                )
            if is_equivalent and self._has_gradient(other_name):
                return True
        return False

    def _has_gradient(self, name: str) -> bool:
        return any(
            parameter.startswith(f"{name}.") for parameter in self.names_with_nonzero_gradient
        )

    def _has_run(self, module_name: str) -> bool:
        """Return whether any row passed through the module or one of its children."""
        return any(
            activity.num_examples
            for name, activity in self.activity.items()
            if name == module_name or name.startswith(f"{module_name}.")
        )

    def _has_nonzero_input(self, module_name: str) -> bool:
        return (
            module_name not in self.activity
            or self.activity[module_name].has_nonzero_input is not False
        )

    def _zero_layers_and_norm_layers(self) -> set[str]:
        norm_layers = {
            module_name
            for module_name, parameters in self.trainable_parameters.items()
            if isinstance(self.modules[module_name], _NORM_LAYERS)
            and parameters
            and set(parameters) <= self.missing_gradients.zero
        }
        return self.zero_layers | norm_layers

    def _weights_are_zero(self, module_name: str) -> bool:
        weights = [p for p in self.trainable_parameters.get(module_name, {}).values() if p.ndim > 1]
        return bool(weights) and not any(bool(p.detach().any()) for p in weights)

    def _in_module_order(self, names: Collection[str]) -> list[str]:
        return list(
            dict.fromkeys(
                n
                for parameters in self.trainable_parameters.values()
                for n in parameters
                if n in names
            )
        )


def _describe_dead(name: str, activity: ModuleActivity) -> str:
    return (
        f"0 of {activity.num_units:,} units of {name} were above 0 in any of "
        f"{activity.num_examples:,} examples"
    )


def _parent_name(name: str) -> str:
    return name.rpartition(".")[0]


def _name_and_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _are_related(one: str, other: str) -> bool:
    if not one or not other:
        return True  # "" is the name of the whole network
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
