"""The guide on training faults shows the report of its program (TRACE-1, TRACE-16)."""

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "how-to" / "find-training-faults.md"


@pytest.mark.slow
def test_the_report_in_the_guide_matches_its_program(tmp_path):
    section = GUIDE.read_text()
    program = section.partition("```python\n")[2].partition("```")[0]
    shown = section.partition("```console\n")[2].partition("```")[0]
    (tmp_path / "train.py").write_text(program)
    command = [sys.executable, "-m", "sluice", "trace", "--out", "traces", "--"]
    done = subprocess.run(
        [*command, sys.executable, "train.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout.split()[0]) == (0, "loss")
    stderr = " ".join(done.stderr.split())
    parts = ("ended", "seen:", "why:", "do:", "false alarm if:", "step time:")
    for first, after in pairwise(parts):
        expected = " ".join(shown.partition(first)[2].partition(after)[0].split())
        assert len(expected) > 20
        assert expected in stderr
    # Times and memory depend on the machine; only their format is compared.
    last = (
        r"step time: [\d.]+ ms \([a-z]+ \d+%[^)]*\) "
        r"(some steps are much slower: half of the steps take under [\d.]+ ms )?"
        r"peak memory: \d+ MiB bottleneck: [a-z]+\. "
    )
    for text in (stderr, " ".join(shown.split())):
        assert re.search(last, text)
        folder = r"/\S+/traces/\d{8}-\d{6}-pid\d+-[0-9a-f]{6}"
        assert re.search(rf"(?<= ){folder}: rank 0, 300 steps", f" {text}")
