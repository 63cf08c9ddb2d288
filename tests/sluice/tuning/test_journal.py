"""The journal: whole lines or none, one search a folder, one process at a time."""

import errno
import os

import pytest

from sluice.errors import ContractError, IntegrityError, StorageError
from sluice.tuning.journal import open_journal
from sluice.tuning.records import EpochLosses, Outcome

SUBJECT = {"seed": 1, "base": {"model": {"hidden": 8}}}


def outcome(trial=0):
    losses = EpochLosses(epoch=1, train_loss=0.1 + 0.2, val_loss=float("nan"), kept_loss=1 / 3)
    return Outcome(trial=trial, until=1, epochs=(losses,), status="reached", seconds=0.1)


def written(folder, count=3):
    with open_journal(folder, subject=SUBJECT) as journal:
        for trial in range(count):
            journal.append(outcome(trial))
    return journal.path


def restored(folder):
    with open_journal(folder, subject=SUBJECT) as journal:
        return journal.restored


def test_outcomes_come_back_to_the_last_bit(tmp_path):
    written(tmp_path)

    assert repr(restored(tmp_path)) == repr(tuple(outcome(t) for t in range(3)))


def test_a_line_torn_anywhere_is_cut_off_and_the_next_is_whole(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for size in range(start, len(whole), 17):
        path.write_bytes(whole[:size])
        with open_journal(tmp_path, subject=SUBJECT) as journal:
            assert len(journal.restored) == 2
            journal.append(outcome(2))
        assert path.read_bytes() == whole


def test_a_damaged_line_is_refused_with_its_number(tmp_path):
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"until":1', b'"until":2')
    path.write_bytes(b"".join(lines))

    with pytest.raises(IntegrityError, match="Line 3"):
        restored(tmp_path)


def test_another_search_in_the_folder_is_refused_with_what_differs(tmp_path):
    written(tmp_path)
    other = {"seed": 1, "base": {"model": {"hidden": 16}}}

    with (
        pytest.raises(ContractError, match=r"base\.model\.hidden was 8, now 16\."),
        open_journal(tmp_path, subject=other),
    ):
        pass


def test_a_second_process_is_refused(tmp_path):
    with (
        open_journal(tmp_path, subject=SUBJECT),
        pytest.raises(ContractError, match="under way in another process"),
        open_journal(tmp_path, subject=SUBJECT),
    ):
        pass


def test_a_full_disk_is_said_and_loses_nothing(tmp_path, monkeypatch):
    written(tmp_path)

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_journal(tmp_path, subject=SUBJECT) as journal:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No room left"):
            journal.append(outcome(3))
    monkeypatch.undo()
    assert len(restored(tmp_path)) >= 3
