"""Available memory with and without a container, and memory of a process (POC-11)."""

import os

import numpy as np
import psutil

from sluice.base.memory import available_bytes, resident_bytes

GIB = 2**30


def write_control_group(folder, *, limit, used, cached=0):
    """Write the memory files of a control group (cgroup v2) and return its folder."""
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon {used - cached}\ninactive_file {cached}\n")
    return folder


def test_available_memory_without_a_container_is_that_of_the_system(tmp_path):
    available = available_bytes(tmp_path / "no such folder")

    assert abs(available - psutil.virtual_memory().available) < GIB


def test_container_limit_applies_and_cached_files_count_as_available(tmp_path):
    group = write_control_group(tmp_path, limit=2**28, used=2**27, cached=2**26)

    assert available_bytes(group) == 2**28 - 2**27 + 2**26


def test_container_without_limit_does_not_limit_available_memory(tmp_path):
    group = write_control_group(tmp_path, limit="max", used=2**27)

    assert available_bytes(group) > 2**27


def test_full_container_has_0_bytes_available(tmp_path):
    assert available_bytes(write_control_group(tmp_path, limit=100, used=200)) == 0


def test_resident_memory_includes_written_arrays():
    before = resident_bytes(os.getpid())
    array = np.ones(2**25)  # 256 MiB

    assert resident_bytes(os.getpid()) - before > 0.8 * array.nbytes


def test_resident_memory_of_a_missing_process_is_0():
    assert resident_bytes(2**22 + 1) == 0
