"""TRACE-10, TRAIN-1: bf16, fp16 with loss scaling, and the fallback to fp32."""

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
    clone_state,
    drop_seconds,
    loss_of,
    losses_of,
    make_model,
    run,
    vector,
)

CPU = torch.device("cpu")


def make_settings(precision, **options):
    defaults = {"max_epochs": 4, "batch_rows": 16, "learning_rate": 0.02, "clip_norm": 0.5}
    return TrainSettings(precision=precision, **(defaults | options))


class _Overflow(torch.autograd.Function):
    """Identity with an infinite gradient."""

    @staticmethod
    def forward(ctx, x):  # noqa: ARG004
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # noqa: ARG004
        return grad * math.inf


def make_overflowing_loss(overflow_calls):
    """Return a loss whose gradient overflows at ``overflow_calls``, counted from 1.

    The loss is divided by 64 so that no other call overflows at a scale of 65,536.
    """
    calls = itertools.count(1)

    def loss(output, y):
        output = _Overflow.apply(output) if next(calls) in overflow_calls else output
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
def test_low_precision_is_close_to_fp32_but_not_identical(precision, digits):
    def fit(kind):
        model = make_model(dropout=0)
        history = list(run(model, make_settings(kind), loss=make_overflowing_loss(())))
        return vector(model), history

    (low, history), (full, expected) = fit(precision), fit("fp32")

    assert history[-1].val_loss == pytest.approx(expected[-1].val_loss, rel=digits)
    assert not torch.equal(low, full)
    assert {r.precision for r in history} == {precision}


def test_gradients_are_unscaled_before_clipping():
    """The norm before clipping and the clipped gradient equal those of fp32."""
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


def test_overflow_skips_the_step_and_halves_the_scale():
    model = make_model(dropout=0)
    kept = []
    results = []
    for result in run(model, make_settings("fp16"), loss=make_overflowing_loss({1, 2, 9})):
        kept.append(vector(model))
        results.append(result)

    assert [r.skipped_steps for r in results] == [2, 1, 0, 0]
    assert [r.loss_scale for r in results] == [2.0**14, 2.0**13, 2.0**13, 2.0**13]
    assert [r.loss_scale_steps for r in results] == [5, 5, 12, 19]
    assert {r.precision for r in results} == {"fp16"}
    assert all(math.isfinite(r.grad_norm_max) for r in results)


def test_skipped_step_changes_no_weight():
    model = make_model(dropout=0)
    before = vector(model)
    one_step = make_settings("fp16", batch_rows=100, max_epochs=1)
    (result,) = run(model, one_step, loss=make_overflowing_loss({1}))

    assert torch.equal(vector(model), before)
    assert (result.skipped_steps, result.failed_unscales) == (1, 1)
    assert math.isnan(result.grad_norm_max)


def test_five_consecutive_overflows_switch_to_fp32():
    """They are in steps 4 to 7 of epoch 1 and step 1 of epoch 2."""
    results = list(
        run(
            make_model(dropout=0),
            make_settings("fp16"),
            loss=make_overflowing_loss({4, 5, 6, 7, 8}),
        )
    )

    assert [r.precision for r in results] == ["fp16", "fp32", "fp32", "fp32"]
    assert [r.skipped_steps for r in results] == [4, 1, 0, 0]
    assert [r.failed_unscales for r in results] == [4, 0, 0, 0]
    assert results[-1].train_loss < results[0].train_loss


def test_four_consecutive_overflows_keep_fp16_and_a_finite_step_resets_the_count():
    four_and_four = {1, 2, 3, 4, 6, 7, 8, 9}
    results = list(
        run(make_model(dropout=0), make_settings("fp16"), loss=make_overflowing_loss(four_and_four))
    )

    assert {r.precision for r in results} == {"fp16"}
    assert sum(r.skipped_steps for r in results) == 8


def test_overflow_after_the_switch_to_fp32_is_an_error():
    with pytest.raises(TrainingFailed, match="gradient norm must be finite"):
        list(
            run(
                make_model(dropout=0),
                make_settings("fp16"),
                loss=make_overflowing_loss(range(1, 7)),
            )
        )


def test_overflow_in_one_micro_batch_skips_the_whole_step():
    results = list(
        run(
            make_model(dropout=0),
            make_settings("fp16", micro_batch_rows=4),
            # The first three calls check whether the loss is a mean over rows.
            loss=make_overflowing_loss({3 + 2}),
        )
    )

    assert [r.skipped_steps for r in results] == [1, 0, 0, 0]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_training_resumed_from_a_file_ends_with_identical_bits(precision, stop_after, tmp_path):
    """REPRO-4: the loss scale, halved by an overflow in epoch 1, is part of the state."""
    states = {}
    overflows = {2, 3} if precision == "fp16" else set()

    def copy(state):
        states[len(state.history)] = clone_state(state)

    with deterministic():
        whole = make_model()
        expected = list(
            run(
                whole,
                make_settings(precision),
                on_state=copy,
                loss=make_overflowing_loss(overflows),
            )
        )
        save_checkpoint(tmp_path, states[stop_after], subject={})
        state = load_checkpoint(tmp_path, subject={}).state
        resumed = make_model(seed=99)
        rest = list(
            run(resumed, make_settings(precision), resume=state, loss=make_overflowing_loss(()))
        )

    assert torch.equal(vector(resumed), vector(whole))
    assert drop_seconds(rest) == drop_seconds(expected[stop_after:])


def test_training_resumed_after_the_switch_stays_in_fp32():
    states = {}

    def copy(state):
        states[len(state.history)] = clone_state(state)

    whole = make_model()
    list(run(whole, make_settings("fp16"), on_state=copy, loss=make_overflowing_loss(range(1, 6))))
    resumed = make_model(seed=99)
    rest = list(
        run(resumed, make_settings("fp16"), resume=states[2], loss=make_overflowing_loss(()))
    )

    assert torch.equal(vector(resumed), vector(whole))
    assert {r.precision for r in rest} == {"fp32"}


def test_validation_uses_fp32():
    seen = []

    def losses(output, y):
        seen.append(output.dtype)
        return losses_of(output, y)

    model = make_model(dropout=0)
    list(train(model, loss_of, losses, TRAIN, VAL, make_settings("bf16"), seed=3))

    assert set(seen) == {torch.float32}


def test_consecutive_overflows_are_counted_across_an_interruption():
    """Four are at the end of epoch 1, the fifth is the first step after resuming."""
    states = []
    next(
        run(
            make_model(),
            make_settings("fp16"),
            on_state=states.append,
            loss=make_overflowing_loss({4, 5, 6, 7}),
        )
    )
    rest = list(
        run(make_model(), make_settings("fp16"), resume=states[0], loss=make_overflowing_loss({1}))
    )

    assert states[0].history[-1].failed_unscales == 4
    assert {r.precision for r in rest} == {"fp32"}
