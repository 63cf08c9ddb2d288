"""Search space over settings of network, training and workload, and the settings of a trial.

A path is 'model.NAME' or 'training.NAME' for a field of the settings, 'model.options.NAME' for an
option of the user's network, 'training.optimizer_arguments.NAME' for an argument of the optimizer,
and 'workload.NAME' for a setting of the workload.
"""

from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from sluice.base.errors import SettingsError
from sluice.base.settings import Settings, suggest_nearest
from sluice.models.settings import ModelSettings
from sluice.training.optimizer_settings import with_argument
from sluice.training.settings import NO_EFFECT, TrainSettings
from sluice.tuning.parameters import Parameter, Params, Value, boundary_values

WORKLOAD = "workload"
OPTIMIZER = "training.optimizer"
_GROUPS: Mapping[str, type[Settings]] = {"model": ModelSettings, "training": TrainSettings}
_MAPPINGS = {"model.options": "model.architecture", "training.optimizer_arguments": OPTIMIZER}
"""Settings that are mappings whose entries can be searched, and the setting that determines their
entries."""
_FIXED = {
    "training.max_epochs": "It is the length of every trial, on which early stopping depends.",
    "training.changes": "The scheduler 'pbt' creates them.",
    "training.device": "It selects the device and not the training.",
    "training.micro_batch_rows": "It changes results by rounding only.",
    "training.recompute_activations": "It changes results by rounding only.",
    **{f"training.{name}": "It changes no result." for name in sorted(NO_EFFECT)},
    **{path: f"Search one of its entries, as '{path}.NAME'." for path in _MAPPINGS},
    f"{WORKLOAD}.folds": "Losses on different rows cannot be compared.",
}


def split_path(path: str) -> tuple[str, str, str]:
    """Return the settings group, the field name, and the key of a mapping or ''.

    >>> split_path("training.optimizer_arguments.momentum")
    ('training', 'optimizer_arguments', 'momentum')
    >>> split_path("model.hidden")
    ('model', 'hidden', '')
    """
    group, _, rest = path.partition(".")
    name, _, key = rest.partition(".")
    return group, name, key


class Space(Settings):
    """The searched parameters by dotted path, the most important first.

    The order matters: a small budget searches only the first ones, and a condition may refer only
    to earlier parameters.
    """

    parameters: dict[str, Parameter] = Field(
        min_length=1, description="Ranges by path, such as 'training.learning_rate'."
    )

    @field_validator("parameters", mode="before")
    @classmethod
    def _choices(cls, parameters: Any) -> Any:
        """Convert Tune's function ``choice`` to the kind of the same name."""
        if not isinstance(parameters, Mapping):
            return parameters
        return {path: _as_choice(parameter) for path, parameter in parameters.items()}

    @model_validator(mode="after")
    def _valid_parameters(self) -> Self:
        # A SettingsError is a ValueError, which pydantic wraps; ``parse`` shows its message.
        seen: list[str] = []
        for path, parameter in self.parameters.items():
            _require_known(path)
            for value in boundary_values(parameter):
                _require_valid(path, value)
            if parameter.when is not None:
                other = parameter.when.path
                _require_known(other)
                if other in self.parameters and other not in seen:
                    raise ValueError(
                        f"'{path}' depends on '{other}', which must be defined before it"
                    )
            seen.append(path)
        return self

    def leading(self, count: int) -> "Space":
        """Return the space of the first ``count`` parameters."""
        return Space(parameters=dict(list(self.parameters.items())[:count]))

    def choose(self, base: "TrialSettings", pick: Callable[[str, Any], Value]) -> Params:
        """Return values of all active parameters.

        Args:
            base: Settings of parameters outside the space, for conditions.
            pick: Function of (path, parameter) that returns a value, called in the order of the
                space.
        """
        params: Params = {}
        for path, parameter in self.parameters.items():
            when = parameter.when
            if when is None or self._value(when.path, params, base) in when.one_of:
                params[path] = pick(path, parameter)
        return params

    def _value(self, path: str, params: Params, base: "TrialSettings") -> Value | None:
        if path in self.parameters:
            return params.get(path)
        return base.value(path)


