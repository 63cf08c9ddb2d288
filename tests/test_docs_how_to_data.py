"""The examples of the pages on texts, images and language models run as printed."""

import re
from pathlib import Path

import pytest

from sluice.config.pipeline import read_pipeline

FOLDER = Path(__file__).parent.parent / "docs" / "how-to"
PAGES = ("classify-texts", "classify-images", "train-a-language-model")


def blocks(page: str, kind: str) -> list[str]:
    """Return the blocks of one language that are not marked as not run."""
    text = (FOLDER / f"{page}.md").read_text()
    return re.findall(rf"(?<!-->\n)```{kind}\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "count"),
    [("classify-texts", 4), ("classify-images", 4), ("train-a-language-model", 4)],
)
def test_the_examples_run_one_after_the_other(page, count, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": page}

    for block in blocks(page, "python"):
        exec(block, names)

    assert len(blocks(page, "python")) == count


@pytest.mark.parametrize("page", PAGES)
def test_the_settings_are_valid_for_a_pipeline(page, tmp_path):
    [text] = blocks(page, "yaml")
    (tmp_path / "my.yaml").write_text(text)

    settings = read_pipeline(tmp_path / "my.yaml")

    assert ":" in settings.workload
