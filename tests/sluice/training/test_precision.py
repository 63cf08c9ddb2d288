"""TRACE-10, TRAIN-1: bf16, fp16 with a loss scale, and the way back to fp32."""

import itertools
import math

import pytest
import torch

from sluice.base.errors import TrainingFailed
from sluice.base.seeding import deterministic
from sluice.models.build import ARCHITECTURES, build_network
from sluice.models.settings import ModelSettings
from sluice.training.checkpoint import load_checkpoint, save_checkpoint
from sluice.training.loop import train
from sluice.training.precision import MixedPrecision, ScaleState
from sluice.training.settings import TrainSettings
from tests.sluice.training.test_loop import (
    TRAIN,
    VAL,
    frozen,
    loss_of,
    losses_of,
    make_model,
    run,
    timeless,
    vector,
)

CPU = torch.device("cpu")


def settings(precision, **options):
    kept = {"max_epochs": 4, "batch_rows": 16, "learning_rate": 0.02, "clip_norm": 0.5}
    return TrainSettings(precision=precision, **(kept | options))


class _Overflow(torch.autograd.Function):
    """Its slope is infinite."""

    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # noqa: ARG004
        return grad * math.inf


def overflowing(calls_that_do):
    """Return a loss whose gradient overflows at the calls given, counted from 1.

    So small that it does nowhere else, at a scale of 65,536.
    """
    calls = itertools.count(1)

    def loss(output, y):
        output = _Overflow.apply(output) if next(calls) in calls_that_do else output
        return loss_of(output, y) / 64

    return loss


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_architecture_learns_in_low_precision(precision, architecture):
    x = torch.randn(128, 6, 4, generator=torch.Generator().manual_seed(1))
    y = x[:, -1, :1]
    torch.manual_seed(0)
    model = build_network(4, 1, ModelSettings(architecture=architecture, hidden=8, layers=2))
    mixed_precision = MixedPrecision(ScaleState(precision=precision), CPU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, fused=True)
    losses = []
    with deterministic():
        for _ in range(40):
            optimizer.zero_grad()
            output = mixed_precision.forward(model, x)
            loss = (output - y).square().mean()
            mixed_precision.backward(loss)
            mixed_precision.clip(optimizer, list(model.parameters()), 5.0)
            mixed_precision.step(optimizer)
            losses.append(loss.detach())

    assert output.dtype == torch.float32
    assert mixed_precision.precision == precision
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize(("precision", "digits"), [("bf16", 0.03), ("fp16", 0.004)])
def test_low_precision_ends_near_fp32_and_not_at_its_bits(precision, digits):
    def fitted(kind):
        model = make_model(dropout=0)
        history = list(run(model, settings(kind), loss=overflowing(())))
        return vector(model), history

    (low, history), (full, expected) = fitted(precision), fitted("fp32")

    assert history[-1].val_loss == pytest.approx(expected[-1].val_loss, rel=digits)
    assert not torch.equal(low, full)
    assert {r.precision for r in history} == {precision}


def test_the_scale_is_taken_out_before_clipping():
    """The norm that is clipped, and the clipped gradient, are those of fp32."""
    norms = []
    for precision in ("fp32", "fp16"):
        model = make_model(dropout=0)
        mixed_precision = MixedPrecision(ScaleState(precision=precision), CPU)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        mixed_precision.backward(loss_of(mixed_precision.forward(model, TRAIN.x), TRAIN.y))
        before = mixed_precision.clip(optimizer, list(model.parameters()), 0.5)
        after = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        norms.append((float(before), float(after)))

    assert norms[0] == pytest.approx(norms[1], rel=0.01)
    assert norms[0][0] > 0.5 == pytest.approx(norms[0][1], rel=1e-3)


def test_an_overflow_is_left_out_and_halves_the_scale():
    model = make_model(dropout=0)
    kept = []
    results = []
    for result in run(model, settings("fp16"), loss=overflowing({1, 2, 9})):
        kept.append(vector(model))
        results.append(result)

    assert [r.skipped_steps for r in results] == [2, 1, 0, 0]
    assert [r.loss_scale for r in results] == [2.0**14, 2.0**13, 2.0**13, 2.0**13]
    assert [r.loss_scale_steps for r in results] == [5, 5, 12, 19]
    assert {r.precision for r in results} == {"fp16"}
    assert all(math.isfinite(r.grad_norm_max) for r in results)


