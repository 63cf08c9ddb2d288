"""The search space over settings of network, training and workload, and the settings of a trial.

A searched parameter is identified by a dotted path: 'model.NAME' or 'training.NAME' for a field of
the settings, 'model.options.NAME' for an option of the user's network,
'training.optimizer_arguments.NAME' for an argument of the optimizer, and 'workload.NAME' for a
setting of the workload.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from sluice.base.errors import SettingsError
from sluice.base.settings import Settings, suggest_nearest
from sluice.models.settings import ModelSettings
from sluice.training.optimizer_settings import with_argument
from sluice.training.settings import SETTINGS_WITHOUT_EFFECT, TrainSettings
from sluice.tuning.parameters import Parameter, Params, Value, boundary_values

WORKLOAD_GROUP = "workload"
"""First part of the path of a workload setting."""
OPTIMIZER_PATH = "training.optimizer"
_SETTINGS_CLASSES: Mapping[str, type[Settings]] = {
    "model": ModelSettings,
    "training": TrainSettings,
}
_SEARCHABLE_MAPPINGS = {
    "model.options": "model.architecture",
    "training.optimizer_arguments": OPTIMIZER_PATH,
}
"""Mappings whose entries can be searched, by path of the mapping. The value is the path of the
setting that determines which entries are valid."""
_NOT_SEARCHABLE = {
    "training.max_epochs": "It is the length of every trial, on which early stopping depends.",
    "training.changes": "The scheduler 'pbt' creates them.",
    "training.device": "It selects the machine's device, not how the network is trained.",
    "training.micro_batch_rows": "It changes results by rounding only.",
    "training.recompute_activations": "It changes results by rounding only.",
    **{f"training.{name}": "It changes no result." for name in sorted(SETTINGS_WITHOUT_EFFECT)},
    **{path: f"Search one of its entries, as '{path}.NAME'." for path in _SEARCHABLE_MAPPINGS},
    f"{WORKLOAD_GROUP}.folds": "Losses on different rows cannot be compared.",
}
"""Paths that cannot be searched, each with the reason for the user."""


def split_path(path: str) -> tuple[str, str, str]:
    """Return the settings group, the field name, and the key in a mapping ('' without a mapping).

    >>> split_path("training.optimizer_arguments.momentum")
    ('training', 'optimizer_arguments', 'momentum')
    >>> split_path("model.hidden")
    ('model', 'hidden', '')
    """
    group, _, rest = path.partition(".")
    name, _, mapping_key = rest.partition(".")
    return group, name, mapping_key


class Space(Settings):
    """The searched parameters by dotted path, the most important first.

    The order matters for two reasons. With a small budget, only the first parameters are searched.
    A condition may refer to an earlier parameter or to a setting that is not searched, but not to a
    later parameter.
    """

    parameters: dict[str, Parameter] = Field(
        min_length=1, description="Ranges by path, such as 'training.learning_rate'."
    )

    @field_validator("parameters", mode="before")
    @classmethod
    def _convert_choices(cls, parameters: Any) -> Any:
        """Convert Tune's sampling function ``choice`` to the parameter kind ``choice``."""
        if not isinstance(parameters, Mapping):
            return parameters
        return {path: _convert_choice(parameter) for path, parameter in parameters.items()}

    @model_validator(mode="after")
    def _require_valid_parameters(self) -> Self:
        # A SettingsError is a ValueError, so pydantic wraps it, and ``parse`` shows its message.
        earlier_paths: list[str] = []
        for path, parameter in self.parameters.items():
            _require_searchable(path)
            for value in boundary_values(parameter):
                _require_valid(path, value)
            if parameter.when is not None:
                when_path = parameter.when.path
                _require_searchable(when_path)
                if when_path in self.parameters and when_path not in earlier_paths:
                    raise ValueError(
                        f"'{path}' depends on '{when_path}', which must be defined before it"
                    )
            earlier_paths.append(path)
        return self

    def leading(self, count: int) -> "Space":
        """Return the space of the first ``count`` parameters."""
        return Space(parameters=dict(list(self.parameters.items())[:count]))

    def choose(self, base: "TrialSettings", choose_value: Callable[[str, Any], Value]) -> Params:
        """Choose a value for every active parameter, and return the values.

        Args:
            base: Settings on which conditions may depend if their parameter is not in the space.
            choose_value: Function of (path, parameter) that returns the value of a parameter. It is
                called in the order of the space.
        """
        params: Params = {}
        for path, parameter in self.parameters.items():
            when = parameter.when
            if when is None or self._value(when.path, params, base) in when.one_of:
                params[path] = choose_value(path, parameter)
        return params

    def _value(self, path: str, params: Params, base: "TrialSettings") -> Value | None:
        if path in self.parameters:
            return params.get(path)
        return base.value(path)


