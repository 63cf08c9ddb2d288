"""The command ``sluice trace probe`` (TRACE-3 to TRACE-7, TRACE-11)."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from sluice.cli.app import run_command
from sluice.probes.library import PROBES
from sluice.workloads.examples import Examples
from tests.sluice.probes.test_causality import LanguageModel
from tests.sluice.probes.test_gradients import WrongSquare
from tests.sluice.probes.test_tokenizers import WordTokenizer
from tests.support.echo import Echo


class Faulty(Echo):
    """The network uses dropout in evaluation mode, and the tokenizers differ."""

    causal = False

    def tokenizers(self):
        return WordTokenizer(), WordTokenizer(lower=False)

    def build_model(self, num_features, num_outputs, settings):
        del settings
        return AlwaysDropout(num_features, num_outputs)


class WrongGradient(Echo):
    """A custom function has a wrong gradient."""

    def custom_functions(self):
        return {"WrongSquare": (WrongSquare.apply, (torch.ones(3),))}


class Noisy(Echo):
    def compute_features(self, raw):
        frame = super().compute_features(raw)
        return frame.assign(call=frame["call"] + np.random.normal(size=len(frame)))  # noqa: NPY002


class TokenWorkload(Echo):
    """Predicts the next token; half of the rows end with padding (token 0)."""

    scale_inputs = scale_target = False
    pad_id = 0
    mask = "causal"

    def examples(self, frame, rows):
        del frame
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(1, 20, (len(rows), 8), generator=generator)
        tokens[1::2, 5:] = 0
        return Examples(x=tokens[:, :-1], y=tokens[:, 1:], rows=np.arange(rows.start, rows.stop))

    def output_shape(self, y):
        return (*y.shape, 20)

    def build_model(self, num_features, num_outputs, settings):
        del num_features, num_outputs, settings
        return LanguageModel(self.mask)

    def loss(self, output, y):
        return nn.functional.cross_entropy(output.flatten(0, 1), y.flatten(), ignore_index=0)


class WithoutCausalMask(TokenWorkload):
    mask = "none"


class UnreadableRows(Echo):
    def load_rows(self):
        raise OSError("no such disk")


class InvalidTokenizers(Echo):
    def tokenizers(self):
        return "one"


class AlwaysDropout(nn.Module):
    def __init__(self, num_features, num_outputs):
        super().__init__()
        self.head = nn.Linear(num_features, num_outputs)

    def forward(self, x):
        return self.head(nn.functional.dropout(x[:, -1]))


MODULE = "tests.sluice.probes.test_probe_command"


def run_json_command(command, capsys):
    """Run the command; return its exit code and the result of each probe by name."""
    code = run_command(["trace", "probe", *command, "--json"])
    return code, {result["name"]: result for result in json.loads(capsys.readouterr().out)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [
        "digits",
        "sp500_volatility",
        # By class: with the default network instead of that of the pipeline.
        pytest.param("sluice.workloads.digits:DigitsWorkload", marks=pytest.mark.exhaustive),
        pytest.param("sluice.workloads.bars:BarsWorkload", marks=pytest.mark.exhaustive),
    ],
)
def test_the_shipped_workloads_pass(target, capsys):
    code, results = run_json_command([target], capsys)

    assert code == 0
    assert list(results) == list(PROBES)
    passed = {name for name, result in results.items() if result["outcome"] == "pass"}
    assert passed == {"gradients", "schedule", "modes", "seeds", "shards"}
    assert {result["outcome"] for result in results.values()} == {"pass", "skipped"}
    assert all(result["seen"] for result in results.values())


def test_faults_exit_with_1_and_print_cause_and_fix(capsys):
    target = [f"{MODULE}:Faulty", "--only", "tokenizers,modes,causality"]

    code, results = run_json_command(target, capsys)
    assert code == 1
    assert {name: result["outcome"] for name, result in results.items()} == {
        "causality": "skipped",
        "tokenizers": "fail",
        "modes": "fail",
    }

    assert run_command(["trace", "probe", *target]) == 1
    message = " ".join(capsys.readouterr().out.split())
    assert "why: Dropout is still on" in message
    assert "do: Serve the tokenizer that was stored" in message


def test_a_selected_probe_that_is_skipped_exits_with_1(capsys):
    code, results = run_json_command([f"{MODULE}:Echo", "--only", "causality"], capsys)

    assert results["causality"]["outcome"] == "skipped"
    assert code == 1


@pytest.mark.parametrize(
    ("workload", "outcome"), [("TokenWorkload", "pass"), ("WithoutCausalMask", "fail")]
)
def test_a_token_workload_fails_without_a_causal_mask(workload, outcome, capsys):
    only = "causality,padding,gradients,modes,shards"
    code, results = run_json_command([f"{MODULE}:{workload}", "--only", only], capsys)

    assert code == (outcome == "fail")
    assert {name: result["outcome"] for name, result in results.items()} == {
        "causality": outcome,
        "padding": outcome,
        "gradients": "pass",
        "modes": "pass",
        "shards": "pass",
    }
    assert "8 of 56 positions are padding" in results["padding"]["seen"]


@pytest.mark.parametrize(
    ("workload", "probe", "message"),
    [
        ("WrongGradient", "gradients", "input 0"),
        ("Noisy", "seeds", "compute_features draws from NumPy"),
    ],
)
def test_custom_functions_and_features_of_a_workload_are_probed(workload, probe, message, capsys):
    code, results = run_json_command([f"{MODULE}:{workload}", "--only", probe], capsys)

    assert code == 1
    assert message in results[probe]["seen"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([f"{MODULE}:Echo", "--only", "causalty"], "Did you mean 'causality'?"),
        ([f"{MODULE}:Missing"], "has no 'Missing'"),
        (["sp500_volatilty"], "Did you mean 'sp500_volatility'"),
        ([f"{MODULE}:UnreadableRows"], "OSError: no such disk"),
        (
            [f"{MODULE}:InvalidTokenizers", "--only", "tokenizers"],
            "must return (training, serving)",
        ),
    ],
)
def test_a_user_error_exits_with_2(command, message, capsys):
    assert run_command(["trace", "probe", *command]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
