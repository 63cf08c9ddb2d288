"""Folders that a worker does not share are detected by probe files."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sluice.base.errors import StorageError
from sluice.cluster.shared_folders import first_missing_folder, write_probe_files

ROOT = Path(__file__).parents[3]


def test_the_first_folder_with_a_missing_or_different_probe_file_is_reported(tmp_path):
    folders = [tmp_path / "runs", tmp_path / "artifacts"]
    with write_probe_files(folders) as probe_files:
        assert [path.parent for path, _ in probe_files] == folders
        assert first_missing_folder(probe_files) is None
        probe_files[1][0].write_bytes(b"of another machine")
        assert first_missing_folder(probe_files) == folders[1]
    assert first_missing_folder(probe_files) == folders[0]
    assert not list(tmp_path.rglob(".probe-*"))


def test_probe_files_of_a_killed_process_are_removed(tmp_path):
    script = textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from sluice.cluster.shared_folders import write_probe_files
        with write_probe_files([Path(sys.argv[1])]):
            os.kill(os.getpid(), 9)
    """)
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=False)
    (stale,) = tmp_path.glob(".probe-*")

    with write_probe_files([tmp_path]) as probe_files:
        assert list(tmp_path.glob(".probe-*")) == [probe_files[0][0]] != [stale]


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(StorageError, match="file/runs"),
        write_probe_files([tmp_path / "file" / "runs"]),
    ):
        pass
