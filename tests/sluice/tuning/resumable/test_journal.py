"""The journal of a study keeps whole lines, and refuses what is not its own."""

import pytest

from sluice.errors import ContractError, IntegrityError
from sluice.tuning.resumable.journal import StudyJournal

SUBJECT = {"scheduler": {"class": "a:B", "max_t": 9}, "seed": 0}


def test_a_line_that_a_kill_tore_is_cut_off(tmp_path):
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

    assert again.restored == [{"trial": 0}]
    assert last.restored == [{"trial": 0}, {"trial": 1}]
    last.close()


@pytest.mark.parametrize(
    ("subject", "match"),
    [
        ({**SUBJECT, "seed": 1}, "seed was 0 and is 1"),
        ({**SUBJECT, "scheduler": {"class": "a:B", "max_t": 8}}, "scheduler was .*9.* and is .*8"),
    ],
)
def test_another_study_is_refused_and_the_difference_named(tmp_path, subject, match):
    path = tmp_path / "journal.jsonl"
    StudyJournal(path, SUBJECT).close()

    with pytest.raises(ContractError, match=match):
        StudyJournal(path, subject)


def test_another_version_of_the_format_is_refused(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"version":99}\n')

    with pytest.raises(ContractError, match=r"version 1 is required, .* has version 99"):
        StudyJournal(path, SUBJECT)


def test_a_damaged_line_is_refused(tmp_path):
    path = tmp_path / "journal.jsonl"
    StudyJournal(path, SUBJECT).close()
    with path.open("ab") as file:
        file.write(b'{"trial": 0\n{"trial": 1}\n')

    with pytest.raises(IntegrityError, match="Line 2"):
        StudyJournal(path, SUBJECT)


def test_a_second_process_is_refused(tmp_path):
    path = tmp_path / "journal.jsonl"
    first = StudyJournal(path, SUBJECT)

    with pytest.raises(ContractError, match="Another process"):
        StudyJournal(path, SUBJECT)
    first.close()
