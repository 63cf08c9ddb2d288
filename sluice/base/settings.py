"""The two bases of every value class: what a user sets, and what a stage hands on."""

import difflib
import re
from collections.abc import Iterator
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from sluice.base.errors import SettingsError

_SHOWN = 200
"""Characters of a value in a message; it may be a whole file."""


class Settings(BaseModel):
    """Base of every settings class: immutable, no unknown keys, no silent casts."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, values: dict[str, Any], *, where: str) -> Self:
        """Build the settings from plain values, as read from YAML.

        Args:
            values: Keys and values; a tuple field takes a list when it is strict=False.
            where: The file or command the values came from, for the message.

        Raises:
            SettingsError: A key is unknown (the nearest known one is named) or a value is out of
                range; the message lists every offending key with what arrived.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _settings_error(cls, error, where) from None

    @classmethod
    def parse_json(cls, text: str, *, where: str) -> Self:
        """Build the settings from JSON, which stands for dates, paths and tuples as well.

        Raises:
            SettingsError: As ``parse``.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise _settings_error(cls, error, where) from None


class Record(BaseModel):
    """Base of every value that a stage hands to the next: immutable, stored as JSON.

    NaN and infinity survive the round trip, because evidence of a failure must.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


_MIN_PART = 4
"""Length from which on a name that is part of a known one is taken for it [characters]."""


def nearest(name: str, known: list[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest known name, or an empty string."""
    longer = [each for each in known if len(name) >= _MIN_PART and name in each]
    matches = longer or difflib.get_close_matches(name, known, n=1)
    return f" Did you mean '{matches[0]}'?" if matches else ""


def _settings_error(cls: type[Settings], error: ValidationError, where: str) -> SettingsError:
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = _known_keys(cls, problem["loc"][:-1])
            hint = nearest(str(problem["loc"][-1]), known)
            lines.append(
                f"'{path}' is not a setting.{hint} Known here: {', '.join(sorted(known))}."
            )
        elif problem["type"] == "missing":
            lines.append(f"'{path}' is required and missing.")
        else:
            lines.append((f"'{path}': " if path else "") + _offence(problem))
    return SettingsError(
        f"{where}: {' '.join(lines)}", fix="Correct the named keys and start again."
    )


def _offence(problem: ErrorDetails) -> str:
    """Say what is wrong with one value; our own validators say themselves what arrived."""
    got = problem["input"]
    ours = problem.get("ctx", {}).get("error")
    if isinstance(ours, ValueError | AssertionError):
        said = str(ours).rstrip(".")
        # A validator of several keys is handed all of them; its message names those it means.
        several = isinstance(got, dict | BaseModel)
        return f"{said}." if several or "got " in said else f"{said}, got {_shown(got)}."
    return f"{problem['msg']}, got {_shown(got)}.{_hint(got)}"


def _known_keys(cls: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = cls
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        members = list(_models(field.annotation))
        tagged = [m for m in members if _tag(m) in path]
        model = tagged[0] if tagged else members[0] if len(members) == 1 else model
    return [field.alias or name for name, field in model.model_fields.items()]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the settings classes that a field may hold: itself, or in a union, list or mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _tag(model: type[BaseModel]) -> Any:
    """Return what stands in the path of a member of a discriminated union; None for others."""
    kind = model.model_fields.get("kind")
    return None if kind is None else kind.default


def _shown(value: Any) -> str:
    """A mapping is told by its keys: what it holds may be long, or a password."""
    if isinstance(value, dict):
        return f"keys {', '.join(map(str, value)) or 'none'}"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _hint(value: Any) -> str:
    """YAML reads 2e-3 as text, for want of a point."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+e[+-]?\d+", value, re.IGNORECASE):
        return f" YAML reads that as text: write {value.lower().replace('e', '.0e', 1)}."
    return ""
