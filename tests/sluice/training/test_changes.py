"""TUNE-1, REPRO-4: settings that change during training, such as a schedule found by PBT."""

import pytest
import torch
from torch import nn

from sluice.base.errors import SettingsError
from sluice.base.seeding import derive_seed
from sluice.training.fold_run import find_finished_member, train_fold_run
from sluice.training.schedule import learning_rate_at
from sluice.training.settings import TrainingChange, TrainSettings
from tests.sluice.training.test_fold_run import bits, events, ignore, interrupt_after
from tests.sluice.training.test_loop import SETTINGS, TRAIN, loss_of, make_model, run, vector

CHANGES = (
    TrainingChange(from_epoch=1, learning_rate=0.05, clip_norm=0.1),
    TrainingChange(from_epoch=3, weight_decay=0.5, learning_rate=0.01),
)
CHANGED = SETTINGS.model_copy(update={"changes": CHANGES})


def test_training_with_changes_equals_a_plain_torch_loop():
    """Oracle: torch's AdamW with values set manually. A group's own weight decay stays."""
    model, oracle = make_model(dropout=0), make_model(dropout=0)
    own = [{"params": model[3].parameters(), "weight_decay": 0.2}]
    history = list(run(model, CHANGED, groups=[*own, {"params": model[0].parameters()}]))

    optimizer = torch.optim.AdamW(
        [{"params": oracle[3].parameters()}, {"params": oracle[0].parameters()}]
    )
    step = 0
    for epoch in range(1, 6):
        peak = {1: 0.02, 2: 0.05, 3: 0.05}.get(epoch, 0.01)
        order = torch.Generator().manual_seed(derive_seed(3, f"order_{epoch}"))
        for rows in torch.randperm(100, generator=order).split(16):
            optimizer.zero_grad()
            loss_of(oracle(TRAIN.x[rows]), TRAIN.y[rows]).backward()
            nn.utils.clip_grad_norm_(oracle.parameters(), 0.5 if epoch == 1 else 0.1)
            for group, decay in zip(
                optimizer.param_groups, (0.2, 0.01 if epoch <= 3 else 0.5), strict=True
            ):
                group["weight_decay"] = decay
                group["lr"] = peak / 0.02 * learning_rate_at(step, 35, SETTINGS)
            optimizer.step()
            step += 1

    torch.testing.assert_close(vector(model), vector(oracle), rtol=1e-5, atol=1e-6)
    assert history[-1].learning_rate == pytest.approx(0.01 * 0.05)


def test_change_affects_only_later_epochs():
    plain, changed = list(run(make_model())), list(run(make_model(), CHANGED))

    assert [r.train_loss for r in changed][:1] == [r.train_loss for r in plain][:1]
    assert [r.train_loss for r in changed][1] != [r.train_loss for r in plain][1]


@pytest.mark.parametrize(
    "stopped_after", [2, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (1, 3))]
)
def test_fold_run_interrupted_around_a_change_resumes_with_identical_bits_and_log(
    specs, stopped_after
):
    changes = (
        TrainingChange(from_epoch=1, learning_rate=0.05),
        TrainingChange(from_epoch=2, clip_norm=0.01, weight_decay=1.0),
    )
    (whole,), (cut,) = (specs(name, changes=changes) for name in "ab")
    expected = train_fold_run(whole, ignore)
    interrupt_after(cut, stopped_after)
    member = train_fold_run(cut, ignore)

    assert bits(member) == bits(expected)
    assert events(cut, member) == events(whole, expected)
    (plain,) = specs("a")
    assert find_finished_member(plain) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([{"from_epoch": 2, "clip_norm": 1.0}, {"from_epoch": 2, "clip_norm": 2.0}], r"\[2, 2\]"),
        ([{"from_epoch": 3, "clip_norm": 1.0}, {"from_epoch": 2, "clip_norm": 2.0}], r"\[3, 2\]"),
        ([{"from_epoch": 25, "clip_norm": 1.0}], "from_epoch 25 must be below max_epochs 25"),
        ([{"from_epoch": 0, "clip_norm": 1.0}], "changes.0.from_epoch.*greater than or equal to 1"),
        ([{"from_epoch": 1}], "must set at least one of learning_rate, weight_decay, clip_norm"),
        ([{"from_epoch": 1, "learning_rate": 0.0}], "greater than 0"),
        ([{"from_epoch": 1, "learning_rte": 1.0}], "Did you mean 'learning_rate'"),
    ],
)
def test_invalid_changes_are_rejected_with_their_location(changes, message):
    with pytest.raises(SettingsError, match=message):
        TrainSettings.parse({"changes": changes}, where="defs.yaml")
