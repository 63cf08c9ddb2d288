"""Invalid files in the folder of a fold run, and a full disk."""

import dataclasses
import shutil

import pytest

from sluice.base.errors import ContractError, StorageError
from sluice.models.settings import ModelSettings
from sluice.training.fold_run import train_fold_run
from tests.sluice.training.test_fold_run import bits, events, ignore, interrupted, run_folder
from tests.support.small_disk import fill, small_disk


def test_a_checkpoint_of_another_architecture_is_refused_with_what_differs(specs):
    """CONF-1, REPRO-4: put into the run's folder manually, as a copy of a state folder may do."""
    (gru,), (lstm,) = specs("a"), specs("b", model=ModelSettings(architecture="lstm", hidden=6))
    for spec in (gru, lstm):
        interrupted(spec, 2)
    for checkpoint in run_folder(lstm).glob("epoch-*"):
        checkpoint.unlink()
    for checkpoint in run_folder(gru).glob("epoch-*"):
        shutil.copy(checkpoint, run_folder(lstm))

    said = r"epoch-000002-.* model\.architecture was 'gru', now 'lstm'.*start again"
    with pytest.raises(ContractError, match=said):
        train_fold_run(lstm, ignore)


@pytest.mark.exhaustive
def test_changed_settings_go_on_in_a_folder_of_their_own(specs):
    """Killed, changed, started again: the two trainings never mix, and neither is lost."""
    (spec,), (whole,) = specs("a"), specs("b", learning_rate=2e-2)
    interrupted(spec, 2)
    changed = dataclasses.replace(spec, training=whole.training)
    received = []

    assert bits(train_fold_run(changed, received.append)) == bits(train_fold_run(whole, ignore))
    assert received[0].epochs_done == 0
    assert len(list(spec.runs.iterdir())) == 2
    train_fold_run(spec, received.append)
    assert [e.epochs_done for e in received if e.kind == "started"] == [0, 2]


@pytest.mark.exhaustive
def test_training_restarts_and_reports_it_if_every_checkpoint_is_damaged(specs):
    (whole,), (cut,) = specs("a"), specs("b")
    expected = train_fold_run(whole, ignore)
    interrupted(cut, 3)
    for path in run_folder(cut).glob("epoch-*"):
        path.write_bytes(b"torn")
    received = []
    member = train_fold_run(cut, received.append)

    assert (received[0].epochs_done, received[0].damaged_checkpoints) == (0, 2)
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


@pytest.mark.parametrize("stops_at", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_a_disk_that_fills_up_in_mid_training_costs_no_finished_epoch(specs, tmp_path, stops_at):
    """A real file system without room: checkpoint and log line alike are refused."""
    (whole,), (spec,) = specs("a"), specs("b")
    expected = train_fold_run(whole, ignore)
    with small_disk(tmp_path / "disk", kib=400) as disk:
        cut, ballast = dataclasses.replace(spec, runs=disk / "runs"), []

        def listen(event):
            if event.kind == "epoch" and event.epochs_done == stops_at:
                ballast.append(fill(disk))

        with pytest.raises(StorageError, match=r"No room left to write .*Free disk space"):
            train_fold_run(cut, listen)
        assert not list(run_folder(cut).glob(".*"))
        ballast[0].unlink()
        received = []
        member = train_fold_run(cut, received.append)

    assert received[0].epochs_done == stops_at
    assert received[0].damaged_checkpoints == 0
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


def test_partial_files_of_killed_processes_are_removed_at_the_end(specs):
    (spec,) = specs()
    interrupted(spec, 2)
    for name in ("events.ndjson", "epoch-000003-0123456789abcdef.safetensors", "result.json"):
        (run_folder(spec) / f".{name}.0123").write_bytes(b"half")
    train_fold_run(spec, ignore)

    assert not list(run_folder(spec).glob(".*"))
