"""POC-1: a prediction is reproducible and does not depend on the rest of the batch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sluice.config.poc_settings import PocSettings
from sluice.failfast.learning.batch_independence import find_batch_dependence
from sluice.failfast.learning.instantiation import check_instantiation
from sluice.models.settings import ModelSettings
from tests.support.plain import Plain, examples, normal

X = normal(64, 6, 3)
Y = X[:, -1, :1] - X[:, 0, 1:2]


class Net(nn.Module):
    """Healthy: one hidden layer over the whole window; what is planted changes the window."""

    def __init__(self, num_features: int = 3, num_outputs: int = 1) -> None:
        super().__init__()
        self.first = nn.Linear(6 * num_features, 16)
        self.second = nn.Linear(16, num_outputs)
        self.calls = 0

    def forward(self, x):
        return self.second(torch.relu(self.first(self.planted(x).flatten(1))))

    def planted(self, x):
        return x


def net(planted):
    return type("PlantedNet", (Net,), {"planted": planted})


class Sequence(nn.Module):
    """A recurrent or transformer layer, then the last step."""

    def __init__(self, layer, width):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 1)

    def forward(self, x):
        state = self.layer(x)
        state = state[0] if isinstance(state, tuple) else state
        return self.head(state[:, -1])


def gru(**options):
    return lambda *_: Sequence(nn.GRU(3, 8, **options), 8)


def transformer(**options):
    def build(*_):
        layer = nn.TransformerEncoderLayer(3, 1, 8, **options)
        return Sequence(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 3)

    return build


def checked(network, *, x=X, y=Y, poc=None, seed=0, **workload):
    return check_instantiation(
        Plain(network=network, **workload),
        ModelSettings(),
        examples(x, y),
        poc or PocSettings(),
        seed=seed,
    )


HEALTHY = {
    "plain": Net,
    "dropout by module": lambda *_: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(18, 1)),
    "dropout by function": net(lambda self, x: F.dropout(x, 0.5, training=self.training)),
    "batch norm": lambda *_: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(18), nn.Linear(18, 1)),
    "gru": gru(batch_first=True),
    "transformer": transformer(batch_first=True),
    "low level": net(lambda _, x: 1e-9 * x),
    "constant": net(lambda _, x: 0 * x),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("seed", range(3))
def test_healthy_models_pass(name, seed):
    assert checked(HEALTHY[name], seed=seed).outcome == "pass"


@pytest.mark.parametrize("level", [1e3, 1e5, 1e7])
def test_rounding_at_a_high_level_is_no_dependence(level):
    finding = checked(Net, y=level + Y, scale_target=True)

    assert finding.outcome == "pass"


@pytest.mark.parametrize(("steps", "outcome"), [(1, "pass"), (3, "pass"), (8, "fail")])
def test_a_few_steps_of_the_last_digit_are_rounding(steps, outcome):
    """A step at a level of 10,000 is 1 % of the deviation here."""

    class Rounds(Net):
        def forward(self, x):
            output = 1e4 + super().forward(x)
            return output + steps * 2**-10 * (len(x) == 1)

    assert checked(Rounds).outcome == outcome


MIXING = {
    "gru": (gru(), "network.layer (GRU) without batch_first=True"),
    "transformer": (transformer(), "without batch_first=True"),
    "centred": (net(lambda _, x: x - x.mean(0)), "over axis 0"),
    "standardised": (net(lambda _, x: (x - x.mean(0)) / x.std(0)), "over axis 0"),
    "neighbour": (net(lambda _, x: x + x.roll(1, 0)), "mixes the examples"),
    "batch norm without statistics": (
        lambda *_: nn.Sequential(
            nn.Flatten(), nn.BatchNorm1d(18, track_running_stats=False), nn.Linear(18, 1)
        ),
        "network.1 (BatchNorm1d) with track_running_stats=False",
    ),
}


@pytest.mark.filterwarnings("ignore:std.*degrees of freedom")
@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_mixes_examples_fails_and_the_likely_layer_is_named(name, seed):
    network, named = MIXING[name]

    finding = checked(network, seed=seed)

    assert (finding.outcome, finding.fault) == ("fail", "batch dependence")
    cause, fix = finding.response
    assert named in f"{cause} {fix}"
    assert "batch_first=True" in fix
    assert "standard deviations, at most" in finding.summary
    asked = "with half of the batch" if "track_running_stats" in named else "alone"
    assert f"when it is predicted {asked}" in finding.summary


def test_each_example_of_a_small_batch_is_predicted_alone():
    finding = checked(MIXING["gru"][0], poc=PocSettings(probe_batch_rows=8))

    assert finding.fault == "batch dependence"
    assert "when it is predicted alone" in finding.summary


def test_outputs_of_a_tiny_unit_are_held_to_the_same_measure():
    class Tiny(Net):
        def forward(self, x):
            return 1e-6 * super().forward(x - x.mean(0))

    assert checked(Tiny).fault == "batch dependence"


def stateful(self, x):
    self.calls += 1
    return x + self.calls


def own_generator(_, x):
    return x + np.random.default_rng().normal()


@pytest.mark.parametrize(
    "planted",
    [
        lambda _, x: F.dropout(x, 0.5),
        lambda _, x: x + 0.1 * torch.randn_like(x),
        lambda _, x: x * np.random.default_rng().uniform(0.5, 1.5),
        stateful,
        own_generator,
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_nondeterministic_model_fails(planted, seed):
    finding = checked(net(planted), seed=seed)

    assert (finding.outcome, finding.fault) == ("fail", "nondeterministic predictions")
    assert "in a second call" in finding.summary
    assert "training=self.training" in finding.response[1]


def test_without_a_deviation_only_rounding_errors_are_allowed():
    class Constant(Net):
        def forward(self, x):
            return 0 * super().forward(x) + self.calls

        def planted(self, x):
            return stateful(self, x)

    assert ", only rounding errors are allowed) in a second call" in checked(Constant).summary


def at_least_two(_self, x):
    if len(x) < 2:
        raise ValueError("at least two examples are needed")
    return x


def at_least_two_and_centred(_, x):
    return at_least_two(_, x) - x.mean(0)


@pytest.mark.parametrize(
    ("planted", "kind"), [(at_least_two, None), (at_least_two_and_centred, "batch dependence")]
)
def test_model_without_support_for_single_examples_is_checked_with_halves(planted, kind):
    finding = checked(net(planted))

    assert finding.fault == kind
    assert finding.outcome == ("fail" if kind else "pass")


def test_model_that_drops_the_axis_of_a_single_example_is_checked_with_halves():
    class Squeezes(Net):
        def forward(self, x):
            return super().forward(x).squeeze()

    assert checked(Squeezes, y=Y[:, 0]).outcome == "pass"


def test_the_deviation_is_the_unit_and_the_tolerance_a_setting():
    """Known: adding 1 % of the batch's mean output moves a lone output by about that much."""

    class Leaks(Net):
        def forward(self, x):
            output = super().forward(x)
            return output + 0.01 * output.mean(0)

    outcomes = [
        checked(Leaks, poc=PocSettings(batch_independence_tolerance=tolerance)).outcome
        for tolerance in (1e-3, 1e-2, 1e-1, 1.0)
    ]

    assert outcomes[0] == "fail"
    assert outcomes[-1] == "pass"
    assert outcomes == sorted(outcomes)


def test_it_asks_with_another_seed_and_leaves_the_callers_generators_alone():
    model = net(lambda _, x: F.dropout(x, 0.5))().eval()
    batch = examples(X[:32], Y[:32])
    torch.manual_seed(5)
    output = model(batch.x).detach()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    finding = find_batch_dependence(model, batch, output, PocSettings(), seed=0)

    assert finding.fault == "nondeterministic predictions"
    assert torch.equal(torch.rand(3), expected)


def test_output_with_an_extra_axis_is_reported_with_the_fix():
    finding = checked(Net, y=Y[:, 0])

    assert finding.fault == "shape mismatch"
    assert "squeeze(-1)" in finding.response[1]
