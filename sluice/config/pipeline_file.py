"""Reads the YAML file of a pipeline: inheritance (``based_on``) and overrides.

``based_on`` names a base file, whose attributes are used for all keys that this file does not set.
An override has the form ``key.key=value`` with the value in YAML, as in
``training.learning_rate=0.01``.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sluice.base.errors import SettingsError
from sluice.base.imports import add_pipeline_folder
from sluice.base.settings import suggest_nearest
from sluice.base.yaml_text import load_yaml

COMPONENT = "sluice.ModelPipeline"
"""Value of ``type`` in a pipeline file, as 'dg list components' shows it."""

_COMPONENTS = (COMPONENT, "sluice.pipelines.component.ModelPipeline")
"""Import paths of the component, which Dagster accepts as ``type``."""
_TYPE_LINE_PATTERN = re.compile(
    rf"^type:\s*['\"]?({'|'.join(map(re.escape, _COMPONENTS))})\b", re.MULTILINE
)
"""Pattern of the line that identifies a pipeline file, even if other lines are not valid YAML."""

BASED_ON = "based_on"
"""Attribute with the path of another pipeline file, relative to the folder of this file."""


def pipeline_files(folder: Path) -> list[Path]:
    """Return the pipeline files NAME.yaml directly in a folder, sorted; other files are ignored."""
    return sorted(path for path in folder.glob("*.yaml") if _is_pipeline(path))


def _is_pipeline(path: Path) -> bool:
    try:
        return _TYPE_LINE_PATTERN.search(path.read_text(encoding="utf-8")) is not None
    except (OSError, ValueError):
        return False


def read_attributes(path: Path) -> dict[str, Any]:
    """Return the ``attributes`` of a pipeline file, merged with the attributes of its base file.

    Raises:
        SettingsError: A file is missing, is not a valid pipeline file, or is based on itself.
    """
    return resolve_base(_read_own_attributes(path), folder=path.parent, file_chain=(str(path),))


def resolve_base(
    attributes: Mapping[str, Any], *, folder: Path, file_chain: tuple[str, ...]
) -> dict[str, Any]:
    """Return attributes merged with the attributes of the base file.

    Also adds the folder of each file to the import path if the file uses modules in this folder.

    Args:
        attributes: Attributes in the file.
        folder: Folder of the file, to which ``based_on`` is relative.
        file_chain: Paths of the files that are based on one another, ending with this one. They
            are used in messages and to detect cycles.

    Raises:
        SettingsError: The base file is missing, invalid or based on this file; or this file does
            not set its own name.
    """
    settings = dict(attributes)
    add_pipeline_folder(folder, _import_paths(settings))
    base_name = settings.pop(BASED_ON, None)
    if base_name is None:
        return settings
    if not isinstance(base_name, str):
        raise SettingsError(
            f"{file_chain[-1]}: '{BASED_ON}' must be the path of a pipeline file, got "
            f"{base_name!r}.",
            fix="Write the path relative to the folder of this file.",
        )
    if "name" not in settings:
        raise SettingsError(
            f"{file_chain[-1]}: a pipeline that is based on another pipeline must set 'name'.",
            cause="With an inherited name, the models of both pipelines would be mixed.",
            fix="Add 'name' next to 'based_on'. To change the settings of the same pipeline, use "
            "the name in the base file.",
        )
    path = folder / base_name
    if any(path.resolve() == Path(earlier).resolve() for earlier in file_chain):
        raise SettingsError(
            f"{file_chain[-1]}: '{BASED_ON}: {base_name}' is circular: it leads back to {path}.",
            fix="Remove 'based_on' from one of the files.",
        )
    base = resolve_base(
        _read_own_attributes(path), folder=path.parent, file_chain=(*file_chain, str(path))
    )
    return merge_attributes(base, settings)


def _import_paths(attributes: Mapping[str, Any]) -> list[str]:
    """Return the import paths in a file; a later validation reports invalid values."""
    model, training = attributes.get("model"), attributes.get("training")
    import_paths = [
        attributes.get("workload"),
        model.get("architecture") if isinstance(model, Mapping) else None,
        training.get("optimizer") if isinstance(training, Mapping) else None,
    ]
    search = attributes.get("search")
    for setting in ("scheduler", "searcher"):
        extension = search.get(setting) if isinstance(search, Mapping) else None
        import_paths.append(extension.get("class") if isinstance(extension, Mapping) else None)
    return [path for path in import_paths if isinstance(path, str) and ":" in path]


def merge_attributes(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``changes`` into ``base``: mappings are merged by key, other values are replaced.

    A mapping with another ``kind`` is replaced as a whole. If ``changes`` has another optimizer,
    the ``optimizer_arguments`` of ``base`` are dropped.

    >>> merge_attributes({"a": {"b": 1, "c": 2}, "d": [1, 2]}, {"a": {"c": 3}, "d": [4]})
    {'a': {'b': 1, 'c': 3}, 'd': [4]}
    """
    result = dict(base)
    if "optimizer" in changes and changes["optimizer"] != base.get("optimizer"):
        result.pop("optimizer_arguments", None)
    for key, value in changes.items():
        base_value = result.get(key)
        if (
            isinstance(base_value, Mapping)
            and isinstance(value, Mapping)
            and _are_mergeable(base_value, value)
        ):
            result[key] = merge_attributes(base_value, value)
        else:
            result[key] = value
    return result


