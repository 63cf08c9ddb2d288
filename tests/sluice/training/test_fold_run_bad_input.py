"""Invalid files in the folder of a fold run, and a full disk."""

import dataclasses
import shutil

import pytest

from sluice.base.errors import ContractError, StorageError
from sluice.models.settings import ModelSettings
from sluice.training.fold_run import train_fold_run
from tests.sluice.training.test_fold_run import bits, events, ignore, interrupt_after, run_folder
from tests.support.small_disk import fill, small_disk


def test_checkpoint_of_another_architecture_is_rejected_with_the_difference(specs):
    """CONF-1, REPRO-4: a user may copy a checkpoint into the folder of another run."""
    (gru,), (lstm,) = specs("a"), specs("b", model=ModelSettings(architecture="lstm", hidden=6))
    for spec in (gru, lstm):
        interrupt_after(spec, 2)
    for checkpoint in run_folder(lstm).glob("epoch-*"):
        checkpoint.unlink()
    for checkpoint in run_folder(gru).glob("epoch-*"):
        shutil.copy(checkpoint, run_folder(lstm))

    message = r"epoch-000002-.* model\.architecture was 'gru', now 'lstm'.*start again"
    with pytest.raises(ContractError, match=message):
        train_fold_run(lstm, ignore)


@pytest.mark.exhaustive
def test_changed_settings_train_in_a_separate_folder(specs):
    """After an interruption and a change, both trainings continue separately."""
    (spec,), (whole,) = specs("a"), specs("b", learning_rate=2e-2)
    interrupt_after(spec, 2)
    changed = dataclasses.replace(spec, training=whole.training)
    received = []

    assert bits(train_fold_run(changed, received.append)) == bits(train_fold_run(whole, ignore))
    assert received[0].epochs_done == 0
    assert len(list(spec.runs.iterdir())) == 2
    train_fold_run(spec, received.append)
    assert [e.epochs_done for e in received if e.kind == "started"] == [0, 2]


@pytest.mark.exhaustive
def test_training_restarts_and_reports_damage_if_every_checkpoint_is_damaged(specs):
    (whole,), (cut,) = specs("a"), specs("b")
    expected = train_fold_run(whole, ignore)
    interrupt_after(cut, 3)
    for path in run_folder(cut).glob("epoch-*"):
        path.write_bytes(b"torn")
    received = []
    member = train_fold_run(cut, received.append)

    assert (received[0].epochs_done, received[0].num_damaged_checkpoints) == (0, 2)
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


@pytest.mark.parametrize("full_after_epoch", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_full_disk_during_training_loses_no_finished_epoch(specs, tmp_path, full_after_epoch):
    """On a full file system both the checkpoint and the log line fail."""
    (whole,), (spec,) = specs("a"), specs("b")
    expected = train_fold_run(whole, ignore)
    with small_disk(tmp_path / "disk", kib=400) as disk:
        cut, ballast = dataclasses.replace(spec, runs=disk / "runs"), []

        def listen(event):
            if event.kind == "epoch" and event.epochs_done == full_after_epoch:
                ballast.append(fill(disk))

        with pytest.raises(StorageError, match=r"No room left to write .*Free disk space"):
            train_fold_run(cut, listen)
        assert not list(run_folder(cut).glob(".*"))
        ballast[0].unlink()
        received = []
        member = train_fold_run(cut, received.append)

    assert received[0].epochs_done == full_after_epoch
    assert received[0].num_damaged_checkpoints == 0
    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)


def test_partial_files_of_killed_processes_are_removed_at_the_end(specs):
    (spec,) = specs()
    interrupt_after(spec, 2)
    for name in ("events.ndjson", "epoch-000003-0123456789abcdef.safetensors", "result.json"):
        (run_folder(spec) / f".{name}.0123").write_bytes(b"half")
    train_fold_run(spec, ignore)

    assert not list(run_folder(spec).glob(".*"))
