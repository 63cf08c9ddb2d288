"""The examples of docs/how-to/serve-other-inputs.md run, and it mentions every codec."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "how-to" / "serve-other-inputs.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}

    for block in BLOCKS:
        exec(block, names)

    assert len(BLOCKS) == 7
    with pytest.raises(names["PayloadError"], match=r"points\.1 must be a longitude"):
        names["PointsCodec"]().decode({"points": [(0.0, 0.0), (0.0, 100.0)]})


def test_every_codec_is_on_the_page():
    import sluice.workloads.codecs as codecs

    assert [name for name in codecs._MODULES if name not in PAGE] == []
