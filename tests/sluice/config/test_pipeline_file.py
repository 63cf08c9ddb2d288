"""Pipeline files that are based on others, and overrides of the command line (CONF-1)."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.base.errors import SettingsError
from sluice.config.pipeline import (
    PipelineSettings,
    defs_folder,
    locate_pipeline,
    read_pipeline,
)
from sluice.config.pipeline_file import COMPONENT, apply_overrides, merge_attributes

BASE = {
    "name": "base",
    "workload": "tests.support.echo:Echo",
    "model": {"architecture": "lstm", "hidden": 16},
    "training": {"max_epochs": 7},
    "seeds": [0, 1, 2, 3, 4, 5],
}


def write_pipeline(path: Path, **attributes: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({"type": COMPONENT, "attributes": attributes}))
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_pipeline(tmp_path / "base.yaml", **BASE)


def test_missing_attributes_are_inherited_from_the_base(base: Path) -> None:
    middle = write_pipeline(
        base.parent / "deep" / "middle.yaml",
        based_on="../base.yaml",
        name="middle",
        model={"hidden": 32},
    )
    top = write_pipeline(
        base.parent / "top.yaml", based_on="deep/middle.yaml", name="top", seeds=[3, 4, 5, 6, 7]
    )

    found = read_pipeline(top)

    assert found == PipelineSettings.parse(
        BASE
        | {
            "name": "top",
            "model": {"architecture": "lstm", "hidden": 32},
            "seeds": [3, 4, 5, 6, 7],
        },
        where="test",
    )
    assert read_pipeline(middle).seeds == (0, 1, 2, 3, 4, 5)


def test_mapping_of_another_kind_replaces_the_whole_mapping() -> None:
    base_attributes = {"source": {"kind": "csv", "uri": "bars.csv", "index": "date"}}

    assert (
        merge_attributes(base_attributes, {"source": {"uri": "b.csv"}})["source"]["index"] == "date"
    )
    assert merge_attributes(base_attributes, {"source": {"kind": "packaged"}}) == {
        "source": {"kind": "packaged"}
    }


def test_arguments_of_another_optimizer_replace_all_arguments() -> None:
    sgd = {"optimizer": "sgd", "optimizer_arguments": {"momentum": 0.9, "nesterov": True}}

    assert merge_attributes(sgd, {"optimizer_arguments": {"momentum": 0.5}})[
        "optimizer_arguments"
    ] == {
        "momentum": 0.5,
        "nesterov": True,
    }
    assert merge_attributes(sgd, {"optimizer": "adam"}) == {"optimizer": "adam"}
    own = {"optimizer": "adam", "optimizer_arguments": {"eps": 1e-6}}
    assert merge_attributes(sgd, own) == own


def test_folder_of_the_pipeline_file_is_added_to_sys_path(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (base.parent / "sluice_probe_beside.py").write_text("Own = 1\n")
    file = write_pipeline(
        base.parent / "own.yaml", **BASE | {"training": {"optimizer": "sluice_probe_beside:Own"}}
    )
    read_pipeline(file)

    assert str(base.parent) in sys.path


def test_the_command_line_takes_precedence(base: Path) -> None:
    found = read_pipeline(
        base,
        [
            "training.learning_rate=0.01",
            "model={hidden: 8}",
            "seeds=[0, 1, 2, 3, 4]",
            "search.num_trials=5",
            "training.learning_rate=0.02",
            "rollout=null",
        ],
    )

    assert found.training.learning_rate == 0.02
    assert (found.training.max_epochs, found.model.architecture) == (7, "lstm")
    assert found.model.hidden == 8
    assert found.seeds == (0, 1, 2, 3, 4)
    assert found.search is not None
    assert found.search.num_trials == 5
    assert found.rollout is None


def test_overrides_do_not_modify_their_input() -> None:
    attributes = {"training": {"max_epochs": 5}}

    apply_overrides(attributes, ["training.max_epochs=9"])

    assert attributes == {"training": {"max_epochs": 5}}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "training.learning_rat=1.0",
            "--set training.learning_rat=1.0: .*Did you mean 'learning_rate'",
        ),
        ("training", "must be key=value, got 'training'"),
        ("training..max_epochs=3", "must be key=value"),
        ("seeds=[0, 1", "cannot be read as YAML"),
        ("description=2026-02-30", "cannot be read as YAML: day"),
        ("training.max_epochs=few", "'training.max_epochs': .*got 'few'"),
        ("training=3", "'training': "),
    ],
)
def test_invalid_override_is_explained(base: Path, override: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_pipeline(base, [override])


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"based_on": "base.yaml"}, "must set 'name'"),
        ({"based_on": "none.yaml", "name": "a"}, r"There is no pipeline file at .*none\.yaml"),
        ({"based_on": 3, "name": "a"}, "must be the path of a pipeline file, got 3"),
        ({"based_on": "top.yaml", "name": "a"}, r"'based_on: top\.yaml' is circular"),
        ({"based_on": "base.yaml", "name": "a", "modle": {}}, "Did you mean 'model'"),
    ],
)
def test_invalid_base_is_explained(base: Path, attributes: dict[str, Any], message: str) -> None:
    top = write_pipeline(base.parent / "top.yaml", **attributes)

    with pytest.raises(SettingsError, match=message):
        read_pipeline(top)


def test_two_files_that_are_based_on_each_other_are_refused(tmp_path: Path) -> None:
    write_pipeline(tmp_path / "one.yaml", based_on="other.yaml", name="one")
    other = write_pipeline(tmp_path / "other.yaml", based_on="one.yaml", name="other")

    with pytest.raises(SettingsError, match="leads back to"):
        read_pipeline(other)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  description: 2026-02-30", r"base\.yaml cannot be read as YAML: day"),
        ("on: push\nnaem: base", "'True' is not a key of a pipeline file"),
    ],
)
def test_invalid_pipeline_yaml_is_reported(base: Path, line: str, message: str) -> None:
    base.write_text(f"type: {COMPONENT}\nattributes:\n  name: base\n{line}\n")

    with pytest.raises(SettingsError, match=message):
        read_pipeline(base)


def test_pipeline_file_in_the_working_folder_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages name the pipeline, as in 'sluice run demand', and must work as printed."""
    (tmp_path / "demand.yaml").write_text("type: sluice.ModelPipeline\n")
    (tmp_path / "digits.yaml").write_text("type: sluice.ModelPipeline\n")
    monkeypatch.chdir(tmp_path)

    assert locate_pipeline("demand", defs_folder()) == Path("demand.yaml")
    assert locate_pipeline("digits", defs_folder()) == defs_folder() / "digits" / "defs.yaml"
    with pytest.raises(SettingsError, match="no pipeline 'prices'"):
        locate_pipeline("prices", defs_folder())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "type: {}\natributes:\n  name: a\n",
            r"contains 'atributes'\. Did you mean 'attributes'\?",
        ),
        (
            "type: {}\nattributes:\n  name: a\n   seeds: [0]\n",
            r"mapping values are not allowed here, at line 4, column 9\. .*Correct line 4 or",
        ),
    ],
)
def test_misspelled_key_and_wrong_indentation_are_located(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "a.yaml").write_text(text.format(COMPONENT))

    with pytest.raises(SettingsError) as refused:
        read_pipeline(tmp_path / "a.yaml")

    assert re.search(message, str(refused.value))
    assert "defs/sp500" not in str(refused.value)


def test_misspelled_file_name_suggests_a_file_in_the_same_folder(tmp_path: Path) -> None:
    write_pipeline(tmp_path / "my_model.yaml", **BASE)

    with pytest.raises(SettingsError, match=r"Did you mean 'my_model\.yaml'\?"):
        read_pipeline(tmp_path / "my_modle.yaml")
