"""The constant baseline of a loss, and the gain from knowing the target (POC-13)."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sluice.workloads.constant_baseline import (
    constant_baseline_loss,
    grouped_constant_loss,
    measure_constant_baseline,
)
from tests.support.plain import Plain, normal

Z = normal(512, 1)
CLASSES = torch.arange(500) % 10
RARE = (torch.arange(500) % 50 == 0).long()


def two_output_shape(y):
    return (len(y), 2)


def cross_entropy(output, y):
    return F.cross_entropy(output, y, reduction="none")


def gaussian_loss(output, y):
    return 0.5 * (output[:, 1] + (y[:, 0] - output[:, 0]) ** 2 / output[:, 1].exp())


def pinball_loss(output, y):
    return torch.maximum(0.9 * (y - output), 0.1 * (output - y)).mean(dim=1)


def entropy(share):
    return -share * math.log(share) - (1 - share) * math.log(1 - share)


@pytest.mark.parametrize(
    ("workload", "y", "expected"),
    [
        (Plain(), Z + 1e4, float((Z + 1e4).double().var(correction=0))),
        (
            Plain(losses=lambda o, y: (o - y).abs().mean(dim=1)),
            Z,
            float((Z - Z.median()).abs().mean()),
        ),
        (
            Plain(losses=pinball_loss),
            Z,
            float(pinball_loss(Z.quantile(0.9).expand_as(Z), Z).mean()),
        ),
        (Plain(losses=cross_entropy, shape=lambda y: (len(y), 10)), CLASSES, math.log(10)),
        (Plain(losses=cross_entropy, shape=two_output_shape), RARE, entropy(0.02)),
        (
            Plain(
                losses=lambda o, y: F.binary_cross_entropy_with_logits(o, y, reduction="none").mean(
                    dim=1
                )
            ),
            RARE[:, None].float(),
            entropy(0.02),
        ),
        (
            Plain(losses=gaussian_loss, shape=two_output_shape),
            5 + 2 * Z,
            0.5 * (math.log(4 * float(Z.double().var(correction=0))) + 1),
        ),
    ],
    ids=["squared", "absolute", "pinball", "classes", "rare class", "binary", "gaussian"],
)
def test_constant_loss_equals_the_closed_form(workload, y, expected):
    assert constant_baseline_loss(workload, y) == pytest.approx(expected, rel=2e-4)


def test_float32_class_weights_are_supported():
    weight = torch.tensor([1.0, 5.0])
    weighted = Plain(
        losses=lambda o, y: F.cross_entropy(o, y, weight=weight, reduction="none"),
        shape=two_output_shape,
    )

    share = 0.02 * 5 / (0.02 * 5 + 0.98)
    assert constant_baseline_loss(weighted, RARE) == pytest.approx(entropy(share) * 1.08, rel=1e-4)


def test_grouped_loss_decreases_with_finer_groups():
    y, workload = Z[:60], Plain()

    losses = [
        grouped_constant_loss(workload, y, np.arange(60) % groups) for groups in (1, 2, 4, 12, 60)
    ]

    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(0, abs=1e-12)


def test_unit_scales_with_the_loss_and_ignores_its_offset():
    plain = measure_constant_baseline(Plain(), Z)
    scaled = measure_constant_baseline(
        Plain(losses=lambda o, y: 3 * (o - y).square().mean(1) + 7), Z
    )

    assert plain.unit == pytest.approx(plain.loss)
    assert scaled.unit == pytest.approx(3 * plain.unit, rel=1e-6)
    assert scaled.loss == pytest.approx(3 * plain.loss + 7, rel=1e-6)


def test_unit_excludes_the_minimum_loss_of_label_smoothing():
    smoothed = Plain(
        losses=lambda o, y: F.cross_entropy(o, y, reduction="none", label_smoothing=0.1),
        shape=lambda y: (len(y), 10),
    )
    minimum_loss = -0.91 * math.log(0.91) - 9 * 0.01 * math.log(0.01)

    baseline = measure_constant_baseline(smoothed, CLASSES)

    assert baseline.loss - baseline.unit == pytest.approx(minimum_loss, rel=1e-3)


@pytest.mark.parametrize("zero_share", [0.0, 0.6])
def test_unbounded_gaussian_loss_has_a_moderate_unit(zero_share):
    """Targets that are mostly 0 would let a Gaussian with a tiny variance reach any loss."""
    y = torch.where(torch.arange(512)[:, None] < zero_share * 512, 0.0, Z.abs())

    baseline = measure_constant_baseline(Plain(losses=gaussian_loss, shape=two_output_shape), y)

    assert 0.3 < baseline.unit < 4


@pytest.mark.parametrize(
    ("workload", "y", "problem"),
    [
        (Plain(), torch.ones(50, 1), "all equal"),
        (Plain(losses=lambda _, y: y.square().mean(1)), Z, "no lower"),
        (Plain(losses=lambda o, y: o[:, :, 0] - y), Z, "does not accept a constant"),
        (Plain(losses=lambda o, y: (o - y).mean(1) * math.nan), Z, "finite"),
    ],
)
def test_unmeasurable_baseline_has_a_problem_and_a_nan_unit(workload, y, problem):
    baseline = measure_constant_baseline(workload, y)

    assert problem in baseline.problem
    assert math.isnan(baseline.unit)


def test_class_with_one_example_of_4000_is_included():
    y = torch.zeros(4000, dtype=torch.long)
    y[1] = 1

    baseline = measure_constant_baseline(Plain(losses=cross_entropy, shape=two_output_shape), y)

    assert baseline.loss == pytest.approx(entropy(1 / 4000), rel=1e-2)


def token_loss(output, y):
    losses = F.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none")
    return losses.reshape(y.shape).mean(dim=1)


def test_token_baseline_uses_class_shares_per_position():
    y = torch.stack([torch.arange(60) % 2, torch.arange(60) % 3], dim=1)
    workload = Plain(losses=token_loss, shape=lambda y: (*y.shape, 5))

    baseline = measure_constant_baseline(workload, y)

    assert baseline.loss == pytest.approx((math.log(2) + math.log(3)) / 2, rel=1e-3)
    assert baseline.unit == pytest.approx(baseline.loss, rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(("length", "vocabulary", "rows"), [(64, 512, 32), (128, 50_000, 2)])
def test_large_outputs_are_evaluated_on_fewer_examples(length, vocabulary, rows):
    """A language model with 50,000 tokens has 6.4 million logits per block of 128 tokens."""
    y = torch.randint(vocabulary, (512, length), generator=torch.Generator().manual_seed(0))
    batch_sizes = []

    def losses(output, y):
        batch_sizes.append(len(output))
        return token_loss(output, y)

    baseline = measure_constant_baseline(
        Plain(losses=losses, shape=lambda y: (*y.shape, vocabulary)), y
    )

    assert set(batch_sizes) == {rows}
    assert len(batch_sizes) < 150  # about 1,000 for small outputs
    assert baseline.loss == pytest.approx(math.log(rows), rel=0.1)
    assert baseline.unit == pytest.approx(baseline.loss, rel=0.1)
