"""The yardstick of a loss: best constant output and what knowing the target is worth (POC-13)."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sluice.workloads.constant_baseline import measure_yardstick, table_loss, trivial_loss
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
    assert trivial_loss(workload, y) == pytest.approx(known, rel=2e-4)


def test_class_weights_in_single_precision_are_no_obstacle():
    weight = torch.tensor([1.0, 5.0])
    weighted = Plain(
        losses=lambda o, y: F.cross_entropy(o, y, weight=weight, reduction="none"),
        shape=two_values,
    )

    share = 0.02 * 5 / (0.02 * 5 + 0.98)
    assert trivial_loss(weighted, RARE) == pytest.approx(entropy(share) * 1.08, rel=1e-4)


def test_more_groups_never_cost_more():
    y, workload = Z[:60], Plain()

    losses = [table_loss(workload, y, np.arange(60) % groups) for groups in (1, 2, 4, 12, 60)]

    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(0, abs=1e-12)


def test_zero_and_unit_follow_the_scale_of_a_loss_and_the_unit_ignores_its_offset():
    plain = measure_yardstick(Plain(), Z)
    moved = measure_yardstick(Plain(losses=lambda o, y: 3 * (o - y).square().mean(1) + 7), Z)

    assert plain.unit == pytest.approx(plain.trivial)
    assert moved.unit == pytest.approx(3 * plain.unit, rel=1e-6)
    assert moved.trivial == pytest.approx(3 * plain.trivial + 7, rel=1e-6)


def test_smoothed_labels_have_a_lowest_loss_above_zero():
    smoothed = Plain(
        losses=lambda o, y: F.cross_entropy(o, y, reduction="none", label_smoothing=0.1),
        shape=lambda y: (len(y), 10),
    )
    lowest = -0.91 * math.log(0.91) - 9 * 0.01 * math.log(0.01)

    yardstick = measure_yardstick(smoothed, CLASSES)

    assert yardstick.trivial - yardstick.unit == pytest.approx(lowest, rel=1e-3)


@pytest.mark.parametrize("zeros", [0.0, 0.6])
def test_a_loss_without_a_lower_end_has_a_moderate_unit(zeros):
    """Also where most targets are exactly 0, which a Gaussian could describe without end."""
    y = torch.where(torch.arange(512)[:, None] < zeros * 512, 0.0, Z.abs())

    yardstick = measure_yardstick(Plain(losses=gaussian, shape=two_values), y)

    assert 0.3 < yardstick.unit < 4


@pytest.mark.parametrize(
    ("workload", "y", "problem"),
    [
        (Plain(), torch.ones(50, 1), "all equal"),
        (Plain(losses=lambda _, y: y.square().mean(1)), Z, "no lower"),
        (Plain(losses=lambda o, y: o[:, :, 0] - y), Z, "does not take one constant"),
        (Plain(losses=lambda o, y: (o - y).mean(1) * math.nan), Z, "finite"),
    ],
)
def test_what_cannot_be_measured_is_said_and_not_guessed(workload, y, problem):
    yardstick = measure_yardstick(workload, y)

    assert problem in yardstick.problem
    assert math.isnan(yardstick.unit)


def test_a_class_too_rare_for_the_sample_still_counts():
    y = torch.zeros(4000, dtype=torch.long)
    y[1] = 1

    yardstick = measure_yardstick(Plain(losses=cross_entropy, shape=two_values), y)

    assert yardstick.trivial == pytest.approx(entropy(1 / 4000), rel=1e-2)
