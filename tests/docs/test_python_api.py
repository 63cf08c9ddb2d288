"""The pages on the Python API name every public name and every extra."""

import re
from pathlib import Path

import sluice
from sluice.base.extras import EXTRAS

DOCS = Path(__file__).parents[2] / "docs"


def test_reference_lists_every_public_name() -> None:
    page = (DOCS / "reference" / "api" / "sluice.md").read_text()

    assert [name for name in sluice.__all__ if f"`{name}`" not in page] == []


def test_notebook_page_lists_every_extra() -> None:
    page = (DOCS / "how-to" / "use-in-a-notebook.md").read_text()

    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(EXTRAS)
