"""POC-11: available memory with and without a container, and memory of a process."""

import os

import numpy as np
import psutil

from sluice.base.memory import available_bytes, resident_bytes

GIB = 2**30


def control_group(folder, *, limit, used, cached=0):
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon {used - cached}\ninactive_file {cached}\n")
    return folder


def test_without_a_container_it_is_the_systems_value(tmp_path):
    seen = available_bytes(tmp_path / "no such folder")

    assert abs(seen - psutil.virtual_memory().available) < GIB


def test_a_containers_limit_counts_and_its_cached_files_do_not(tmp_path):
    group = control_group(tmp_path, limit=2**28, used=2**27, cached=2**26)

    assert available_bytes(group) == 2**28 - 2**27 + 2**26


def test_a_container_without_limit_sets_none(tmp_path):
    group = control_group(tmp_path, limit="max", used=2**27)

    assert available_bytes(group) > 2**27


def test_a_full_container_has_no_memory_left(tmp_path):
    assert available_bytes(control_group(tmp_path, limit=100, used=200)) == 0


def test_written_memory_is_counted():
    before = resident_bytes(os.getpid())
    held = np.ones(2**25)  # 256 MiB

    assert resident_bytes(os.getpid()) - before > 0.8 * held.nbytes


def test_an_ended_process_uses_no_memory():
    assert resident_bytes(2**22 + 1) == 0
