"""The code of the pages on texts, images and language models runs as it is written."""

import re
from pathlib import Path

import pytest
import yaml

from sluice.config.pipeline import PipelineSettings

FOLDER = Path(__file__).parent.parent / "docs" / "how-to"
PAGES = ("classify-texts", "classify-images", "train-a-language-model")


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (FOLDER / f"{page}.md").read_text(), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(("page", "count"), [(page, 3) for page in PAGES])
def test_the_examples_run_one_after_the_other(page, count, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": page}

    for block in blocks(page, "python"):
        exec(block, names)

    assert len(blocks(page, "python")) == count


@pytest.mark.parametrize("page", PAGES)
def test_the_settings_are_valid(page):
    [text] = blocks(page, "yaml")

    settings = PipelineSettings.parse(yaml.safe_load(text), where=page)

    assert ":" in settings.workload
