"""What a unit finds in its folder and cannot use, and a disk that is full."""

import dataclasses
import shutil

import pytest

from sluice.base.errors import ContractError, StorageError
from sluice.models.settings import ModelSettings
from sluice.training.unit import train_unit
from tests.sluice.training.test_unit import bits, events, ignore, interrupted, unit_folder
from tests.support.small_disk import fill, small_disk


def test_a_checkpoint_of_another_architecture_is_refused_with_what_differs(specs):
    """CONF-1, REPRO-4: put into the unit's folder by hand, as a copy of a state folder may do."""
    (gru,), (lstm,) = specs("a"), specs("b", model=ModelSettings(architecture="lstm", hidden=6))
    for spec in (gru, lstm):
        interrupted(spec, 2)
    for checkpoint in unit_folder(lstm).glob("epoch-*"):
        checkpoint.unlink()
    for checkpoint in unit_folder(gru).glob("epoch-*"):
        shutil.copy(checkpoint, unit_folder(lstm))

    said = r"epoch-000002-.* model\.architecture was 'gru', now 'lstm'.*afresh"
    with pytest.raises(ContractError, match=said):
        train_unit(lstm, ignore)


@pytest.mark.exhaustive
def test_changed_settings_go_on_in_a_folder_of_their_own(specs):
    """Killed, changed, started again: the two trainings never mix, and neither is lost."""
    (spec,), (whole,) = specs("a"), specs("b", learning_rate=2e-2)
    interrupted(spec, 2)
    changed = dataclasses.replace(spec, training=whole.training)
    heard = []

    assert bits(train_unit(changed, heard.append)) == bits(train_unit(whole, ignore))
    assert heard[0].epochs_done == 0
    assert len(list(spec.runs.iterdir())) == 2
    train_unit(spec, heard.append)
    assert [e.epochs_done for e in heard if e.kind == "started"] == [0, 2]


@pytest.mark.exhaustive
def test_when_every_checkpoint_is_damaged_it_begins_again_and_says_so(specs):
    (whole,), (cut,) = specs("a"), specs("b")
    expected = train_unit(whole, ignore)
    interrupted(cut, 3)
    for path in unit_folder(cut).glob("epoch-*"):
        path.write_bytes(b"torn")
    heard = []
    member = train_unit(cut, heard.append)

    assert (heard[0].epochs_done, heard[0].damaged_checkpoints) == (0, 2)
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


@pytest.mark.parametrize("stops_at", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_a_disk_that_fills_up_in_mid_training_costs_no_finished_epoch(specs, tmp_path, stops_at):
    """A real file system without room: checkpoint and log line alike are refused."""
    (whole,), (spec,) = specs("a"), specs("b")
    expected = train_unit(whole, ignore)
    with small_disk(tmp_path / "disk", kib=400) as disk:
        cut, ballast = dataclasses.replace(spec, runs=disk / "runs"), []

        def listen(event):
            if event.kind == "epoch" and event.epochs_done == stops_at:
                ballast.append(fill(disk))

        with pytest.raises(StorageError, match=r"No room left to write .*Free disk space"):
            train_unit(cut, listen)
        assert not list(unit_folder(cut).glob(".*"))
        ballast[0].unlink()
        heard = []
        member = train_unit(cut, heard.append)

    assert heard[0].epochs_done == stops_at
    assert heard[0].damaged_checkpoints == 0
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


def test_what_killed_writes_left_behind_is_gone_at_the_end(specs):
    (spec,) = specs()
    interrupted(spec, 2)
    for name in ("events.ndjson", "epoch-000003-0123456789abcdef.safetensors", "result.json"):
        (unit_folder(spec) / f".{name}.0123").write_bytes(b"half")
    train_unit(spec, ignore)

    assert not list(unit_folder(spec).glob(".*"))
