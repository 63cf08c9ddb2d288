"""The page about the keys of a pipeline file, generated from the settings classes."""

import inspect
import re
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sluice.bench.documentation import markdown
from sluice.config.pipeline import PipelineSettings
from sluice.workloads.bars import BarsSettings
from sluice.workloads.workload import WorkloadSettings

_TYPE_NAMES = {
    int: "integer",
    float: "number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}
_LIMIT_WORDS = {"Gt": "above", "Ge": "at least", "Lt": "below", "Le": "at most"}
_LENGTH_WORDS = {"MinLen": "at least", "MaxLen": "at most"}
_GROUP_TEXT = "keys of a group"
"""Placeholder for a group of keys, which is replaced by links to the sections of the group."""

_WORKLOAD = "workload_settings"

_MAX_INLINE_KEYS = 2
"""If a group has at most this number of keys, the table shows all defaults in one cell."""


class Section(NamedTuple):
    """A section of the page: a group of keys with its path in the pipeline file."""

    path: str
    model: type[BaseModel]

    @property
    def heading(self) -> str:
        """Heading of the section."""
        kind = _kind(self.model)
        if kind is not None:
            return f"`{self.path}`: kind `{kind}`"
        if self.path == _WORKLOAD:
            return f"`{_WORKLOAD}` of `{self.model.__name__.removesuffix('Settings')}`"
        return f"`{self.path}`" if self.path else "Top level"

    @property
    def anchor(self) -> str:
        """Anchor of the heading, for links."""
        return re.sub(r"[^\w -]", "", self.heading.lower()).replace(" ", "-")


def setting_page() -> dict[str, str]:
    """Return the text of the page about settings, by its path in the documentation."""
    paragraphs = [
        "# Keys of a pipeline file",
        "Keys under `attributes` of a pipeline file, from the settings classes. A key that does "
        "not exist is rejected, and the nearest key is suggested. `--set KEY=VALUE` of `sluice "
        "run`, `tune` and `poc` overrides a key for one run, such as "
        "`--set training.learning_rate=0.01`. A file with `based_on: other.yaml` and a `name` "
        "takes every key that it does not set from the other pipeline file.",
    ]
    sections = find_sections()
    for section in sections:
        paragraphs += [
            f"## {section.heading}",
            _summary(section.model),
            settings_table(section.model, sections),
        ]
    return {"reference/settings.md": markdown.page(*paragraphs)}


def find_sections() -> list[Section]:
    """Return one section for every settings class, in the order of the keys."""
    sections: list[Section] = []
    for path, model in (
        ("", PipelineSettings),
        (_WORKLOAD, WorkloadSettings),
        (_WORKLOAD, BarsSettings),
    ):
        add_sections(Section(path, model), sections)
    return sections


def add_sections(section: Section, sections: list[Section]) -> None:
    """Add a section and the sections nested in it, except for classes that already have one."""
    if any(other.model is section.model for other in sections):
        return
    sections.append(section)
    fields = section.model.model_fields
    models = {name: list(nested_models(field.annotation)) for name, field in fields.items()}
    num_keys_by_model = Counter(model for nested in models.values() for model in set(nested))
    for name, nested in models.items():
        for model in nested:
            # A class that several keys use has one section, whose path ends with NAME.
            key = "NAME" if num_keys_by_model[model] > 1 else name
            add_sections(Section(f"{section.path}.{key}".strip("."), model), sections)


def describe_type(annotation: Any) -> str:
    """Return the values that an annotation permits, such as 'integer or null'."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        return _with_limits(describe_type(inner), metadata)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if origin in (Union, types.UnionType):
        texts = [describe_type(argument) for argument in get_args(annotation)]
        return " or ".join(dict.fromkeys(texts))
    if origin in (tuple, list):
        item_types = [argument for argument in get_args(annotation) if argument is not Ellipsis]
        return f"list of {' and '.join(dict.fromkeys(map(describe_type, item_types)))}"
    if origin in (dict, Mapping) or annotation is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _GROUP_TEXT
    return _TYPE_NAMES.get(annotation, "any value")


def nested_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the settings classes of an annotation, also within unions and containers."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from nested_models(argument)


def _kind(model: type[BaseModel]) -> str | None:
    """Return the value of the key 'kind' that selects a settings class; None without that key."""
    field = model.model_fields.get("kind")
    return field.default if field is not None and isinstance(field.default, str) else None


def _summary(model: type[BaseModel]) -> str:
    return " ".join((inspect.getdoc(model) or "").partition("\n\n")[0].split())


def settings_table(model: type[BaseModel], sections: list[Section]) -> str:
    """Return the table of the keys of a settings class, with links to the given sections."""
    rows = [
        (f"`{field.alias or name}`", _default(field), _values(field, sections), _meaning(field))
        for name, field in model.model_fields.items()
    ]
    return markdown.table(("key", "default", "values", "meaning"), rows)


def _meaning(field: FieldInfo) -> str:
    nested_classes = list(nested_models(field.annotation))
    return field.description or (_summary(nested_classes[0]) if nested_classes else "")


def _values(field: FieldInfo, sections: list[Section]) -> str:
    nested_classes = dict.fromkeys(nested_models(field.annotation))
    links = [
        f"[{_kind(section.model) or 'keys'}](#{section.anchor})"
        for section in sections
        if section.model in nested_classes
    ]
    text = describe_type(field.annotation)
    if links:
        text = text.replace(_GROUP_TEXT, " or ".join(links), 1).replace(f" or {_GROUP_TEXT}", "")
    return _with_limits(text, field.metadata)


def _with_limits(text: str, metadata: Any) -> str:
    """Return the description of a type with its limits."""
    limits = []
    for limit in metadata:
        name = type(limit).__name__
        if name in _LIMIT_WORDS:
            limits.append(f"{_LIMIT_WORDS[name]} {getattr(limit, name.lower()):g}")
        elif name in _LENGTH_WORDS:
            length = getattr(limit, "min_length" if name == "MinLen" else "max_length")
            limits.append(f"{_LENGTH_WORDS[name]} {length} long")
        elif getattr(limit, "pattern", None):
            limits.append(f"matching `{limit.pattern}`")
    return f"{text}, {' and '.join(limits)}" if limits else text


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        if len(type(value).model_fields) > _MAX_INLINE_KEYS:
            return "see its keys"
        value = value.model_dump(mode="json")
    if isinstance(value, tuple | list) and any(isinstance(item, BaseModel) for item in value):
        return "see its keys"
    yaml_value = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(yaml_value, default_flow_style=True, width=1000).removesuffix("...\n")
    return f"`{' '.join(text.split())}`"
