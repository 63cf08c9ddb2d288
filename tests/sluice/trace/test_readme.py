"""The README's example of a silent fault, run as it stands there (TRACE-1, TRACE-16)."""

import os
import re
import subprocess
import sys
from itertools import pairwise
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
    parts = ("ended", "seen:", "why:", "do:", "not so if:", "time of a step:")
    for first, after in pairwise(parts):
        wanted = " ".join(shown.partition(first)[2].partition(after)[0].split())
        assert len(wanted) > 20
        assert wanted in told
    # What follows are times and memory of one machine: they have the same form.
    last = (
        r"time of a step: [\d.]+ ms \([a-z]+ \d+%[^)]*\) "
        r"(some steps are much slower: half of them take under [\d.]+ ms )?"
        r"memory at most: \d+ MiB [a-z]+ first: "
    )
    for said in (told, " ".join(shown.split())):
        assert re.search(last, said)
        folder = r"/\S+/traces/\d{8}-\d{6}-pid\d+-[0-9a-f]{6}"
        assert re.search(rf"(?<= ){folder}: rank 0, 300 steps", f" {said}")
