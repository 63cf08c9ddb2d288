"""Pausing the garbage collector during imports and skipping it at exit."""

import gc
import subprocess
import sys

import pytest

from sluice.base.garbage_collection import collection_paused

EXIT = """
import atexit, gc
initially = gc.get_freeze_count()  # Python 3.12 itself freezes objects
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


def test_collector_is_paused_in_the_block_and_enabled_after_an_error():
    assert gc.isenabled()
    states = []

    def import_and_fail():
        with collection_paused():
            states.append(gc.isenabled())
            raise ImportError

    with pytest.raises(ImportError):
        import_and_fail()

    assert states == [False]
    assert gc.isenabled()


def test_collector_disabled_before_the_block_stays_disabled():
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_at_exit_all_objects_are_frozen_and_open_files_are_flushed(tmp_path):
    """Exit handlers registered later run first, before objects are frozen."""
    script = EXIT.format(path=str(tmp_path / "written"))
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert process.stdout.splitlines() == ["before 0", "frozen True"]
    for name in ("written", "written.text", "written.bytes"):
        assert (tmp_path / name).read_text() == "kept", name
