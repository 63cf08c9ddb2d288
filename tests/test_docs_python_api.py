"""The code of docs/how-to/use-in-a-notebook.md runs, and the reference names the public names."""

import re
import tomllib
from pathlib import Path

import pytest

import sluice
from sluice.base.extras import EXTRAS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "how-to" / "use-in-a-notebook.md").read_text()
REFERENCE = (ROOT / "docs" / "reference" / "python-api.md").read_text()


@pytest.mark.slow
def test_the_examples_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}

    for block in blocks:
        exec(block, names)

    assert len(blocks) == 6
    assert names["report"].passed
    assert names["comparison"].outcome == "PROMOTE"
    assert "missing zero_grad" in {finding.fault for finding in names["traced"].findings}


def test_the_reference_has_every_public_name():
    assert [name for name in sluice.__all__ if f"`{name}`" not in REFERENCE] == []


def test_the_page_has_every_extra():
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))

    assert listed == set(EXTRAS)


def test_extras_of_a_message_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    assert set(re.findall(r"'\.\[(\w+)\]'", PAGE)) <= set(extras)
