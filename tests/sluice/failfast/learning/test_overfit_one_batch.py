"""POC-13: healthy models overfit a tiny batch, and models that cannot are detected."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sluice.config.poc_settings import PocSettings
from sluice.failfast.learning.overfit_one_batch import check_overfit_one_batch
from sluice.models.settings import ModelSettings
from tests.support import failfast_workloads as planted
from tests.support.echo import Echo, SignOnly
from tests.support.plain import Plain, digits, examples, normal
from tests.support.synthetic import SineWorkload

X = normal(300, 4)
Y = X[:, :1] - X[:, 1:2] * X[:, 2:3] + normal(300, 1, seed=1)


def check(workload, rows, *, architecture="gru", hidden=8, seed=0, **poc):
    model = ModelSettings(architecture=architecture, hidden=hidden)
    return check_overfit_one_batch(workload, model, rows, PocSettings(**poc), seed=seed)


def mlp(num_features, num_outputs):
    return nn.Sequential(nn.Linear(num_features, 16), nn.Tanh(), nn.Linear(16, num_outputs))


def conv(_, num_outputs):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(256, num_outputs),
    )


def classes(**options):
    return {
        "losses": lambda o, y: F.cross_entropy(o, y, reduction="none", **options),
        "shape": lambda y: (len(y), 10),
    }


def gaussian(output, y):
    return 0.5 * (output[:, 1] + (y[:, 0] - output[:, 0]) ** 2 / output[:, 1].exp())


@pytest.mark.parametrize(
    "workload", [planted.Signals, planted.OwnNet, Echo, SignOnly, SineWorkload]
)
@pytest.mark.parametrize("architecture", ["linear", "gru", "lstm"])
@pytest.mark.parametrize("num_seeds", [1, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_healthy_models_pass_for_every_seed(load_train_examples, workload, architecture, num_seeds):
    rows = load_train_examples(workload())

    for seed in range(num_seeds):
        finding = check(workload(), rows, architecture=architecture, seed=seed)
        assert finding.outcome == "pass", finding
        assert finding.numbers["num_rows_overfitted"] >= 2


@pytest.mark.parametrize(
    ("workload", "y"),
    [
        (Plain(), Y),
        (Plain(network=mlp), Y),
        (Plain(network=mlp, losses=lambda o, y: (o - y).abs().mean(1)), Y),
        (Plain(network=mlp, losses=gaussian, shape=lambda y: (len(y), 2)), Y),
        (Plain(network=mlp, losses=gaussian, shape=lambda y: (len(y), 2)), 0.01 * Y),
        (Plain(network=mlp, loss=lambda o, y: (o - y).square().sum()), Y),
        (Plain(network=mlp, scale_target=True), 1e4 + 30 * Y),
        (Plain(network=mlp), torch.hstack([Y, -Y, Y**2])),
    ],
    ids=["linear", "mlp", "mae", "gaussian", "small gaussian", "sum", "scaled", "three outputs"],
)
def test_every_kind_of_loss_passes(workload, y):
    assert check(workload, examples(X, y)).outcome == "pass"


@pytest.mark.parametrize("raw", [1.0, 4080.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_images_pass_with_batch_norm_dropout_and_smoothed_labels(raw, smoothing):
    rows = digits()
    rows = examples(rows.x * raw, rows.y)

    finding = check(Plain(network=conv, **classes(label_smoothing=smoothing)), rows)

    assert (finding.outcome, finding.numbers["num_rows"]) == ("pass", 8), finding


def test_tokens_pass():
    class Bag(nn.Module):
        def __init__(self, _, num_outputs):
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, num_outputs)

        def forward(self, x):
            return self.head(self.embed(x).mean(dim=1))

    x = torch.randint(0, 50, (200, 6), generator=torch.Generator().manual_seed(0))

    assert check(Plain(network=Bag, **classes()), examples(x, x[:, 0] % 10)).outcome == "pass"


class IgnoresInput(nn.Module):
    """The output does not depend on the input."""

    def __init__(self, num_features, num_outputs):
        super().__init__()
        self.inner = mlp(num_features, num_outputs)

    def forward(self, x):
        return self.inner(torch.zeros_like(x))


class SmallOutputs(nn.Module):
    """The outputs are limited to -0.1..0.1."""

    def __init__(self, num_features, num_outputs):
        super().__init__()
        self.inner = mlp(num_features, num_outputs)

    def forward(self, x):
        return 0.1 * torch.tanh(self.inner(x))


@pytest.mark.parametrize(
    "workload",
    [
        Plain(network=IgnoresInput),
        pytest.param(Plain(network=SmallOutputs), marks=pytest.mark.exhaustive),
        Plain(network=mlp, losses=lambda _, y: y.square().mean(1)),
        Plain(network=mlp, loss=lambda _, y: y.square().mean()),
        Plain(network=mlp, loss=lambda o, y: -(o - y).square().mean()),
    ],
    ids=[
        "input ignored",
        "small outputs",
        "losses ignore the output",
        "loss ignores the output",
        "negated loss",
    ],
)
def test_models_that_cannot_overfit_one_batch_fail(workload):
    finding = check(workload, examples(X, Y))

    assert (finding.outcome, finding.fault) == ("fail", "cannot overfit one batch")


@pytest.mark.slow
def test_dead_units_and_frozen_models_fail(load_train_examples):
    for workload in (planted.DeadLayer(), planted.AllFrozen()):
        finding = check(workload, load_train_examples(workload))
        assert (finding.outcome, finding.fault) == ("fail", "cannot overfit one batch")


def test_a_target_at_an_unreachable_level_fails_with_scale_target_as_fix():
    finding = check(Plain(network=mlp), examples(X, Y + 1e5), overfit_steps=50)

    assert finding.outcome == "fail"
    assert "scale_target" in finding.fix


@pytest.mark.slow
def test_a_model_that_fits_half_the_batch_only_warns():
    class Coarse(nn.Module):
        """Uses only the sign of the first input, so there are at most two outputs."""

        def __init__(self, _, num_outputs):
            super().__init__()
            self.head = nn.Linear(1, num_outputs)

        def forward(self, x):
            return self.head((x[:, :1] > 0).to(x.dtype))

    finding = check(Plain(network=Coarse), examples(X, X[:, :1].sign() + X[:, 1:2]))

    assert (finding.outcome, finding.fault) == ("warn", "cannot overfit one batch")
    assert finding.numbers["num_rows_overfitted"] < finding.numbers["num_rows"]


def test_constant_targets_and_constant_inputs_are_insufficient():
    assert check(Plain(), examples(X, torch.ones(300, 1))).outcome == "insufficient"
    assert check(Plain(), examples(torch.ones(300, 4), Y)).outcome == "insufficient"


def test_reached_loss_is_below_the_share_of_the_constant_baseline():
    for share in (0.5, 0.1, 0.01):
        numbers = check(Plain(network=mlp), examples(X, Y), overfit_loss_share=share).numbers
        assert numbers["reached_loss"] <= share * numbers["constant_baseline_loss"]
        assert numbers["required_loss"] == pytest.approx(share * numbers["constant_baseline_loss"])


def test_too_few_steps_fail():
    outcomes = [
        check(
            Plain(network=mlp), examples(X, Y), overfit_loss_share=1e-4, overfit_steps=steps
        ).outcome
        for steps in (10, 2000)
    ]

    assert outcomes == ["fail", "pass"]


def test_the_same_seed_gives_the_same_numbers_and_keeps_the_global_generator():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)

    first, second = (check(Plain(network=mlp), examples(X, Y), seed=3) for _ in range(2))

    assert first == second
    assert torch.rand(1) == expected


def test_gradient_steps_are_taken_in_eval_mode():
    class RejectsTrainingMode(nn.Linear):
        def forward(self, x):
            assert not (self.training and torch.is_grad_enabled())
            return super().forward(x)

    assert check(Plain(network=RejectsTrainingMode), examples(X, Y)).outcome == "pass"


def test_an_infinite_initial_loss_is_reported_as_non_finite():
    class Infinite(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.inf

    finding = check(Plain(network=Infinite), examples(X, Y))

    assert (finding.outcome, finding.fault) == ("fail", "non-finite loss")
    assert "before the first step" in finding.summary


def test_the_batch_has_overfit_rows_examples_also_above_64():
    x = normal(100, 120)
    finding = check(Plain(), examples(x, x[:, :1]), overfit_rows=80)

    assert finding.numbers["num_rows"] == 80
