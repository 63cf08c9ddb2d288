"""The YAML of a pipeline: based on another file, overridden word by word (CONF-1).

``based_on`` names a file whose attributes hold where this one says nothing. An override is
``key.key=value`` with the value in YAML, as in ``training.learning_rate=0.01``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sluice.base.errors import SettingsError
from sluice.base.imports import search_beside
from sluice.base.settings import nearest
from sluice.base.yaml_text import load_yaml

COMPONENT = "sluice.pipelines.component.ModelPipeline"
"""The ``type`` that every pipeline's YAML names."""

BASED_ON = "based_on"
"""Attribute that names another pipeline's file, from the folder of the file it stands in."""


def read_attributes(path: Path) -> dict[str, Any]:
    """Return what a ``defs.yaml`` says under ``attributes``, with what it is based on.

    Raises:
        SettingsError: A file is missing, is no YAML or no pipeline, or is based on itself.
    """
    return compose(_attributes(path), folder=path.parent, where=(str(path),))


def compose(
    attributes: Mapping[str, Any], *, folder: Path, where: tuple[str, ...]
) -> dict[str, Any]:
    """Return attributes with those of the file that they are based on, where they say nothing.

    Modules that a file names are found beside that file from now on.

    Args:
        attributes: As they stand in the file.
        folder: Of the file, from which ``based_on`` is looked for.
        where: The file, and before it those that are based on it, for the message.

    Raises:
        SettingsError: The other file is missing or no pipeline, is based on this one, or this one
            has no name of its own.
    """
    own = dict(attributes)
    search_beside(folder, _import_paths(own))
    given = own.pop(BASED_ON, None)
    if given is None:
        return own
    if not isinstance(given, str):
        raise SettingsError(
            f"{where[-1]}: '{BASED_ON}' must be the path of a pipeline's file, got {given!r}.",
            fix="Give the path from the folder of this file.",
        )
    if "name" not in own:
        raise SettingsError(
            f"{where[-1]}: a pipeline that is based on another needs a name of its own.",
            cause="Under the other's name its models would stand among the other's.",
            fix="Add 'name' beside 'based_on'; the other's name makes it the same pipeline.",
        )
    path = folder / given
    if any(path.resolve() == Path(above).resolve() for above in where):
        raise SettingsError(
            f"{where[-1]}: '{BASED_ON}: {given}' leads back to {path}.",
            fix="Let one of the files stand alone.",
        )
    base = compose(_attributes(path), folder=path.parent, where=(*where, str(path)))
    return merged(base, own)


def _import_paths(attributes: Mapping[str, Any]) -> list[str]:
    """Return the import paths that a file names; what is wrong with others is told later."""
    model, training = attributes.get("model"), attributes.get("training")
    named = [
        attributes.get("workload"),
        model.get("architecture") if isinstance(model, Mapping) else None,
        training.get("optimizer") if isinstance(training, Mapping) else None,
    ]
    search = attributes.get("search")
    for part in ("scheduler", "searcher"):
        given = search.get(part) if isinstance(search, Mapping) else None
        named.append(given.get("class") if isinstance(given, Mapping) else None)
    return [path for path in named if isinstance(path, str) and ":" in path]


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``own`` in it: mappings key by key, anything else in its place.

    A mapping of another ``kind`` is another thing, and takes the place of the whole; so do the
    arguments of another optimizer.

    >>> merged({"a": {"b": 1, "c": 2}, "d": [1, 2]}, {"a": {"c": 3}, "d": [4]})
    {'a': {'b': 1, 'c': 3}, 'd': [4]}
    """
    result = dict(base)
    if "optimizer" in own and own["optimizer"] != base.get("optimizer"):
        result.pop("optimizer_arguments", None)
    for key, value in own.items():
        there = result.get(key)
        if isinstance(there, Mapping) and isinstance(value, Mapping) and _same_kind(there, value):
            result[key] = merged(there, value)
        else:
            result[key] = value
    return result


def overridden(attributes: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return attributes with what a command line says in place of what the file says.

    Args:
        attributes: From ``read_attributes``.
        overrides: Of the form ``key.key=value``; later ones win.

    Raises:
        SettingsError: One has not that form, or its value is no YAML.

    >>> overridden({"training": {"max_epochs": 5}}, ["training.max_epochs=9", "seeds=[1, 2]"])
    {'training': {'max_epochs': 9}, 'seeds': [1, 2]}
    """
    result = dict(attributes)
    for given in overrides:
        path, equals, text = given.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise SettingsError(
                f"An override must be key=value, got {given!r}.",
                fix="Write it as in --set training.learning_rate=0.01.",
            )
        try:
            value = load_yaml(text)
        except (yaml.YAMLError, ValueError) as error:  # the second: a day that no month has
            raise SettingsError(
                f"The value of the override {given!r} cannot be read as YAML: {error}.",
                fix="Quote it for the shell, as in --set 'seeds=[0, 1, 2, 3, 4]'.",
            ) from None
        for key in reversed(keys):
            value = {key: value}
        result = merged(result, value)
    return result


def _same_kind(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return "kind" not in one or "kind" not in other or one["kind"] == other["kind"]


def _attributes(path: Path) -> dict[str, Any]:
    try:
        document = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(
            f"A pipeline file is required at {path}, and there is none.",
            fix="Give the path of a defs.yaml, or the name of a folder in pipelines/defs.",
        ) from None
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: a day that no month has
        raise SettingsError(
            f"{path} cannot be read as YAML: {error}.", fix="Correct the file and start again."
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("attributes"), dict):
        raise SettingsError(
            f"{path} must hold 'type: {COMPONENT}' and a mapping 'attributes'.",
            fix="Start from pipelines/defs/sp500_volatility/defs.yaml.",
        )
    if document.get("type") != COMPONENT:
        raise SettingsError(
            f"{path}: 'type' must be {COMPONENT}, got {document.get('type')!r}.",
            fix="Correct the type.",
        )
    unknown = sorted(map(str, set(document) - {"type", "attributes"}))  # YAML reads on: as True
    if unknown:
        hint = nearest(unknown[0], ["type", "attributes"])
        raise SettingsError(
            f"{path}: '{unknown[0]}' is not a key of a pipeline file.{hint}",
            fix="Settings of the pipeline stand under 'attributes'.",
        )
    attributes: dict[str, Any] = document["attributes"]
    return attributes
