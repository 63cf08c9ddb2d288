"""The examples of the pages on `sluice init` and on Dagster projects run as printed."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from sluice.cli.app import build_app, run_command
from sluice.config.pipeline import PipelineSettings
from sluice.config.resolved import resolve
from sluice.pipelines.scaffolder import PipelineTemplate

FOLDER = Path(__file__).parent.parent / "docs" / "how-to"
DATA, PROJECT = (
    (FOLDER / f"{name}.md").read_text()
    for name in ("start-from-your-data", "use-in-a-dagster-project")
)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.mark.slow
def test_examples_of_start_from_your_data_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    python = blocks(DATA, "python")
    for block in python:
        exec(block, names)
    init, run = blocks(DATA, "bash")[0].splitlines()

    assert run_command(shlex.split(init)[1:]) == 0

    assert len(python) == 4
    assert f"Next: {run}\n" in capsys.readouterr().out
    assert "init" in [command.name for command in build_app().registered_commands]


def test_examples_of_the_dagster_page_are_valid():
    (block,) = blocks(PROJECT, "yaml")
    attributes = yaml.safe_load(block)["attributes"]
    source = attributes["workload_settings"]["source"]
    settings = {**attributes, "workload": "tests.support.shop:Shop"}
    workload = resolve(PipelineSettings.parse(settings, where="page")).workload

    assert list(workload.settings.source.key) == source["key"]
    exec(blocks(PROJECT, "python")[0], {})
    options = set(re.findall(r"--(\w+)", "".join(blocks(PROJECT, "bash"))))
    assert options == set(PipelineTemplate.model_fields)
