"""Parsing of YAML with limits on its expanded size and depth."""

from pathlib import Path

import pytest
import yaml

from sluice.base.errors import SettingsError
from sluice.base.yaml_text import MAX_CHARACTERS, load_yaml
from sluice.config.pipeline_file import COMPONENT, apply_overrides, read_attributes

NESTED_ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)
)
NESTED_MERGES = "a0: &a0 {x: 1, y: 2}\n" + "\n".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 10)
)
ALIAS_CHAIN = "a0: &a0 [x]\n" + "\n".join(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 500))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NESTED_ALIASES, "at most 10,000 values.* line 4"),
        (NESTED_MERGES, "at most 10,000 values"),
        (ALIAS_CHAIN, "at most 50 levels deep"),
        ("[" * 1_000, "at most 50 levels deep"),
        ("{a: " * 1_000, "at most 50 levels deep"),
        ("\n".join(" " * i + "a:" for i in range(200)), "at most 50 levels deep"),
        ("a: &a [*a]", "a value that contains it"),
        ("a: &a {b: {c: *a}}", "a value that contains it"),
        ("[" + "1," * 10_001 + "]", "at most 10,000 values"),
        ("a: " + "x" * MAX_CHARACTERS, "at most 200,000 characters"),
        ("a: *never", "undefined alias"),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
    ],
    ids=range(12),
)
def test_oversized_recursive_or_unsafe_yaml_is_rejected(text, message):
    with pytest.raises(yaml.YAMLError, match=f"(?s){message}"):
        load_yaml(text)


def test_aliases_and_merges_are_supported():
    text = "base: &base {a: 1, b: [1, 2]}\nother: {<<: *base, a: 3}\nsame: *base\n"

    assert load_yaml(text) == yaml.safe_load(text)


def test_packaged_pipeline_files_are_read_as_by_safe_load():
    files = list((Path(__file__).resolve().parents[3] / "pipelines" / "defs").rglob("*.yaml"))

    assert files
    for file in files:
        assert load_yaml(file.read_text()) == yaml.safe_load(file.read_text())


def test_limits_apply_to_pipeline_files_and_overrides(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(f"type: {COMPONENT}\nattributes: {{name: mine}}\n{NESTED_ALIASES}\n")

    with pytest.raises(SettingsError, match="at most 10,000 values"):
        read_attributes(path)
    with pytest.raises(SettingsError, match="at most 50 levels deep"):
        apply_overrides({}, ["seeds=" + "[" * 10_000])
