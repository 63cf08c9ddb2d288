"""TRAIN-1, POC-2: parameter groups with their own learning rate and weight decay."""

import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.base.seeding import derive_seed, deterministic
from sluice.training.loop import train
from sluice.training.parameter_groups import complete_groups, make_optimizer, set_learning_rate
from sluice.training.schedule import learning_rate_at
from sluice.training.settings import TrainSettings
from sluice.workloads.workload import Workload
from tests.sluice.training.test_loop import (
    SETTINGS,
    TRAIN,
    VAL,
    clone_state,
    drop_seconds,
    loss_of,
    losses_of,
    make_model,
    vector,
)


def fit(model, groups=None, settings=SETTINGS, **options):
    return list(
        train(model, loss_of, losses_of, TRAIN, VAL, settings, seed=3, groups=groups, **options)
    )


def make_two_groups(model):
    return [
        {"params": model[3].parameters(), "weight_decay": 0.0},
        {"params": model[0].parameters(), "rate_share": 0.1},
    ]


def test_default_group_gives_the_same_bits_as_no_groups():
    alone, grouped = make_model(), make_model()
    history = fit(alone)
    default = Workload.parameter_groups(None, grouped)

    assert drop_seconds(fit(grouped, default)) == drop_seconds(history)
    assert torch.equal(vector(grouped), vector(alone))


def test_training_with_groups_equals_a_plain_torch_loop():
    """Oracle: AdamW and LambdaLR of torch with the same two groups."""
    settings = SETTINGS.model_copy(update={"max_epochs": 2})
    model, oracle = make_model(dropout=0), make_model(dropout=0)
    history = fit(model, make_two_groups(model), settings)
    optimizer = torch.optim.AdamW(
        [
            {"params": oracle[3].parameters(), "weight_decay": 0.0},
            {"params": oracle[0].parameters(), "lr": 0.1},
        ],
        lr=1.0,
        weight_decay=1e-2,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: learning_rate_at(s, 14, settings)
    )
    for epoch in (1, 2):
        order = torch.Generator().manual_seed(derive_seed(3, f"order_{epoch}"))
        for rows in torch.randperm(100, generator=order).split(16):
            optimizer.zero_grad()
            loss_of(oracle(TRAIN.x[rows]), TRAIN.y[rows]).backward()
            nn.utils.clip_grad_norm_(oracle.parameters(), 0.5)
            optimizer.step()
            schedule.step()

    torch.testing.assert_close(vector(model), vector(oracle), rtol=1e-5, atol=1e-6)
    assert history[-1].learning_rate == learning_rate_at(13, 14, settings)


@pytest.mark.parametrize("stop_after", [1, 3])
def test_resumed_training_with_groups_ends_with_the_same_bits(stop_after):
    states, whole, resumed = {}, make_model(), make_model(seed=99)

    def copy(state):
        states[len(state.history)] = clone_state(state)

    with deterministic():
        expected = fit(whole, make_two_groups(whole), on_state=copy)
        rest = fit(resumed, make_two_groups(resumed), resume=states[stop_after])

    assert torch.equal(vector(resumed), vector(whole))
    assert drop_seconds(rest) == drop_seconds(expected[stop_after:])


def test_rate_share_0_leaves_a_group_unchanged():
    model = make_model()
    before = model[0].weight.clone()
    fit(model, [{"params": model[3].parameters()}, {"params": model[0].weight, "rate_share": 0}])

    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("lower", [0.5, 0.05])
def test_smaller_rate_share_changes_a_group_less(lower):
    def change_norm(share):
        model = make_model(dropout=0)
        before = model[0].weight.clone()
        one_epoch = SETTINGS.model_copy(update={"max_epochs": 1})
        groups = [{"params": model.parameters(), "rate_share": share, "weight_decay": 0.0}]
        fit(model, groups, one_epoch)
        return float((model[0].weight - before).detach().norm())

    assert change_norm(lower) < change_norm(1.0)


def test_set_learning_rate_scales_every_group():
    model = make_model()
    optimizer = make_optimizer(make_two_groups(model), TrainSettings(learning_rate=0.02))
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.02 * 0.1]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 1e-2]
    set_learning_rate(optimizer, 0.5)

    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.05]


@pytest.mark.parametrize(
    ("groups", "cause"),
    [
        (lambda p: [{"params": p, "lr": 0.1}], "got 'params', 'lr'"),
        (lambda p: [{"params": p, "weight_decy": 0.1}], "Did you mean 'weight_decay'"),
        (lambda _: [{"rate_share": 0.1}], "group 0 must have 'params'"),
        (lambda p: [{"params": p, "rate_share": -0.1}], "'rate_share' of parameter group 0"),
        (lambda p: [{"params": p, "weight_decay": float("nan")}], "finite number"),
        (lambda p: [{"params": p, "rate_share": "half"}], "got 'half'"),
        (lambda p: [{"params": p}, {"params": p[:1]}], "in one group, got 1 repeated parameter"),
        (lambda _: [{"params": []}], "1 empty group."),
        (lambda _: [], "0 empty groups"),
    ],
)
def test_invalid_groups_are_rejected(groups, cause):
    model = make_model()

    with pytest.raises(ContractError, match=cause):
        fit(model, groups(list(model.parameters())))


def test_parameter_iterator_of_a_group_is_listed_completely():
    model = make_model()
    (group,) = complete_groups([{"params": model.parameters()}], SETTINGS)

    assert [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]
    assert (group["rate_share"], group["weight_decay"]) == (1.0, SETTINGS.weight_decay)
