"""A search space over the settings of network and training, and the settings a trial gets."""

from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from sluice.errors import SettingsError
from sluice.models.settings import ModelSettings
from sluice.settings import Settings, nearest
from sluice.training.optimizer_settings import with_argument
from sluice.training.settings import NO_EFFECT, TrainSettings
from sluice.tuning.parameters import Parameter, Params, Value, ends

_GROUPS: Mapping[str, type[Settings]] = {"model": ModelSettings, "training": TrainSettings}
_FIXED = {
    "training.max_epochs": "It is the length of every trial, on which early stopping is planned.",
    "training.changes": "The scheduler 'pbt' finds them.",
    "training.device": "It says where to train, not how.",
    "training.micro_batch_rows": "It changes results by rounding only.",
    "training.recompute_activations": "It changes results by rounding only.",
    **{f"training.{name}": "It changes no result." for name in sorted(NO_EFFECT)},
}


class Space(Settings):
    """The searched parameters by dotted path, the most important one first.

    The order matters: a small budget searches the first ones only, and a condition may name only
    what stands before it.
    """

    parameters: dict[str, Parameter] = Field(
        min_length=1, description="Ranges by path, such as 'training.learning_rate'."
    )

    @model_validator(mode="after")
    def _sound(self) -> Self:
        # A SettingsError is a ValueError, which pydantic wraps; ``parse`` shows its text.
        seen: list[str] = []
        for path, parameter in self.parameters.items():
            _require_known(path)
            for value in ends(parameter):
                _require_valid(path, value)
            if parameter.when is not None:
                other = parameter.when.path
                _require_known(other)
                if other in self.parameters and other not in seen:
                    raise ValueError(f"'{path}' depends on '{other}', which must stand before it")
            seen.append(path)
        return self

    def leading(self, count: int) -> "Space":
        """Return the space of the first ``count`` parameters."""
        return Space(parameters=dict(list(self.parameters.items())[:count]))

    def choose(self, base: "Setup", pick: Callable[[str, Any], Value]) -> Params:
        """Return values of all active parameters.

        Args:
            base: Settings that conditions on parameters outside the space are read from.
            pick: (path, parameter) to its value, asked in the order of the space.
        """
        params: Params = {}
        for path, parameter in self.parameters.items():
            when = parameter.when
            if when is None or self._value(when.path, params, base) in when.one_of:
                params[path] = pick(path, parameter)
        return params

    def _value(self, path: str, params: Params, base: "Setup") -> Value | None:
        if path in self.parameters:
            return params.get(path)
        return base.value(path)


class Setup(Settings):
    """The settings a trial is trained with."""

    model: ModelSettings = ModelSettings()
    training: TrainSettings = TrainSettings()

    def value(self, path: str) -> Value:
        """Return the value of one setting by its dotted path."""
        group, _, name = path.partition(".")
        value: Value = getattr(getattr(self, group), name)
        return value

    def with_params(self, params: Params, *, where: str) -> "Setup":
        """Return the settings with the parameters of one trial.

        Raises:
            SettingsError: The settings classes refuse a value.
        """
        parts: dict[str, Any] = {
            group: getattr(self, group).model_dump(mode="python") for group in _GROUPS
        }
        if params.get("training.optimizer", self.training.optimizer) != self.training.optimizer:
            parts["training"].pop("optimizer_arguments", None)  # they are the other one's
        for path, value in params.items():
            group, name, *key = path.split(".", 2)
            if not key:
                parts[group][name] = value
                continue
            # An empty mapping is left out of the dump.
            mapping = parts[group].get(name, {})
            try:
                parts[group][name] = (
                    with_argument(mapping, key[0], value)
                    if name == "optimizer_arguments"
                    else {**mapping, key[0]: value}
                )
            except ValueError as error:
                raise SettingsError(f"{where}: {error}.", fix="Correct the space.") from None
        return Setup(
            model=ModelSettings.parse(parts["model"], where=where),
            training=TrainSettings.parse(parts["training"], where=where),
        )


def _require_known(path: str) -> None:
    known = [f"{group}.{name}" for group, cls in _GROUPS.items() for name in cls.model_fields]
    if path not in known:
        # The name alone may be right, and stand in the other group.
        same = [other for other in known if other.partition(".")[2] == path.rpartition(".")[2]]
        hint = f" Did you mean '{same[0]}'?" if same else nearest(path, known)
        raise SettingsError(
            f"'{path}' is not a parameter that can be searched.{hint}",
            fix=f"Name one of: {', '.join(sorted(set(known) - _FIXED.keys()))}.",
        )
    if path in _FIXED:
        raise SettingsError(
            f"'{path}' cannot be searched. {_FIXED[path]}", fix="Take it out of the space."
        )


def _require_valid(path: str, value: Value) -> None:
    group, _, name = path.partition(".")
    try:
        # Only the field itself: other fields may depend on values of the same trial.
        _GROUPS[group].__pydantic_validator__.validate_assignment(
            _GROUPS[group].model_construct(), name, value
        )
    except ValidationError as error:
        # Frozen classes refuse every assignment; what the value lacks is told first otherwise.
        problems = [p for p in error.errors() if p["type"] != "frozen_instance"]
        if problems:
            raise SettingsError(
                f"'{path}' cannot be {value!r}: {problems[0]['msg']}.",
                fix="Narrow the range to what the setting accepts.",
            ) from None
