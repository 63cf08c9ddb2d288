"""The garbage collector is left out of imports and of the exit, and nowhere else."""

import gc
import subprocess
import sys

import pytest

from sluice.base.garbage_collection import collection_paused

EXIT = """
import atexit, gc
initially = gc.get_freeze_count()  # Python 3.12 freezes objects of its own
atexit.register(lambda: print("frozen", gc.get_freeze_count() > initially))
from sluice.base.garbage_collection import skip_collection_at_exit
skip_collection_at_exit()
atexit.register(lambda: print("before", gc.get_freeze_count() - initially))
file = open({path!r}, "w")
file.write("kept")


class Log:
    def __init__(self):
        self.cycle = self
        self.text = open({path!r} + ".text", "w")
        self.bytes = open({path!r} + ".bytes", "wb")
        self.text.write("kept")
        self.bytes.write(b"kept")


Log()
"""


def test_imports_run_without_the_collector_also_when_they_fail():
    assert gc.isenabled()
    enabled = []

    def fail():
        with collection_paused():
            enabled.append(gc.isenabled())
            raise ImportError

    with pytest.raises(ImportError):
        fail()

    assert enabled == [False]
    assert gc.isenabled()


def test_a_collector_that_was_disabled_stays_disabled():
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_at_exit_all_objects_are_frozen_and_open_files_are_flushed(tmp_path):
    """Handlers that were registered later run first, and find a collector that works."""
    script = EXIT.format(path=str(tmp_path / "written"))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == ["before 0", "frozen True"]
    for name in ("written", "written.text", "written.bytes"):
        assert (tmp_path / name).read_text() == "kept", name
