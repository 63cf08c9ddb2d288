"""The generated files of a new pipeline load, pass their tests, and overwrite nothing."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from sluice.base.errors import ContractError, SettingsError, SourceError
from sluice.config.pipeline import PipelineSettings
from sluice.scaffold.create import create_for_init
from sluice.scaffold.image_inspection import inspect_images
from sluice.scaffold.project import write_files
from sluice.scaffold.samples import make_sample
from tests.sluice.scaffold.tables import TABLES, write_csv

ROOT = Path(__file__).resolve().parents[3]
TEMPLATES = ("regression", "classification", "tabular", "text", "images")


def create(folder: Path, data: str, target: str | None, name: str = "my_model"):
    return create_for_init(folder, folder / data, target=target, name=name)


def write_images(folder: Path, *labels: str, number: int = 90, size=(20, 30)) -> None:
    for label in labels:
        (folder / label).mkdir(parents=True)
        for index in range(number):
            Image.new("RGB", size, (index, 0, 0)).save(folder / label / f"{index}.png")


@pytest.mark.slow
def test_generated_tests_pass_for_every_kind_of_data(tmp_path: Path) -> None:
    for kind in TABLES:
        target = write_csv(kind, tmp_path / f"{kind}.csv")
        create(tmp_path, f"{kind}.csv", target, name=f"a_{kind}")
    for template in TEMPLATES:
        sample = make_sample(template)
        (tmp_path / template).mkdir()
        write_files(tmp_path / template, sample.files)
        create_for_init(
            tmp_path,
            tmp_path / template / sample.data,
            target=sample.target,
            name=f"sample_{template}",
        )

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "38 passed" in done.stdout  # three for a table, two for images


@pytest.mark.parametrize("kind", TABLES)
def test_generated_pipeline_file_is_valid_and_code_is_formatted(kind: str, tmp_path: Path) -> None:
    target = write_csv(kind, tmp_path / "data.csv")

    created = create(tmp_path, "data.csv", target)

    assert [path.name for path in created.files] == [
        "my_model.yaml",
        "my_model.py",
        "test_my_model.py",
    ]
    document = yaml.safe_load(created.files[0].read_text())
    assert document["type"] == "sluice.ModelPipeline"
    settings = PipelineSettings.parse(document["attributes"], where="generated")
    assert settings.workload == "my_model:MyModel"
    code = [path.read_text() for path in created.files[1:]]
    for text in code:
        compile(text, "generated", "exec")
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("ruff"), "check", "--isolated"),
            *("--select", "E,F,I", "--line-length", "100"),
            *map(str, created.files[1:]),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert len(code[0].splitlines()) < 40


def test_quotes_and_long_lists_give_valid_code(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = [f'say "{number}", then\\a - b \u00f6' for number in range(12)]
    rows = {'a "b"': rng.choice(values, 200), "y": rng.normal(size=200)}
    pd.DataFrame(rows).to_csv(tmp_path / "data.csv", index=False)

    created = create(tmp_path, "data.csv", "y")

    names: dict[str, object] = {}
    code = created.files[1].read_text()
    exec(code, names)
    (column,) = names["MyModel"].inputs  # type: ignore[attr-defined]
    assert column.name == 'a "b"'
    assert column.values == tuple(sorted(values))
    assert max(map(len, code.splitlines())) <= 100


def test_parquet_and_json_lines_files_are_read(tmp_path: Path) -> None:
    write_csv("numbers", tmp_path / "data.csv")
    rows = pd.read_csv(tmp_path / "data.csv")
    rows.to_parquet(tmp_path / "data.parquet")
    rows.to_json(tmp_path / "data.jsonl", orient="records", lines=True)

    for name in ("csv", "parquet", "jsonl"):
        created = create(tmp_path, f"data.{name}", "Price", name=f"of_{name}")
        source = yaml.safe_load(created.files[0].read_text())["attributes"]["workload_settings"]
        assert source["source"] == {"kind": name, "uri": f"data.{name}", "index": None}
        assert created.inputs == ("area", "age")


def test_stored_index_of_a_parquet_file_orders_its_rows(tmp_path: Path) -> None:
    days = pd.date_range("2024-01-01", periods=240, name="day")
    values = np.random.default_rng(0).normal(size=(240, 2))
    rows = pd.DataFrame(values, columns=["x", "y"], index=days).astype({"x": "Float64"})
    rows.iloc[5, 0] = pd.NA
    rows.to_parquet(tmp_path / "data.parquet")

    created = create(tmp_path, "data.parquet", "y")

    source = yaml.safe_load(created.files[0].read_text())["attributes"]["workload_settings"]
    assert source["source"] == {"kind": "parquet", "uri": "data.parquet", "index": "day"}
    assert created.inputs == ("day", "y, 1 earlier", "y, 7 earlier", "x")


def test_image_folders_become_classes_of_one_size(tmp_path: Path) -> None:
    write_images(tmp_path / "photos", "cat", "dog")

    created = create(tmp_path, "photos", None)

    settings = yaml.safe_load(created.files[0].read_text())["attributes"]
    assert settings["workload_settings"]["size"] == [32, 20]
    assert settings["model"]["architecture"] == "my_model:Network"
    assert 'classes = ("cat", "dog")' in created.files[1].read_text()


def test_subfolder_without_images_is_noted(tmp_path: Path) -> None:
    write_images(tmp_path / "photos", "cat", "dog")
    (tmp_path / "photos" / "bird").mkdir()

    assert inspect_images(tmp_path / "photos").class_notes == (
        "The folder 'bird' has no image, so it is not a class.",
    )


def test_large_images_are_resized(tmp_path: Path) -> None:
    write_images(tmp_path / "photos", "cat", "dog", size=(400, 300))

    created = create(tmp_path, "photos", None)

    assert "size: [48, 64]" in created.files[0].read_text()
    assert "All images have 300 x 400 pixels. They are resized" in " ".join(
        created.files[0].read_text().replace("#", "").split()
    )


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    target = write_csv("numbers", tmp_path / "data.csv")
    (tmp_path / "my_model.py").write_text("precious = 1\n")

    with pytest.raises(ContractError, match=r"my_model\.py exists already .* nothing was written"):
        create(tmp_path, "data.csv", target)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv", "my_model.py"]
    assert (tmp_path / "my_model.py").read_text() == "precious = 1\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Model", "letters, digits and underscores in lower case"),
        ("class", "must not be a keyword of Python, got 'class'"),
        ("random", "A Python module has the name 'random'"),
        ("sluice", "A Python module has the name 'sluice'"),
    ],
)
def test_a_name_that_cannot_be_a_module_is_refused(name: str, message: str, tmp_path: Path) -> None:
    target = write_csv("numbers", tmp_path / "data.csv")

    with pytest.raises(SettingsError, match=message):
        create(tmp_path, "data.csv", target, name=name)


def test_a_missing_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    write_csv("numbers", tmp_path / "data.csv")

    with pytest.raises(
        SourceError, match=r"no file or folder .*dta\.csv\. Did you mean 'data\.csv'"
    ):
        create(tmp_path, "dta.csv", "Price")


def test_a_target_is_required_for_a_table_and_refused_for_images(tmp_path: Path) -> None:
    write_csv("numbers", tmp_path / "data.csv")
    write_images(tmp_path / "photos", "cat", "dog", number=1)

    with pytest.raises(SettingsError, match=r"data\.csv to predict is unknown"):
        create(tmp_path, "data.csv", None)
    with pytest.raises(SettingsError, match=r"there is no column 'label'"):
        create(tmp_path, "photos", "label")


def test_insufficient_image_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_images(tmp_path / "single", "cat")
    write_images(tmp_path / "few", "cat", "dog", number=10)
    write_images(tmp_path / "broken", "cat", "dog")
    (tmp_path / "broken" / "cat" / "7.png").write_bytes(
        (tmp_path / "broken" / "cat" / "7.png").read_bytes()[:-40]
    )

    for folder, message in {
        "empty": "must contain images, but contains none",
        "single": "at least two classes, got only 'cat'",
        "few": "at least 158 images .* got 20",
        "broken": r"1 of 180 images .* cannot be decoded, the first: cat/7\.png",
    }.items():
        with pytest.raises(ContractError, match=message):
            create(tmp_path, folder, None)
