"""A folder that a worker does not share is found out."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sluice.base.errors import StorageError
from sluice.cluster.shared_folders import first_missing_folder, write_probe_files

ROOT = Path(__file__).parents[3]


def test_marks_are_seen_where_the_folders_are_and_nowhere_else(tmp_path):
    folders = [tmp_path / "runs", tmp_path / "artifacts"]
    with write_probe_files(folders) as marks:
        assert [path.parent for path, _ in marks] == folders
        assert first_missing_folder(marks) is None
        marks[1][0].write_bytes(b"of another machine")
        assert first_missing_folder(marks) == folders[1]
    assert first_missing_folder(marks) == folders[0]
    assert not list(tmp_path.rglob(".mark-*"))


def test_marks_of_a_killed_process_are_removed_by_the_next(tmp_path):
    killed = textwrap.dedent("""
        import os, sys
        from pathlib import Path
        from sluice.cluster.shared_folders import write_probe_files
        with write_probe_files([Path(sys.argv[1])]):
            os.kill(os.getpid(), 9)
    """)
    subprocess.run([sys.executable, "-c", killed, str(tmp_path)], cwd=ROOT, check=False)
    (left,) = tmp_path.glob(".mark-*")

    with write_probe_files([tmp_path]) as marks:
        assert list(tmp_path.glob(".mark-*")) == [marks[0][0]] != [left]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(StorageError, match="file/runs"),
        write_probe_files([tmp_path / "file" / "runs"]),
    ):
        pass