class TrialSettings(Settings):
    """The settings with which a trial is trained."""

    model: ModelSettings = ModelSettings()
    training: TrainSettings = TrainSettings()
    workload_settings: dict[str, Any] = Field(
        {},
        exclude_if=lambda settings: not settings,
        description="Searched settings of the workload, which override those of the file.",
    )

    def value(self, path: str) -> Value | None:
        """Return the value of a setting by its dotted path; None if it is not set."""
        group, name, key = split_path(path)
        if group == WORKLOAD:
            return self.workload_settings.get(name)
        value = getattr(getattr(self, group), name)
        found: Value | None = value.get(key) if key else value
        return found

    def with_params(self, params: Params, *, where: str) -> "TrialSettings":
        """Return the settings with the values of one trial.

        Options of a network and arguments of an optimizer are dropped if the trial has another
        network or optimizer than the one they belong to.

        Raises:
            SettingsError: The settings classes refuse a value.
        """
        parts: dict[str, Any] = {
            group: {name: getattr(own, name) for name in type(own).model_fields}
            for group, own in (("model", self.model), ("training", self.training))
        }
        parts[WORKLOAD] = dict(self.workload_settings)
        for mapping, owner in _MAPPINGS.items():
            group, name, _ = split_path(mapping)
            is_same = params.get(owner, self.value(owner)) == self.value(owner)
            parts[group][name] = dict(parts[group][name]) if is_same else {}
        for path, value in params.items():
            group, name, key = split_path(path)
            if not key:
                parts[group][name] = value
            elif name == "optimizer_arguments":
                try:
                    parts[group][name] = with_argument(parts[group][name], key, value)
                except ValueError as error:
                    raise SettingsError(f"{where}: {error}.", fix="Correct the space.") from None
            else:
                parts[group][name][key] = value
        return TrialSettings(
            model=ModelSettings.parse(parts["model"], where=where),
            training=TrainSettings.parse(parts["training"], where=where),
            workload_settings=parts[WORKLOAD],
        )


def _as_choice(parameter: Any) -> Any:
    if not isinstance(parameter, Mapping) or parameter.get("kind") != "tune":
        return parameter
    if parameter.get("function") != "choice":
        return parameter
    arguments = parameter.get("arguments")
    if not (isinstance(arguments, list | tuple) and len(arguments) == 1):
        raise ValueError(f"choice takes one argument, the list of its options, got {arguments}")
    rest = {k: v for k, v in parameter.items() if k not in ("kind", "function", "arguments")}
    return {"kind": "choice", "options": arguments[0], **rest}


def _require_known(path: str) -> None:
    known = [f"{group}.{name}" for group, cls in _GROUPS.items() for name in cls.model_fields]
    if path in _FIXED:
        raise SettingsError(
            f"'{path}' cannot be searched. {_FIXED[path]}", fix="Remove it from the space."
        )
    group, name, key = split_path(path)
    mapping = f"{group}.{name}" if key else ""
    # Names of mapping entries and of workload settings are checked by their owners.
    if (
        key if mapping in _MAPPINGS else name if group == WORKLOAD and not key else ""
    ).isidentifier():
        return
    if path not in known:
        # The name may be correct, but belong to the other group.
        same = [other for other in known if other.partition(".")[2] == path.rpartition(".")[2]]
        searchable = sorted(set(known) - _FIXED.keys())
        hint = f" Did you mean '{same[0]}'?" if same else suggest_nearest(path, searchable)
        free = [f"{mapping}.NAME" for mapping in _MAPPINGS] + [f"{WORKLOAD}.NAME"]
        raise SettingsError(
            f"'{path}' is not a searchable parameter.{hint}",
            fix=f"Use one of: {', '.join([*searchable, *free])}.",
        )


def _require_valid(path: str, value: Value) -> None:
    group, name, key = split_path(path)
    if group == WORKLOAD:
        return
    require_field(_GROUPS[group], name, {key: value} if key else value, path=path, value=value)


def require_field(
    settings_type: type[Settings], name: str, whole: Any, *, path: str, value: Value
) -> None:
    """Refuse a value that a field of a settings class does not accept.

    Args:
        settings_type: The settings class.
        name: Name of the field.
        whole: Value of the field.
        path: Searched path, for the message.
        value: Value of the parameter, for the message.

    Raises:
        SettingsError: The class refuses the value.
    """
    try:
        # Validates only this field: other fields may depend on values of the same trial.
        settings_type.__pydantic_validator__.validate_assignment(
            settings_type.model_construct(), name, whole
        )
    except ValidationError as error:
        # Frozen classes refuse every assignment; an invalid value is reported as a separate error.
        problems = [p for p in error.errors() if p["type"] != "frozen_instance"]
        if problems:
            raise SettingsError(
                f"'{path}' cannot be {value!r}: {problems[0]['msg']}.",
                fix="Narrow the range to values that the setting accepts.",
            ) from None
