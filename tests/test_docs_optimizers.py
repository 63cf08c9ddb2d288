"""TRAIN-1: the examples of docs/optimizers.md are valid, and its table is complete."""

import re
from pathlib import Path

import pytest
import yaml

from sluice.config.pipeline import PipelineSettings
from sluice.training.optimizer_settings import CHANGEABLE_ARGUMENTS
from sluice.training.optimizers import OPTIMIZERS, require_optimizer

PAGE = (Path(__file__).parent.parent / "docs" / "optimizers.md").read_text()
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_is_accepted_and_its_optimizer_takes_steps(example):
    required = {"name": "docs", "workload": "tests.support.echo:Echo"}
    pipeline = PipelineSettings.parse(required | example, where="docs/optimizers.md")
    require_optimizer(pipeline.training)

    for group, settings in example.items():
        dumped = getattr(pipeline, group).model_dump(mode="json", exclude_none=True)
        assert {name: dumped[name] for name in settings} == settings


def test_table_lists_every_optimizer_with_class_and_changeable_arguments():
    rows = dict(re.findall(r"^\| `(\w+)`.*?\| `torch\.optim\.(\w+)`", PAGE, re.MULTILINE))
    changing = {
        name: set(re.findall(r"`(\w+)`", rest))
        for name, rest in re.findall(r"^\| `(\w+)`[^|]*\|[^|]*\|(.*)\|$", PAGE, re.MULTILINE)
    }

    assert len(EXAMPLES) == 4
    assert rows == {name: cls.__base__.__name__ for name, cls in OPTIMIZERS.items()}
    assert changing == {name: set(found) for name, found in CHANGEABLE_ARGUMENTS.items()}