def apply_overrides(attributes: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return attributes in which values from the command line replace values from the file.

    Args:
        attributes: Attributes from ``read_attributes``.
        overrides: Overrides ``key.key=value``; later overrides take precedence.

    Raises:
        SettingsError: An override is malformed, or its value is not YAML.

    >>> apply_overrides({"training": {"max_epochs": 5}}, ["training.max_epochs=9", "seeds=[1, 2]"])
    {'training': {'max_epochs': 9}, 'seeds': [1, 2]}
    """
    result = dict(attributes)
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise SettingsError(
                f"An override must be key=value, got {override!r}.",
                fix="Write the override as in --set training.learning_rate=0.01.",
            )
        try:
            value = load_yaml(text)
        except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
            raise SettingsError(
                f"The value of the override {override!r} cannot be read as YAML: {error}.",
                fix="Quote the override for the shell, as in --set 'seeds=[0, 1, 2, 3, 4]'.",
            ) from None
        for key in reversed(keys):
            value = {key: value}
        result = merge_attributes(result, value)
    return result


def _are_mergeable(base: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
    return "kind" not in base or "kind" not in changes or base["kind"] == changes["kind"]


def _list_yaml_names(path: Path) -> list[str]:
    """Return the names of the YAML files in the folder of a file that does not exist."""
    return sorted(file.name for file in path.parent.glob("*.yaml"))


def _hint_misspelled_key(document: object) -> str:
    """Return a sentence about a key that resembles 'attributes'; "" without such a key."""
    for key in map(str, document) if isinstance(document, dict) else ():
        hint = suggest_nearest(key, ["attributes"])
        if hint and key != "attributes":
            return f" The file contains '{key}'.{hint}"
    return ""


def _yaml_error(path: Path, error: Exception) -> SettingsError:
    """Return the error for a file that is not YAML, with the line of the problem if it is known."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return SettingsError(
            f"{path} cannot be read as YAML: {error}.", fix="Correct the file and start again."
        )
    line = error.problem_mark.line + 1
    return SettingsError(
        f"{path} cannot be read as YAML: {error.problem or error.context}, at line {line}, column "
        f"{error.problem_mark.column + 1}.",
        cause="Often a line is indented by too few or too many blanks, or a colon, a quotation "
        "mark or a bracket is missing.",
        fix=f"Correct line {line} or the line before it.",
    )


def _read_own_attributes(path: Path) -> dict[str, Any]:
    try:
        document = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        nearest = suggest_nearest(path.name, _list_yaml_names(path))
        raise SettingsError(
            f"There is no pipeline file at {path}.{nearest}",
            fix="Use the path of a pipeline file, such as my_model.yaml, or a name that 'sluice "
            "list' shows.",
        ) from None
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: a nonexistent date
        raise _yaml_error(path, error) from None
    if not isinstance(document, dict) or not isinstance(document.get("attributes"), dict):
        raise SettingsError(
            f"{path} must contain 'type: {COMPONENT}' and a mapping 'attributes'."
            f"{_hint_misspelled_key(document)}",
            fix="Write these two keys at the start of lines, and the settings of the pipeline "
            "indented below 'attributes:'.",
        )
    if document.get("type") not in _COMPONENTS:
        raise SettingsError(
            f"{path}: 'type' must be {COMPONENT}, got {document.get('type')!r}.",
            fix="Correct the type.",
        )
    # Keys become text, because YAML parses the key 'on' as True.
    unknown_keys = sorted(map(str, set(document) - {"type", "attributes"}))
    if unknown_keys:
        hint = suggest_nearest(unknown_keys[0], ["type", "attributes"])
        raise SettingsError(
            f"{path}: '{unknown_keys[0]}' is not a key of a pipeline file.{hint}",
            fix="Settings of the pipeline belong under 'attributes'.",
        )
    attributes: dict[str, Any] = document["attributes"]
    return attributes