class TrialSettings(Settings):
    """Settings of network, training and workload with which a trial is trained."""

    model: ModelSettings = ModelSettings()
    training: TrainSettings = TrainSettings()
    workload_settings: dict[str, Any] = Field(
        {},
        exclude_if=lambda settings: not settings,
        description="Searched settings of the workload, which override those of the file.",
    )

    def value(self, path: str) -> Value | None:
        """Return the value of the setting with a dotted path; None if it is not set."""
        group, name, mapping_key = split_path(path)
        if group == WORKLOAD_GROUP:
            return self.workload_settings.get(name)
        value = getattr(getattr(self, group), name)
        result: Value | None = value.get(mapping_key) if mapping_key else value
        return result

    def with_params(self, params: Params, *, where: str) -> "TrialSettings":
        """Return the settings with the values of one trial.

        If the trial has another network than these settings, ``model.options`` is dropped, because
        the options belong to the replaced network. If the trial has another optimizer,
        ``training.optimizer_arguments`` is dropped.

        Raises:
            SettingsError: The settings classes refuse a value.
        """
        values_by_group: dict[str, Any] = {
            group: {name: getattr(settings, name) for name in type(settings).model_fields}
            for group, settings in (("model", self.model), ("training", self.training))
        }
        values_by_group[WORKLOAD_GROUP] = dict(self.workload_settings)
        for mapping_path, owner_path in _SEARCHABLE_MAPPINGS.items():
            group, name, _ = split_path(mapping_path)
            fields, base_owner = values_by_group[group], self.value(owner_path)
            has_base_owner = params.get(owner_path, base_owner) == base_owner
            fields[name] = dict(fields[name]) if has_base_owner else {}
        for path, value in params.items():
            group, name, mapping_key = split_path(path)
            fields = values_by_group[group]
            if not mapping_key:
                fields[name] = value
            elif name == "optimizer_arguments":
                try:
                    fields[name] = with_argument(fields[name], mapping_key, value)
                except ValueError as error:
                    raise SettingsError(f"{where}: {error}.", fix="Correct the space.") from None
            else:
                fields[name][mapping_key] = value
        return TrialSettings(
            model=ModelSettings.parse(values_by_group["model"], where=where),
            training=TrainSettings.parse(values_by_group["training"], where=where),
            workload_settings=values_by_group[WORKLOAD_GROUP],
        )


def _convert_choice(parameter: Any) -> Any:
    if not isinstance(parameter, Mapping) or parameter.get("kind") != "tune":
        return parameter
    if parameter.get("function") != "choice":
        return parameter
    arguments = parameter.get("arguments")
    if not (isinstance(arguments, list | tuple) and len(arguments) == 1):
        raise ValueError(f"choice takes one argument, the list of its options, got {arguments}")
    converted_names = ("kind", "function", "arguments")
    other_fields = {n: value for n, value in parameter.items() if n not in converted_names}
    return {"kind": "choice", "options": arguments[0], **other_fields}


def _require_searchable(path: str) -> None:
    known_paths = [
        f"{group}.{name}" for group, cls in _SETTINGS_CLASSES.items() for name in cls.model_fields
    ]
    if path in _NOT_SEARCHABLE:
        raise SettingsError(
            f"'{path}' cannot be searched. {_NOT_SEARCHABLE[path]}", fix="Remove it from the space."
        )
    group, name, mapping_key = split_path(path)
    mapping = f"{group}.{name}" if mapping_key else ""
    # Names of mapping entries and of workload settings are unknown here. The network, the optimizer
    # or the workload checks them later.
    unchecked_name = ""
    if mapping in _SEARCHABLE_MAPPINGS:
        unchecked_name = mapping_key
    elif group == WORKLOAD_GROUP and not mapping_key:
        unchecked_name = name
    if unchecked_name.isidentifier():
        return
    if path not in known_paths:
        # The field may exist in the other group.
        name_only = path.rpartition(".")[2]
        paths_with_name = [other for other in known_paths if other.partition(".")[2] == name_only]
        searchable = sorted(set(known_paths) - _NOT_SEARCHABLE.keys())
        hint = f" Did you mean '{paths_with_name[0]}'?" if paths_with_name else ""
        hint = hint or suggest_nearest(path, searchable)
        patterns = [f"{mapping}.NAME" for mapping in _SEARCHABLE_MAPPINGS] + [
            f"{WORKLOAD_GROUP}.NAME"
        ]
        raise SettingsError(
            f"'{path}' is not a searchable parameter.{hint}",
            fix=f"Use one of: {', '.join([*searchable, *patterns])}.",
        )


def _require_valid(path: str, value: Value) -> None:
    group, name, mapping_key = split_path(path)
    if group == WORKLOAD_GROUP:
        return
    require_field_value(
        _SETTINGS_CLASSES[group],
        name,
        {mapping_key: value} if mapping_key else value,
        path=path,
        value=value,
    )


def require_field_value(
    settings_type: type[Settings], name: str, field_value: Any, *, path: str, value: Value
) -> None:
    """Refuse a value that a field of a settings class does not accept.

    Args:
        settings_type: The settings class.
        name: Name of the field.
        field_value: Value of the field.
        path: Path of the searched parameter, for the message.
        value: Value of the searched parameter, for the message. It differs from ``field_value``
            if the field is a mapping.

    Raises:
        SettingsError: The class refuses the value.
    """
    try:
        # Only one field is validated, because its class also checks combinations of fields, and the
        # other values of the trial are unknown here.
        settings_type.__pydantic_validator__.validate_assignment(
            settings_type.model_construct(), name, field_value
        )
    except ValidationError as error:
        raise SettingsError(
            f"'{path}' cannot be {value!r}: {error.errors()[0]['msg']}.",
            fix="Narrow the range to values that the setting accepts.",
        ) from None
