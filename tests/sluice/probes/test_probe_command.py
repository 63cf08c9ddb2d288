"""``sluice trace probe`` (TRACE-3 to TRACE-7, TRACE-11)."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from sluice.cli.app import run_command
from sluice.probes.library import PROBES
from sluice.workloads.examples import Examples
from tests.sluice.probes.test_causality import Speaker
from tests.sluice.probes.test_gradients import WrongSquare
from tests.sluice.probes.test_tokenizers import Words
from tests.support.echo import Echo


class Faulty(Echo):
    """Its network drops in evaluation mode; its tokenizers differ."""

    causal = False

    def tokenizers(self):
        return Words(), Words(lower=False)

    def build_model(self, num_features, num_outputs, settings):
        del settings
        return Dropping(num_features, num_outputs)


class Crooked(Echo):
    """A function of its own has a wrong gradient."""

    def custom_functions(self):
        return {"WrongSquare": (WrongSquare.apply, (torch.ones(3),))}


class Noisy(Echo):
    def compute_features(self, raw):
        frame = super().compute_features(raw)
        return frame.assign(call=frame["call"] + np.random.normal(size=len(frame)))  # noqa: NPY002


class Speech(Echo):
    """Which word comes next; rows end in padding, the token 0."""

    scale_inputs = scale_target = False
    pad_id = 0
    mask = "causal"

    def examples(self, frame, rows):
        del frame
        generator = torch.Generator().manual_seed(0)
        spoken = torch.randint(1, 20, (len(rows), 8), generator=generator)
        spoken[1::2, 5:] = 0
        return Examples(x=spoken[:, :-1], y=spoken[:, 1:], rows=np.arange(rows.start, rows.stop))

    def output_shape(self, y):
        return (*y.shape, 20)

    def build_model(self, num_features, num_outputs, settings):
        del num_features, num_outputs, settings
        return Speaker(self.mask)

    def loss(self, output, y):
        return nn.functional.cross_entropy(output.flatten(0, 1), y.flatten(), ignore_index=0)


class Indiscreet(Speech):
    mask = "none"


class Raises(Echo):
    def load_rows(self):
        raise OSError("no such disk")


class OddTokenizers(Echo):
    def tokenizers(self):
        return "one"


class Dropping(nn.Module):
    def __init__(self, num_features, num_outputs):
        super().__init__()
        self.head = nn.Linear(num_features, num_outputs)

    def forward(self, x):
        return self.head(nn.functional.dropout(x[:, -1]))


HERE = "tests.sluice.probes.test_probe_command"


def answers(command, capsys):
    code = run_command(["trace", "probe", *command, "--json"])
    return code, {one["name"]: one for one in json.loads(capsys.readouterr().out)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        "digits",
        "sp500_volatility",
        # As anybody's workload: with the default network instead of the pipeline's.
        pytest.param("sluice.workloads.digits:DigitsWorkload", marks=pytest.mark.exhaustive),
        pytest.param("sluice.workloads.bars:BarsWorkload", marks=pytest.mark.exhaustive),
    ],
)
def test_the_shipped_workloads_pass(target, capsys):
    code, found = answers([target], capsys)

    assert code == 0
    assert list(found) == list(PROBES)
    passed = {name for name, one in found.items() if one["outcome"] == "pass"}
    assert passed == {"gradients", "schedule", "modes", "seeds", "shards"}
    assert {one["outcome"] for one in found.values()} == {"pass", "skipped"}
    assert all(one["seen"] for one in found.values())


def test_faults_leave_with_one_and_say_what_to_do(capsys):
    target = [f"{HERE}:Faulty", "--only", "tokenizers,modes,causality"]

    code, found = answers(target, capsys)
    assert code == 1
    assert {name: one["outcome"] for name, one in found.items()} == {
        "causality": "skipped",
        "tokenizers": "fail",
        "modes": "fail",
    }

    assert run_command(["trace", "probe", *target]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "why: Dropout is still on" in said
    assert "do: Serve the tokenizer that was stored" in said


def test_a_named_probe_without_a_result_leaves_with_one(capsys):
    code, found = answers([f"{HERE}:Echo", "--only", "causality"], capsys)

    assert found["causality"]["outcome"] == "skipped"
    assert code == 1


@pytest.mark.parametrize(("workload", "outcome"), [("Speech", "pass"), ("Indiscreet", "fail")])
def test_a_workload_of_tokens(workload, outcome, capsys):
    only = "causality,padding,gradients,modes,shards"
    code, found = answers([f"{HERE}:{workload}", "--only", only], capsys)

    assert code == (outcome == "fail")
    assert {name: one["outcome"] for name, one in found.items()} == {
        "causality": outcome,
        "padding": outcome,
        "gradients": "pass",
        "modes": "pass",
        "shards": "pass",
    }
    assert "8 of 56 positions are padding" in found["padding"]["seen"]


@pytest.mark.parametrize(
    ("workload", "probe", "said"),
    [("Crooked", "gradients", "input 0"), ("Noisy", "seeds", "compute_features draws from NumPy")],
)
def test_what_a_workload_offers_is_asked(workload, probe, said, capsys):
    code, found = answers([f"{HERE}:{workload}", "--only", probe], capsys)

    assert code == 1
    assert said in found[probe]["seen"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([f"{HERE}:Echo", "--only", "causalty"], "Did you mean 'causality'?"),
        ([f"{HERE}:Nobody"], "has no 'Nobody'"),
        (["sp500_volatilty"], "Did you mean 'sp500_volatility'"),
        ([f"{HERE}:Raises"], "OSError: no such disk"),
        ([f"{HERE}:OddTokenizers", "--only", "tokenizers"], "must return (training, serving)"),
    ],
)
def test_a_mistake_of_the_users_leaves_with_two(command, said, capsys):
    assert run_command(["trace", "probe", *command]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
