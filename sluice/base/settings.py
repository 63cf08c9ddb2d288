"""Base classes of values: ``Settings`` for user settings, ``Record`` for outputs of stages."""

import difflib
import re
from collections.abc import Iterator
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from sluice.base.errors import SettingsError

_MAX_VALUE_CHARS = 200
"""Maximum length of a value in a message [characters]; the value may be a whole file."""


class Settings(BaseModel):
    """Base of every settings class; immutable, rejects unknown keys and implicit conversions.

    Raises:
        SettingsError: A keyword is unknown or missing, or a value is invalid. For an unknown
            keyword, the message suggests the nearest known keyword.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    if not TYPE_CHECKING:  # type checkers derive the signature from the fields

        def __init__(self, /, **data: Any) -> None:
            __tracebackhide__ = True
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise _settings_error(type(self), error, type(self).__name__) from None

        # With this attribute, Pydantic calls __init__ only for a direct call of the class, not for
        # nested settings. The errors of nested settings must keep their paths.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def parse(cls, values: dict[str, Any], *, where: str) -> Self:
        """Build the settings from plain values, as read from YAML.

        Args:
            values: Value by key. A field of type tuple accepts a list if the field is declared with
                strict=False.
            where: File or command that the values come from, for the error message.

        Raises:
            SettingsError: A key is unknown or missing, or a value is invalid. The message lists all
                these keys and the invalid values, and suggests known keys for unknown keys.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _settings_error(cls, error, where) from None

    @classmethod
    def parse_json(cls, text: str, *, where: str) -> Self:
        """Build the settings from JSON, which can also represent dates, paths and tuples.

        Raises:
            SettingsError: See ``parse``.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise _settings_error(cls, error, where) from None


class Record(BaseModel):
    """Base class of results, such as the values that stages pass on; immutable, stored as JSON.

    The JSON preserves NaN and infinity, because records of failures contain them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


_YAML_TEXT_NUMBER = re.compile(
    r"(?P<mantissa>[+-]?\d+(?:\.\d*)?)e(?P<sign>[+-]?)(?P<exponent>\d+)", re.IGNORECASE
)
"""Matches a number in exponential notation."""

_MIN_CONTAINED_LENGTH = 4
"""A known name that contains the unknown name is suggested only if the unknown name has at least
this length [characters]."""

_MIN_NESTED_SIMILARITY = 0.8
"""A key of a nested group is suggested only if its similarity to the unknown key (``difflib``, 0 to
1) is at least this value."""


def suggest_nearest(name: str, known_names: list[str]) -> str:
    """Return " Did you mean 'x'?" with the nearest known name, or an empty string."""
    is_long = len(name) >= _MIN_CONTAINED_LENGTH
    containing_names = [each for each in known_names if is_long and name in each]
    matches = containing_names or difflib.get_close_matches(name, known_names, n=1)
    return f" Did you mean '{matches[0]}'?" if matches else ""


def _settings_error(cls: type[Settings], error: ValidationError, where: str) -> SettingsError:
    sentences = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            model = _find_model(cls, problem["loc"][:-1])
            known_keys = _key_names(model)
            name = str(problem["loc"][-1])
            hint = suggest_nearest(name, known_keys) or _suggest_nested_key(name, model)
            sentences.append(
                f"'{path}' is not a setting.{hint} Known settings: {', '.join(sorted(known_keys))}."
            )
        elif problem["type"] == "missing":
            sentences.append(f"'{path}' is required and missing.")
        else:
            sentences.append((f"'{path}': " if path else "") + _describe_problem(problem))
    return SettingsError(
        f"{where}: {' '.join(sentences)}", fix="Correct these keys and start again."
    )


def _describe_problem(problem: ErrorDetails) -> str:
    """Return the problem and the invalid value, unless the problem already contains the value."""
    value = problem["input"]
    validator_error = problem.get("ctx", {}).get("error")
    if isinstance(validator_error, ValueError | AssertionError):
        message = str(validator_error).rstrip(".")
        # The value is not added to the message of a validator of several keys: such a validator
        # receives the values of all keys, and its message names the invalid keys.
        is_complete = isinstance(value, dict | BaseModel) or "got " in message
        return f"{message}." if is_complete else f"{message}, got {_format_value(value)}."
    return f"{problem['msg']}, got {_format_value(value)}.{_yaml_number_hint(value)}"


def _key_names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _suggest_nested_key(name: str, model: type[BaseModel]) -> str:
    """Return " Did you mean 'group.x'?" with the nearest key inside a group; else an empty string.

    The groups have many keys in total, so only a very similar key is suggested.
    """
    paths: dict[str, str] = {}
    for path in sorted(_nested_paths(model), key=lambda path: path.count(".")):
        paths.setdefault(path.rpartition(".")[2], path)
    matches = difflib.get_close_matches(name, paths, n=1, cutoff=_MIN_NESTED_SIMILARITY)
    return f" Did you mean '{paths[matches[0]]}'?" if matches else ""


def _nested_paths(
    model: type[BaseModel], parents: tuple[type[BaseModel], ...] = ()
) -> Iterator[str]:
    """Yield the paths of all keys inside the groups of a settings class, such as 'group.x'."""
    for name, field in model.model_fields.items():
        for member in _union_models(field.annotation):
            if member in (*parents, model):
                continue
            keys = [*_key_names(member), *_nested_paths(member, (*parents, model))]
            yield from (f"{field.alias or name}.{key}" for key in keys)


def _union_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the settings classes in a field's annotation, also within unions but not containers."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, Union, UnionType):
        for part in get_args(annotation):
            yield from _union_models(part)


def _find_model(cls: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel]:
    """Return the settings class at a path inside the settings class ``cls``."""
    model: type[BaseModel] = cls
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        members = list(_nested_models(field.annotation))
        # The path of an error in a member of a tagged union contains the discriminator's value.
        tagged_members = [member for member in members if _discriminator(member) in path]
        if tagged_members:
            model = tagged_members[0]
        elif len(members) == 1:
            model = members[0]
    return model


def _nested_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the settings classes in a field's annotation, also within unions and containers."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _nested_models(part)


def _discriminator(model: type[BaseModel]) -> Any:
    """Return the discriminator value of a member of a tagged union; None for other classes."""
    kind_field = model.model_fields.get("kind")
    return None if kind_field is None else kind_field.default


def _format_value(value: Any) -> str:
    """Return a value as text; for a mapping only the keys, because the values may be secrets."""
    if isinstance(value, dict):
        return f"keys {', '.join(map(str, value)) or 'none'}"
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."


def _yaml_number_hint(value: Any) -> str:
    """Return a hint for a number such as 2e-3 or 1.5e3, which YAML reads as text.

    YAML requires a decimal point and a sign of the exponent.
    """
    match = _YAML_TEXT_NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return ""
    mantissa, sign, exponent = match["mantissa"], match["sign"] or "+", match["exponent"]
    decimal = mantissa if "." in mantissa else f"{mantissa}.0"
    return f" YAML reads this value as text: write {decimal}e{sign}{exponent}."
