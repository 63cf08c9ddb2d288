"""The journal of a study keeps complete lines and rejects those of another study."""

import json
import resource
from contextlib import contextmanager

import pytest

from sluice.base.errors import ContractError, IntegrityError, StorageError
from sluice.tuning.resumable.journal import StudyJournal

SUBJECT = {"scheduler": {"class": "a:B", "max_t": 9}, "seed": 0}


def test_partial_last_line_is_removed(tmp_path):
    path = tmp_path / "study" / "journal.jsonl"
    first = StudyJournal(path, SUBJECT)
    first.append({"trial": 0})
    first.close()
    with path.open("ab") as file:
        file.write(b'{"trial": 1, "kin')
    again = StudyJournal(path, SUBJECT)
    again.append({"trial": 1})
    again.close()
    last = StudyJournal(path, SUBJECT)

    assert list(again.iter_events()) == [{"trial": 0}]
    assert list(last.iter_events()) == [{"trial": 0}, {"trial": 1}]
    last.close()


@pytest.mark.parametrize(
    ("subject", "match"),
    [
        ({**SUBJECT, "seed": 1}, "seed was 0 and is 1"),
        ({**SUBJECT, "scheduler": {"class": "a:B", "max_t": 8}}, "scheduler was .*9.* and is .*8"),
    ],
)
def test_journal_of_another_study_is_rejected_with_the_difference(tmp_path, subject, match):
    path = tmp_path / "journal.jsonl"
    StudyJournal(path, SUBJECT).close()

    with pytest.raises(ContractError, match=match):
        StudyJournal(path, subject)


def test_journal_in_another_format_version_is_rejected(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"version":99}\n')

    with pytest.raises(ContractError, match=r"must have version 2, .* has version 99"):
        StudyJournal(path, SUBJECT)


def test_damaged_line_is_reported(tmp_path):
    path = tmp_path / "journal.jsonl"
    StudyJournal(path, SUBJECT).close()
    with path.open("ab") as file:
        file.write(b'{"trial": 0\n{"trial": 1}\n')

    journal = StudyJournal(path, SUBJECT)
    with pytest.raises(IntegrityError, match="Line 2"):
        list(journal.iter_events())
    journal.close()


@contextmanager
def limited_file_size(num_bytes):
    """Limit the file size of this process to simulate a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def append_many(journal):
    for number in range(100):
        journal.append({"trial": number})


def test_full_disk_is_reported_and_leaves_no_partial_line(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = StudyJournal(path, SUBJECT)
    with limited_file_size(300), pytest.raises(StorageError, match="No room left to write"):
        append_many(journal)
    written = path.read_bytes()
    journal.append({"trial": "after"})
    journal.close()

    assert written.endswith(b"\n")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[1:-1] == [{"trial": number} for number in range(len(lines) - 2)]
    assert lines[-1] == {"trial": "after"}
    assert len(lines) > 5


def test_prefix_covered_by_a_snapshot_is_skipped_and_has_a_digest(tmp_path):
    path = tmp_path / "journal.jsonl"
    first = StudyJournal(path, SUBJECT)
    first.append({"trial": 0})
    size, digest = first.size, first.digest.hexdigest()
    first.append({"trial": 1})
    first.close()
    again = StudyJournal(path, SUBJECT)

    assert list(again.iter_events(size)) == [{"trial": 1}]
    assert again.digest_of(size) == digest
    assert again.digest_of(again.size + 1) == ""
    again.close()


def test_journal_in_use_by_another_process_is_rejected(tmp_path):
    path = tmp_path / "journal.jsonl"
    first = StudyJournal(path, SUBJECT)

    with pytest.raises(ContractError, match="Another process"):
        StudyJournal(path, SUBJECT)
    first.close()
