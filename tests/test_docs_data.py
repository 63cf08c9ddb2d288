"""The examples of docs/data.md run as printed, and the page mentions every row source."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "data.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_the_examples_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}

    for block in BLOCKS:
        exec(block, names)

    assert len(BLOCKS) == 11
    assert names["index"].columns.tolist() == ["id"]


def test_every_source_is_on_the_page():
    import sluice.data.rows as rows

    assert [name for name in rows._MODULES if name not in PAGE] == [
        "SubsetRows",
        "verify_images",
    ]
