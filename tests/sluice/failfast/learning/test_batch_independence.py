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
    """Healthy network with one hidden layer; subclasses change the window in ``change_input``."""

    def __init__(self, num_features: int = 3, num_outputs: int = 1) -> None:
        super().__init__()
        self.first = nn.Linear(6 * num_features, 16)
        self.second = nn.Linear(16, num_outputs)
        self.calls = 0

    def forward(self, x):
        return self.second(torch.relu(self.first(self.change_input(x).flatten(1))))

    def change_input(self, x):
        return x


def make_net_class(change_input):
    return type("PlantedNet", (Net,), {"change_input": change_input})


class Sequence(nn.Module):
    """A recurrent or transformer layer and a linear layer on its last time step."""

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


def run_check(network, *, x=X, y=Y, poc=None, seed=0, **workload):
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
    "dropout by function": make_net_class(
        lambda self, x: F.dropout(x, 0.5, training=self.training)
    ),
    "batch norm": lambda *_: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(18), nn.Linear(18, 1)),
    "gru": gru(batch_first=True),
    "transformer": transformer(batch_first=True),
    "tiny inputs": make_net_class(lambda _, x: 1e-9 * x),
    "constant inputs": make_net_class(lambda _, x: 0 * x),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("seed", range(3))
def test_healthy_models_pass(name, seed):
    assert run_check(HEALTHY[name], seed=seed).outcome == "pass"


@pytest.mark.parametrize("level", [1e3, 1e5, 1e7])
def test_rounding_errors_at_a_high_level_are_not_a_dependence(level):
    finding = run_check(Net, y=level + Y, scale_target=True)

    assert finding.outcome == "pass"


@pytest.mark.parametrize(("steps", "outcome"), [(1, "pass"), (3, "pass"), (8, "fail")])
def test_differences_of_a_few_float32_steps_count_as_rounding(steps, outcome):
    """One float32 step at 10,000 is about 0.5 % of the standard deviation of these outputs."""

    class Rounds(Net):
        def forward(self, x):
            output = 1e4 + super().forward(x)
            return output + steps * 2**-10 * (len(x) == 1)

    assert run_check(Rounds).outcome == outcome


MIXING = {
    "gru": (gru(), "network.layer (GRU) without batch_first=True"),
    "transformer": (transformer(), "without batch_first=True"),
    "centred": (make_net_class(lambda _, x: x - x.mean(0)), "over axis 0"),
    "standardised": (make_net_class(lambda _, x: (x - x.mean(0)) / x.std(0)), "over axis 0"),
    "neighbour": (make_net_class(lambda _, x: x + x.roll(1, 0)), "mixes the examples"),
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
    network, layer_text = MIXING[name]

    finding = run_check(network, seed=seed)

    assert (finding.outcome, finding.fault) == ("fail", "batch dependence")
    cause, fix = finding.response
    assert layer_text in f"{cause} {fix}"
    assert "batch_first=True" in fix
    assert "standard deviations; at most" in finding.summary
    batch_text = "with half of the batch" if "track_running_stats" in layer_text else "alone"
    assert f"when it is predicted {batch_text}" in finding.summary


def test_each_example_of_a_small_batch_is_predicted_alone():
    finding = run_check(MIXING["gru"][0], poc=PocSettings(probe_batch_rows=8))

    assert finding.fault == "batch dependence"
    assert "when it is predicted alone" in finding.summary


def test_tolerance_is_relative_to_the_size_of_the_outputs():
    class Tiny(Net):
        def forward(self, x):
            return 1e-6 * super().forward(x - x.mean(0))

    assert run_check(Tiny).fault == "batch dependence"


def add_number_of_calls(self, x):
    self.calls += 1
    return x + self.calls


def add_unseeded_noise(_, x):
    return x + np.random.default_rng().normal()


@pytest.mark.parametrize(
    "change_input",
    [
        lambda _, x: F.dropout(x, 0.5),
        lambda _, x: x + 0.1 * torch.randn_like(x),
        lambda _, x: x * np.random.default_rng().uniform(0.5, 1.5),
        add_number_of_calls,
        add_unseeded_noise,
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_nondeterministic_model_fails(change_input, seed):
    finding = run_check(make_net_class(change_input), seed=seed)

    assert (finding.outcome, finding.fault) == ("fail", "nondeterministic predictions")
    assert "in a second call" in finding.summary
    assert "training=self.training" in finding.response[1]


def test_constant_outputs_may_differ_only_by_rounding_errors():
    class Constant(Net):
        def forward(self, x):
            return 0 * super().forward(x) + self.calls

        def change_input(self, x):
            return add_number_of_calls(self, x)

    assert "; only rounding errors are allowed) in a second call" in run_check(Constant).summary


def require_two_examples(_self, x):
    if len(x) < 2:
        raise ValueError("at least two examples are needed")
    return x


def require_two_examples_and_centre(_, x):
    return require_two_examples(_, x) - x.mean(0)


@pytest.mark.parametrize(
    ("change_input", "fault"),
    [
        (require_two_examples, None),
        (require_two_examples_and_centre, "batch dependence"),
    ],
)
def test_model_without_support_for_single_examples_is_checked_with_halves(change_input, fault):
    finding = run_check(make_net_class(change_input))

    assert finding.fault == fault
    assert finding.outcome == ("fail" if fault else "pass")


def test_model_that_drops_the_axis_of_a_single_example_is_checked_with_halves():
    class Squeezes(Net):
        def forward(self, x):
            return super().forward(x).squeeze()

    assert run_check(Squeezes, y=Y[:, 0]).outcome == "pass"


def test_tolerance_in_standard_deviations_is_a_setting():
    """A leak of 1 % of the batch mean changes predictions by about 0.01 standard deviations."""

    class Leaks(Net):
        def forward(self, x):
            output = super().forward(x)
            return output + 0.01 * output.mean(0)

    outcomes = [
        run_check(Leaks, poc=PocSettings(batch_independence_tolerance=tolerance)).outcome
        for tolerance in (1e-3, 1e-2, 1e-1, 1.0)
    ]

    assert outcomes[0] == "fail"
    assert outcomes[-1] == "pass"
    assert outcomes == sorted(outcomes)


def test_second_call_uses_another_seed_and_keeps_the_callers_generator():
    model = make_net_class(lambda _, x: F.dropout(x, 0.5))().eval()
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
    finding = run_check(Net, y=Y[:, 0])

    assert finding.fault == "shape mismatch"
    assert "squeeze(-1)" in finding.response[1]
