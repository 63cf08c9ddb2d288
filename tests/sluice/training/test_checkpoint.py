"""REPRO-4: checkpoints are written atomically; those of another training are rejected."""

import operator
import re
import resource

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError, StorageError
from sluice.base.seeding import rng_state
from sluice.training.checkpoint import discard_checkpoints, load_checkpoint, save_checkpoint
from sluice.training.loop import EpochResult, TrainState
from sluice.training.weights import unpack_tensors

SUBJECT = {"seed": 1, "training": {"learning_rate": 0.1}, "fold": [0, 10]}


def make_state(epochs: int) -> TrainState:
    result = EpochResult(
        epoch=1,
        train_loss=0.1 + 0.2,
        val_loss=1 / 3,
        learning_rate=1e-3,
        grad_norm_mean=1.0,
        grad_norm_max=2.0,
        clipped_share=0.0,
        improved=True,
        seconds=0.5,
    )
    weights = {"weight": torch.full((3,), float(epochs))}
    return TrainState(
        history=(result,) * epochs,
        steps=7 * epochs,
        best_epoch=1,
        model=weights,
        best={"weight": torch.zeros(3)},
        optimizer={"0/exp_avg": torch.ones(3), "0/step": torch.tensor(7.0)},
        optimizer_tree={"groups": {"value": 0.1 + 0.2}},
        rng=rng_state(),
    )


def is_same(a: TrainState, b: TrainState) -> bool:
    parts = ("model", "best", "optimizer", "rng")
    plain = operator.attrgetter("history", "steps", "best_epoch", "optimizer_tree")
    return plain(a) == plain(b) and all(
        getattr(a, part).keys() == getattr(b, part).keys()
        and all(
            torch.equal(t.nan_to_num(7), getattr(b, part)[n].nan_to_num(7))
            for n, t in getattr(a, part).items()
        )
        for part in parts
    )


def test_loaded_state_equals_the_saved_state(tmp_path):
    written = make_state(3)
    save_checkpoint(tmp_path, written, subject=SUBJECT)
    restored = load_checkpoint(tmp_path, subject=SUBJECT)

    assert restored.state is not None
    assert is_same(restored.state, written)
    assert restored.damaged_paths == ()


def test_checkpoint_at_epoch_end_keeps_the_earlier_format(tmp_path):
    """Earlier versions stored no progress within an epoch, so the file contains none."""
    path = save_checkpoint(tmp_path, make_state(3), subject=SUBJECT)
    _, facts = unpack_tensors(path.read_bytes(), where="it")

    assert re.fullmatch(r"epoch-000003-[0-9a-f]{16}\.safetensors", path.name)
    assert facts.keys() == {"subject", "steps", "best_epoch", "optimizer", "history"}


def test_missing_folder_has_no_checkpoint(tmp_path):
    assert load_checkpoint(tmp_path / "none", subject=SUBJECT).state is None


def test_only_the_last_two_checkpoints_are_kept(tmp_path):
    for epochs in range(1, 13):
        save_checkpoint(tmp_path, make_state(epochs), subject=SUBJECT)

    assert sorted(path.name[:12] for path in tmp_path.iterdir()) == ["epoch-000011", "epoch-000012"]
    (tmp_path / ".epoch-000013-half.x7").write_bytes(b"a killed write")
    discard_checkpoints(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_damaged_checkpoint_is_skipped(tmp_path, damage):
    older = make_state(1)
    save_checkpoint(tmp_path, older, subject=SUBJECT)
    newest = save_checkpoint(tmp_path, make_state(2), subject=SUBJECT)
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes({"cut": content[:-9], "flip": content, "empty": b""}[damage])
    restored = load_checkpoint(tmp_path, subject=SUBJECT)

    assert restored.damaged_paths == (newest,)
    assert restored.state is not None
    assert is_same(restored.state, older)


def test_no_state_is_loaded_if_all_checkpoints_are_damaged(tmp_path):
    path = save_checkpoint(tmp_path, make_state(1), subject=SUBJECT)
    path.write_bytes(b"torn")

    assert load_checkpoint(tmp_path, subject=SUBJECT).state is None


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"seed": 2}, "seed was 1, now 2"),
        ({"training": {"learning_rate": 0.2}}, r"training\.learning_rate was 0\.1, now 0\.2"),
        ({"extra": True}, "extra was None, now True"),
    ],
)
def test_checkpoint_of_other_settings_is_rejected(tmp_path, change, cause):
    save_checkpoint(tmp_path, make_state(1), subject=SUBJECT)

    with pytest.raises(ContractError, match=cause):
        load_checkpoint(tmp_path, subject={**SUBJECT, **change})


def test_tensors_that_share_memory_can_be_saved(tmp_path):
    """Tied weights share memory, as do the weights of a recurrent layer on a GPU."""
    weight = nn.Parameter(torch.arange(6.0))
    shared = {"a": weight, "b": weight, "c": weight[2:4]}
    shares = TrainState(
        history=make_state(1).history,
        steps=7,
        best_epoch=1,
        model=shared,
        best=shared,
        optimizer={},
        optimizer_tree={},
        rng={},
    )
    save_checkpoint(tmp_path, shares, subject=SUBJECT)
    restored = load_checkpoint(tmp_path, subject=SUBJECT).state

    assert restored is not None
    assert restored.model["c"].tolist() == [2, 3]


def test_full_disk_keeps_the_previous_checkpoint(tmp_path):
    """A limit on the file size simulates a full disk in the middle of the write."""
    save_checkpoint(tmp_path, make_state(1), subject=SUBJECT)
    before = sorted(path.name for path in tmp_path.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StorageError, match="No room left to write"):
            save_checkpoint(tmp_path, make_state(2), subject=SUBJECT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert sorted(path.name for path in tmp_path.iterdir()) == before
    restored = load_checkpoint(tmp_path, subject=SUBJECT).state
    assert restored is not None
    assert len(restored.history) == 1


def test_error_for_an_unreadable_checkpoint_says_that_it_cannot_be_read(tmp_path):
    (tmp_path / f"epoch-000001-{'0' * 16}.safetensors").mkdir()
    with pytest.raises(StorageError, match="Cannot read"):
        load_checkpoint(tmp_path, subject=SUBJECT)
