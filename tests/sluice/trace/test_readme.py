"""The README's example of a silent fault, run as it stands there (TRACE-1, TRACE-16)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[3] / "README.md"


@pytest.mark.slow
def test_the_readmes_training_is_told_its_cause(tmp_path):
    section = README.read_text().partition("## Find what a training does wrong")[2]
    program = section.partition("```python\n")[2].partition("```")[0]
    shown = section.partition("```console\n")[2].partition("```")[0]
    (tmp_path / "train.py").write_text(program)
    command = [sys.executable, "-m", "sluice", "trace", "--out", "traces", "--"]
    done = subprocess.run(
        [*command, sys.executable, "train.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(README.parent)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout.split()[0]) == (0, "loss")
    told = " ".join(done.stderr.split())
    for first, after in (("ended", "seen:"), ("seen:", "why:"), ("why:", "do:"), ("do:", "$")):
        wanted = " ".join(shown.partition(first)[2].partition(after)[0].split())
        assert len(wanted) > 20
        assert wanted in told
