"""POC-13: the constant baseline of a loss, and the gain from knowing the target."""

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


def two_values(y):
    return (len(y), 2)


def cross_entropy(output, y):
    return F.cross_entropy(output, y, reduction="none")


def gaussian(output, y):
    return 0.5 * (output[:, 1] + (y[:, 0] - output[:, 0]) ** 2 / output[:, 1].exp())


def pinball(output, y):
    return torch.maximum(0.9 * (y - output), 0.1 * (output - y)).mean(dim=1)


def entropy(share):
    return -share * math.log(share) - (1 - share) * math.log(1 - share)


@pytest.mark.parametrize(
    ("workload", "y", "known"),
    [
        (Plain(), Z + 1e4, float((Z + 1e4).double().var(correction=0))),
        (
            Plain(losses=lambda o, y: (o - y).abs().mean(dim=1)),
            Z,
            float((Z - Z.median()).abs().mean()),
        ),
        (
            Plain(losses=pinball),
            Z,
            float(pinball(Z.quantile(0.9).expand_as(Z), Z).mean()),
        ),
        (Plain(losses=cross_entropy, shape=lambda y: (len(y), 10)), CLASSES, math.log(10)),
        (Plain(losses=cross_entropy, shape=two_values), RARE, entropy(0.02)),
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
            Plain(losses=gaussian, shape=two_values),
            5 + 2 * Z,
            0.5 * (math.log(4 * float(Z.double().var(correction=0))) + 1),
        ),
    ],
    ids=["squared", "absolute", "pinball", "classes", "rare class", "binary", "gaussian"],
)
def test_the_best_constant_is_the_one_of_the_textbook(workload, y, known):
    assert constant_baseline_loss(workload, y) == pytest.approx(known, rel=2e-4)


def test_class_weights_in_single_precision_are_no_obstacle():
    weight = torch.tensor([1.0, 5.0])
    weighted = Plain(
        losses=lambda o, y: F.cross_entropy(o, y, weight=weight, reduction="none"),
        shape=two_values,
    )

    share = 0.02 * 5 / (0.02 * 5 + 0.98)
    assert constant_baseline_loss(weighted, RARE) == pytest.approx(entropy(share) * 1.08, rel=1e-4)


def test_more_groups_never_cost_more():
    y, workload = Z[:60], Plain()

    losses = [
        grouped_constant_loss(workload, y, np.arange(60) % groups) for groups in (1, 2, 4, 12, 60)
    ]

    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(0, abs=1e-12)


def test_baseline_and_unit_scale_with_the_loss_and_the_unit_ignores_its_offset():
    plain = measure_constant_baseline(Plain(), Z)
    moved = measure_constant_baseline(
        Plain(losses=lambda o, y: 3 * (o - y).square().mean(1) + 7), Z
    )

    assert plain.unit == pytest.approx(plain.loss)
    assert moved.unit == pytest.approx(3 * plain.unit, rel=1e-6)
    assert moved.loss == pytest.approx(3 * plain.loss + 7, rel=1e-6)


def test_smoothed_labels_have_a_lowest_loss_above_zero():
    smoothed = Plain(
        losses=lambda o, y: F.cross_entropy(o, y, reduction="none", label_smoothing=0.1),
        shape=lambda y: (len(y), 10),
    )
    lowest = -0.91 * math.log(0.91) - 9 * 0.01 * math.log(0.01)

    baseline = measure_constant_baseline(smoothed, CLASSES)

    assert baseline.loss - baseline.unit == pytest.approx(lowest, rel=1e-3)


@pytest.mark.parametrize("zeros", [0.0, 0.6])
def test_a_loss_without_a_lower_end_has_a_moderate_unit(zeros):
    """Also where most targets are exactly 0, which a Gaussian could describe without end."""
    y = torch.where(torch.arange(512)[:, None] < zeros * 512, 0.0, Z.abs())

    baseline = measure_constant_baseline(Plain(losses=gaussian, shape=two_values), y)

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
def test_missing_measurement_is_reported_as_insufficient(workload, y, problem):
    baseline = measure_constant_baseline(workload, y)

    assert problem in baseline.problem
    assert math.isnan(baseline.unit)


def test_a_class_too_rare_for_the_sample_still_counts():
    y = torch.zeros(4000, dtype=torch.long)
    y[1] = 1

    baseline = measure_constant_baseline(Plain(losses=cross_entropy, shape=two_values), y)

    assert baseline.loss == pytest.approx(entropy(1 / 4000), rel=1e-2)


def token_loss(output, y):
    losses = F.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none")
    return losses.reshape(y.shape).mean(dim=1)


def test_the_best_constant_of_tokens_has_the_shares_of_each_position():
    y = torch.stack([torch.arange(60) % 2, torch.arange(60) % 3], dim=1)
    workload = Plain(losses=token_loss, shape=lambda y: (*y.shape, 5))

    baseline = measure_constant_baseline(workload, y)

    assert baseline.loss == pytest.approx((math.log(2) + math.log(3)) / 2, rel=1e-3)
    assert baseline.unit == pytest.approx(baseline.loss, rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(("length", "vocabulary", "rows"), [(64, 512, 32), (128, 50_000, 2)])
def test_outputs_of_many_values_are_measured_on_fewer_examples(length, vocabulary, rows):
    """A language model with 50,000 tokens has 6.4 million logits per block of 128 tokens."""
    y = torch.randint(vocabulary, (512, length), generator=torch.Generator().manual_seed(0))
    evaluated = []

    def losses(output, y):
        evaluated.append(len(output))
        return token_loss(output, y)

    baseline = measure_constant_baseline(
        Plain(losses=losses, shape=lambda y: (*y.shape, vocabulary)), y
    )

    assert set(evaluated) == {rows}
    assert len(evaluated) < 150  # 1,000 of small outputs
    assert baseline.loss == pytest.approx(math.log(rows), rel=0.1)
    assert baseline.unit == pytest.approx(baseline.loss, rel=0.1)
