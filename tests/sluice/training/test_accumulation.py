"""TRAIN-1: gradient accumulation gives the batch gradient, also with unequal micro-batches."""

import numpy as np
import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError
from sluice.training.accumulation import count_rows, require_splittable, split_batch
from sluice.training.loop import train
from sluice.training.settings import TrainSettings
from sluice.workloads.examples import Examples
from tests.sluice.training.test_loop import TRAIN, VAL, loss_of, losses_of, make_model, vector


def compute_gradient(model, x, y, *, micro_rows, loss=loss_of, loss_weight=count_rows):
    model.zero_grad()
    for x_part, y_part, share in split_batch(x, y, micro_rows=micro_rows, loss_weight=loss_weight):
        (loss(model(x_part), y_part) * share).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
@pytest.mark.parametrize("micro_rows", [1, 7, 16, 99, 100])
def test_micro_batch_gradients_sum_to_the_batch_gradient(dtype, digits, micro_rows):
    """Of 100 rows, the last micro-batch has 2 rows with a size of 7 and 1 with a size of 99."""
    model = make_model(dropout=0).to(dtype)
    x, y = TRAIN.x.to(dtype), TRAIN.y.to(dtype)
    whole = compute_gradient(model, x, y, micro_rows=None)

    torch.testing.assert_close(
        compute_gradient(model, x, y, micro_rows=micro_rows), whole, rtol=digits, atol=digits
    )


def test_equal_micro_batch_weights_give_a_wrong_gradient():
    """An unweighted mean over micro-batches is wrong if the last one is smaller."""
    model = make_model(dropout=0).double()
    x, y = TRAIN.x.double(), TRAIN.y.double()
    whole = compute_gradient(model, x, y, micro_rows=None)
    naive = compute_gradient(model, x, y, micro_rows=99, loss_weight=lambda _: 1.0)

    assert (naive - whole).norm() > 0.1 * whole.norm()


def test_token_mean_loss_is_weighted_by_token_count():
    """The loss is a mean over targets that are not padding (NaN); their number varies."""
    x = torch.randn(10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = x[:, :1].repeat(1, 6)
    for row in range(10):
        y[row, : row % 6] = torch.nan
    y[4] = torch.nan
    y[5] = torch.nan  # a micro-batch without tokens

    def count_tokens(y):
        return float((~y.isnan()).sum())

    def loss(output, y):
        is_token = ~y.isnan()
        return (output - y)[is_token].square().mean()

    model = nn.Linear(4, 6).double()
    whole = compute_gradient(model, x, y, micro_rows=None, loss=loss)
    parts = compute_gradient(model, x, y, micro_rows=2, loss=loss, loss_weight=count_tokens)

    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-14)
    shares = [share for _, _, share in split_batch(x, y, micro_rows=2, loss_weight=count_tokens)]
    assert (len(shares), sum(shares)) == (4, pytest.approx(1.0))
    with pytest.raises(ContractError, match="got 0 for 2 rows"):
        list(split_batch(x[4:6], y[4:6], micro_rows=1, loss_weight=count_tokens))


@pytest.mark.parametrize("clip_norm", [0.3, 1e9])
def test_training_with_micro_batches_equals_training_with_whole_batches(clip_norm):
    """Gradients are clipped once per batch, not per micro-batch. 0.3 clips nearly every step."""

    def fit(**options):
        model = make_model(dropout=0)
        settings = TrainSettings(
            max_epochs=3, batch_rows=32, learning_rate=0.02, clip_norm=clip_norm, **options
        )
        history = list(train(model, loss_of, losses_of, TRAIN, VAL, settings, seed=3))
        return vector(model), history

    (whole, expected), (parts, history) = fit(), fit(micro_batch_rows=5)

    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
    for result, wanted in zip(history, expected, strict=True):
        assert result.train_loss == pytest.approx(wanted.train_loss, rel=1e-4)
        assert result.grad_norm_max == pytest.approx(wanted.grad_norm_max, rel=1e-4)
        assert result.clipped_share == wanted.clipped_share


def test_micro_batches_as_large_as_the_batch_give_identical_weights():
    def fit(**options):
        model = make_model()
        settings = TrainSettings(max_epochs=2, batch_rows=16, **options)
        list(train(model, loss_of, losses_of, TRAIN, VAL, settings, seed=3))
        return vector(model)

    assert torch.equal(fit(), fit(micro_batch_rows=16))


def test_loss_that_is_not_a_mean_over_rows_is_rejected():
    for wrong in (
        lambda output, y: losses_of(output, y).sum(),
        lambda output, y: (output - output.mean() - y + y.mean()).square().mean(),
    ):
        with pytest.raises(ContractError, match="must be a mean over rows"):
            require_splittable(
                make_model(),
                wrong,
                TRAIN.x,
                TRAIN.y,
                loss_weight=count_rows,
                setting="micro_batch_rows",
            )
    require_splittable(
        make_model(), loss_of, TRAIN.x, TRAIN.y, loss_weight=count_rows, setting="micro_batch_rows"
    )


def test_batch_norm_is_rejected_only_if_batches_are_split():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    rows = Examples(x=TRAIN.x[:96], y=TRAIN.y[:96], rows=np.arange(96))

    def run(**options):
        settings = TrainSettings(max_epochs=1, batch_rows=16, **options)
        list(train(model, loss_of, losses_of, rows, VAL, settings, seed=3))

    run(micro_batch_rows=16)
    with pytest.raises(ContractError, match="'1' is a BatchNorm1d"):
        run(micro_batch_rows=8)