def test_a_step_that_overflowed_moves_no_weight():
    model = make_model(dropout=0)
    before = vector(model)
    one_step = settings("fp16", batch_rows=100, max_epochs=1)
    (result,) = run(model, one_step, loss=overflowing({1}))

    assert torch.equal(vector(model), before)
    assert (result.skipped_steps, result.failed_unscales) == (1, 1)
    assert math.isnan(result.grad_norm_max)


def test_five_failed_unscales_in_a_row_go_on_in_fp32_and_say_so():
    """From step 4 of epoch 1 to step 1 of epoch 2 of 7 steps each."""
    results = list(run(make_model(dropout=0), settings("fp16"), loss=overflowing({4, 5, 6, 7, 8})))

    assert [r.precision for r in results] == ["fp16", "fp32", "fp32", "fp32"]
    assert [r.skipped_steps for r in results] == [4, 1, 0, 0]
    assert [r.failed_unscales for r in results] == [4, 0, 0, 0]
    assert results[-1].train_loss < results[0].train_loss


def test_four_in_a_row_do_not_give_up_and_one_sound_step_starts_the_count_again():
    four_and_four = {1, 2, 3, 4, 6, 7, 8, 9}
    results = list(run(make_model(dropout=0), settings("fp16"), loss=overflowing(four_and_four)))

    assert {r.precision for r in results} == {"fp16"}
    assert sum(r.skipped_steps for r in results) == 8


def test_after_fp32_took_over_an_overflow_is_an_error():
    with pytest.raises(TrainingFailed, match="gradient norm must be finite"):
        list(run(make_model(dropout=0), settings("fp16"), loss=overflowing(range(1, 7))))


def test_parts_of_a_batch_share_one_scale_and_one_step():
    results = list(
        run(
            make_model(dropout=0),
            settings("fp16", micro_batch_rows=4),
            # The first three calls try whether the loss is a mean over rows.
            loss=overflowing({3 + 2}),
        )
    )

    assert [r.skipped_steps for r in results] == [1, 0, 0, 0]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_resumed_from_a_file_it_ends_with_the_same_bits(precision, stop_after, tmp_path):
    """REPRO-4: the scale is among the state; an overflow in epoch 1 halves it."""
    states = {}
    overflows = {2, 3} if precision == "fp16" else set()

    def copy(state):
        states[len(state.history)] = frozen(state)

    with deterministic():
        whole = make_model()
        expected = list(run(whole, settings(precision), on_state=copy, loss=overflowing(overflows)))
        save_checkpoint(tmp_path, states[stop_after], subject={})
        state = load_checkpoint(tmp_path, subject={}).state
        resumed = make_model(seed=99)
        rest = list(run(resumed, settings(precision), resume=state, loss=overflowing(())))

    assert torch.equal(vector(resumed), vector(whole))
    assert timeless(rest) == timeless(expected[stop_after:])


def test_resumed_after_the_way_back_it_stays_in_fp32():
    states = {}

    def copy(state):
        states[len(state.history)] = frozen(state)

    whole = make_model()
    list(run(whole, settings("fp16"), on_state=copy, loss=overflowing(range(1, 6))))
    resumed = make_model(seed=99)
    rest = list(run(resumed, settings("fp16"), resume=states[2], loss=overflowing(())))

    assert torch.equal(vector(resumed), vector(whole))
    assert {r.precision for r in rest} == {"fp32"}


def test_validation_is_in_fp32():
    seen = []

    def losses(output, y):
        seen.append(output.dtype)
        return losses_of(output, y)

    model = make_model(dropout=0)
    list(train(model, loss_of, losses, TRAIN, VAL, settings("bf16"), seed=3))

    assert set(seen) == {torch.float32}


def test_failures_before_and_after_a_stop_are_counted_together():
    """Four at the end of epoch 1 and, after resuming, one more."""
    states = []
    next(
        run(make_model(), settings("fp16"), on_state=states.append, loss=overflowing({4, 5, 6, 7}))
    )
    rest = list(run(make_model(), settings("fp16"), resume=states[0], loss=overflowing({1})))

    assert states[0].history[-1].failed_unscales == 4
    assert {r.precision for r in rest} == {"fp32"}
