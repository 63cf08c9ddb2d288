"""TRAIN-1, REPRO-4: the training loop equals a plain PyTorch loop and resumes exactly."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError, TrainingFailed
from sluice.base.seeding import derive_seed, deterministic
from sluice.training.loop import mean_loss, predict, train
from sluice.training.schedule import learning_rate_at
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples

SETTINGS = TrainSettings(max_epochs=5, batch_rows=16, learning_rate=0.02, clip_norm=0.5)


def examples(num_rows: int, seed: int) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, 4, generator=generator)
    y = x[:, :1] * 2 - x[:, 1:2] + 0.1 * torch.randn(num_rows, 1, generator=generator)
    return Examples(x=x, y=y, rows=np.arange(num_rows))


TRAIN, VAL = examples(100, 1), examples(40, 2)


def make_model(seed: int = 0, dropout: float = 0.3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))


def losses_of(output, y):
    return (output - y).square().mean(dim=1)


def loss_of(output, y):
    return losses_of(output, y).mean()


def run(model, settings=SETTINGS, *, seed=3, losses=losses_of, loss=loss_of, **options):
    rows = options.pop("rows", TRAIN)
    return train(model, loss, losses, rows, VAL, settings, seed=seed, **options)


def vector(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def drop_seconds(results):
    return [dataclasses.replace(result, seconds=0.0) for result in results]


def clone_state(state):
    """Return the state with copied tensors, as if stored in a file."""
    parts = {
        part: {name: tensor.clone() for name, tensor in getattr(state, part).items()}
        for part in ("model", "best", "optimizer", "rng")
    }
    return dataclasses.replace(state, **parts)


def make_losses(scores):
    """Return per-row losses that make ``scores`` the validation losses, epoch by epoch."""
    remaining = iter(scores)
    return lambda _, y: torch.full((len(y),), next(remaining))


def test_training_equals_a_plain_torch_loop():
    """Oracle: AdamW, clipping and LambdaLR of torch in a plain loop."""
    settings = SETTINGS.model_copy(update={"max_epochs": 3})
    model, oracle = make_model(dropout=0), make_model(dropout=0)
    history = list(run(model, settings))

    optimizer = torch.optim.AdamW(oracle.parameters(), lr=1.0, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: learning_rate_at(s, 21, settings)
    )
    norms, totals = [], []
    for epoch in (1, 2, 3):
        order = torch.Generator().manual_seed(derive_seed(3, f"order_{epoch}"))
        total = 0.0
        for rows in torch.randperm(100, generator=order).split(16):
            optimizer.zero_grad()
            loss = loss_of(oracle(TRAIN.x[rows]), TRAIN.y[rows])
            loss.backward()
            norms.append(float(nn.utils.clip_grad_norm_(oracle.parameters(), 0.5)))
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(rows)
        totals.append(total / 100)

    torch.testing.assert_close(vector(model), vector(oracle), rtol=1e-5, atol=1e-6)
    assert [r.train_loss for r in history] == pytest.approx(totals, rel=1e-5)
    assert history[-1].val_loss == pytest.approx(mean_loss(oracle, losses_of, VAL), rel=1e-5)
    assert history[-1].learning_rate == 0.02 * 0.05
    assert history[2].grad_norm_max == pytest.approx(max(norms[14:]), rel=1e-5)
    assert history[2].grad_norm_mean == pytest.approx(sum(norms[14:]) / 7, rel=1e-5)
    assert history[2].clipped_share == sum(norm > 0.5 for norm in norms[14:]) / 7
    assert sum(r.clipped_share for r in history) > 0


def test_weights_depend_only_on_the_seed():
    def fit(seed: int, disturb: int) -> torch.Tensor:
        model = make_model()
        torch.manual_seed(disturb)
        for _ in run(model, seed=seed):
            torch.rand(3)  # a caller that draws between epochs
        return vector(model)

    assert torch.equal(fit(3, 1), fit(3, 2))
    assert not torch.equal(fit(3, 1), fit(4, 1))


def test_training_does_not_advance_the_callers_generators():
    torch.manual_seed(8)
    expected = torch.rand(2)
    model = make_model()
    torch.manual_seed(8)
    list(run(model))

    assert torch.equal(torch.rand(2), expected)


def test_every_epoch_has_another_row_order():
    seen = []

    def spy(output, y):
        seen.append(y)
        return loss_of(output, y)

    list(run(make_model(), loss=spy))
    epochs = [torch.cat(seen[7 * e : 7 * e + 7]).flatten() for e in range(5)]

    assert all(torch.equal(e.sort().values, TRAIN.y.flatten().sort().values) for e in epochs)
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(epochs, 2))


def test_training_stops_early_and_restores_the_best_weights():
    """Validation loss falls until epoch 3, then rises: patience 4 stops after epoch 7."""
    kept = {}
    model = make_model()
    settings = TrainSettings(max_epochs=20, patience_epochs=4, batch_rows=16)
    history = list(
        run(
            model,
            settings,
            losses=make_losses([3.0, 2.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]),
            on_state=lambda state: kept.update({len(state.history): vector(model)}),
        )
    )

    assert [r.improved for r in history] == [True] * 3 + [False] * 4
    assert torch.equal(vector(model), kept[3])
    assert not torch.equal(kept[3], kept[7])
    assert not model.training


def test_overfitting_model_ends_with_the_weights_of_its_best_epoch():
    few = Examples(
        x=TRAIN.x[:12], y=TRAIN.y[:12] + 3 * TRAIN.x[:12, 2:3].sign(), rows=np.arange(12)
    )
    model = make_model(dropout=0)
    settings = TrainSettings(max_epochs=60, patience_epochs=60, batch_rows=4, learning_rate=0.05)
    history = list(run(model, settings, rows=few))
    best = min(history, key=lambda r: r.val_loss)

    assert history[-1].val_loss > best.val_loss
    assert mean_loss(model, losses_of, VAL) == best.val_loss


def test_custom_epoch_selector_selects_the_weights():
    def latest_multiple_of_two(scores):
        return max((epoch for epoch in scores if epoch % 2 == 0), default=1)

    kept = {}
    model = make_model()
    list(
        run(
            model,
            select=latest_multiple_of_two,
            on_state=lambda state: kept.update({len(state.history): vector(model)}),
        )
    )

    assert torch.equal(vector(model), kept[4])


def test_selector_that_returns_an_earlier_epoch_is_rejected():
    with pytest.raises(
        ContractError, match=r"current epoch \(3\) or its previous result \(2\), got 1"
    ):
        list(run(make_model(), select=lambda scores: 1 if len(scores) > 2 else len(scores)))


@pytest.mark.parametrize("stop_after", [1, 2, 4, 5])
def test_resumed_training_ends_with_identical_bits(stop_after):
    states = {}
    whole = make_model()

    def copy(state):
        states[len(state.history)] = clone_state(state)

    with deterministic():
        expected = list(run(whole, on_state=copy))
        resumed = make_model(seed=99)
        rest = list(run(resumed, resume=states[stop_after]))

    assert torch.equal(vector(resumed), vector(whole))
    assert drop_seconds(rest) == drop_seconds(expected[stop_after:])


@pytest.mark.parametrize("stop_after", [2, 3])
def test_resumed_training_keeps_earlier_best_weights(stop_after):
    """Epoch 1 is the best; patience ends training after epoch 3."""
    states, whole = [], make_model()
    settings = TrainSettings(max_epochs=20, patience_epochs=2, batch_rows=16)
    scores = [1.0, 2.0, 3.0]
    list(
        run(
            whole,
            settings,
            losses=make_losses(scores),
            on_state=lambda state: states.append(clone_state(state)),
        )
    )
    model, state = make_model(), states[stop_after - 1]
    rest = list(run(model, settings, resume=state, losses=make_losses(scores[stop_after:])))

    assert len(rest) == 3 - stop_after
    assert torch.equal(vector(model), vector(whole))
    assert not torch.equal(state.best["0.weight"], state.model["0.weight"])


@pytest.mark.parametrize(
    ("model", "rows", "cause"),
    [
        (nn.Linear(4, 1), TRAIN, "0.weight is absent in the network"),
        (make_model(), examples(300, 1), "at step 7 after 1 epoch, but these rows make 19"),
    ],
)
def test_state_of_another_network_or_data_is_rejected(model, rows, cause):
    states = []
    next(run(make_model(), on_state=states.append))

    with pytest.raises(ContractError, match=cause):
        list(run(model, resume=states[0], rows=rows))


def test_model_without_trainable_parameters_is_rejected():
    with pytest.raises(ContractError, match="at least one trainable parameter"):
        list(run(make_model().requires_grad_(False)))


def test_frozen_parameters_do_not_change():
    model = make_model()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    list(run(model))

    assert torch.equal(model[0].weight, before)


def test_non_finite_loss_is_reported_with_epoch_step_and_cause():
    calls = itertools.count(1)

    def diverges(output, y):
        return loss_of(output, y) * (math.inf if next(calls) == 7 + 3 else 1.0)

    with pytest.raises(
        TrainingFailed, match=r"got inf at epoch 2, step 3 of 7.*learning rate .* logarithm of 0"
    ):
        list(run(make_model(), loss=diverges))


def test_non_finite_loss_in_the_first_step_is_not_attributed_to_the_learning_rate():
    x = TRAIN.x.clone()
    x[:, 0] = math.nan

    with pytest.raises(TrainingFailed, match=r"epoch 1, step 1 of 7\. No weight was updated"):
        list(run(make_model(), rows=Examples(x=x, y=TRAIN.y, rows=TRAIN.rows)))


def test_non_finite_gradient_of_a_finite_loss_fails():
    """The square root of 0 is finite, but its derivative is not."""

    def loss(output, y):
        return loss_of(output, y) + ((output - output.detach()) ** 2).sum().sqrt()

    with pytest.raises(
        TrainingFailed, match="gradient norm must be finite, got nan at epoch 1, step 1"
    ):
        list(run(make_model(), loss=loss))


def test_non_finite_validation_loss_fails():
    with pytest.raises(TrainingFailed, match="validation loss must be finite, got nan at epoch 2"):
        list(run(make_model(), losses=make_losses([1.0, math.nan])))


def test_divergence_suggests_a_lower_learning_rate():
    settings = TrainSettings(max_epochs=50, batch_rows=16, learning_rate=100.0, warmup_share=0.0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1))

    def exponential(output, y):
        return (output - y).exp().mean()

    with pytest.raises(TrainingFailed, match="try 10"):
        list(run(model, settings, loss=exponential))


def test_predict_keeps_row_order_and_mode():
    x = torch.randn(9000, 4)
    model = make_model()
    expected = model.eval()(x).detach()
    model.train()

    torch.testing.assert_close(predict(model, x), expected)
    assert model.training
