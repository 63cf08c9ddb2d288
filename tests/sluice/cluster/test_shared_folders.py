"""A folder that a worker does not share is found out."""

import pytest

from sluice.cluster.shared_folders import first_unseen, marked
from sluice.errors import StorageError


def test_marks_are_seen_where_the_folders_are_and_nowhere_else(tmp_path):
    folders = [tmp_path / "runs", tmp_path / "artifacts"]
    with marked(folders) as marks:
        assert [path.parent for path, _ in marks] == folders
        assert first_unseen(marks) is None
        marks[1][0].write_bytes(b"of another machine")
        assert first_unseen(marks) == folders[1]
    assert first_unseen(marks) == folders[0]
    assert not list(tmp_path.rglob(".mark-*"))


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file/runs"), marked([tmp_path / "file" / "runs"]):
        pass
