"""The schedule file of a checkpoint round-trips, and damage is reported."""

import json

import pytest

from sluice.base.errors import IntegrityError
from sluice.tuning.records import ScheduleStep
from sluice.tuning.trial_schedule import SCHEDULE_FILE, read_schedule, with_values, write_schedule
from tests.support.toy_search import LR

FIRST, OTHER = {LR: 0.1, "training.batch_rows": 64}, {LR: 1 / 3, "training.batch_rows": 64}
SCHEDULE = (ScheduleStep(from_epoch=0, params=FIRST), ScheduleStep(from_epoch=4, params=OTHER))


def test_schedule_round_trips(tmp_path):
    write_schedule(tmp_path, SCHEDULE, epoch=6)

    assert read_schedule(tmp_path, where="here") == (SCHEDULE, 6)
    assert [path.name for path in tmp_path.iterdir()] == [SCHEDULE_FILE]


def test_changed_values_add_a_step():
    schedule = with_values((), FIRST, epoch=0)
    assert schedule == SCHEDULE[:1]
    assert with_values(schedule, dict(FIRST), epoch=2) == schedule
    assert with_values(schedule, OTHER, epoch=4) == SCHEDULE


def make_damaged_contents():
    content = json.dumps({"epoch": 6, "schedule": [], "digest": "0" * 64}).encode()
    return {"empty": b"", "torn": content[:20], "other": content, "list": b"[1]", "bytes": b"\xff"}


@pytest.mark.parametrize("name", make_damaged_contents())
def test_damage_is_reported_with_the_file_and_a_fix(name, tmp_path):
    (tmp_path / SCHEDULE_FILE).write_bytes(make_damaged_contents()[name])
    with pytest.raises(IntegrityError, match=r"checkpoint_1/schedule\.json") as e:
        read_schedule(tmp_path, where="s3://bucket/study/checkpoint_1")
    assert "remove the study's folder" in e.value.fix


def test_edited_value_is_reported_as_damage(tmp_path):
    write_schedule(tmp_path, SCHEDULE, epoch=6)
    path = tmp_path / SCHEDULE_FILE
    path.write_text(path.read_text().replace("0.1", "0.2"))
    with pytest.raises(IntegrityError, match="does not match its own digest"):
        read_schedule(tmp_path, where="here")


def test_missing_schedule_file_is_reported_as_damage(tmp_path):
    with pytest.raises(IntegrityError, match="is missing"):
        read_schedule(tmp_path, where="here")
