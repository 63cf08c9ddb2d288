"""Out-of-memory errors name the request, the batch and the first change to try."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from torch import nn

from sluice.base.errors import ContractError, OutOfMemory, TrainingFailed
from sluice.base.out_of_memory import is_out_of_memory, out_of_memory_error
from sluice.evaluation import outputs
from sluice.findings.user_code import outcome_from_error, wrap_user_errors
from sluice.training.fold_run_job import fit_fold_run
from sluice.training.loop import predict, train
from sluice.training.settings import TrainSettings
from tests.sluice.tuning.toy_space import search, settings
from tests.support.synthetic import SineWorkload
from tests.support.toy_search import LR, Toy

TOO_MANY = 1 << 46
"""Floats: 256 TiB, more than the address space of a process."""


class Greedy(nn.Module):
    """Requests too much memory in training or in prediction."""

    def __init__(self, *, while_training: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.layer.recompute = True
        self.while_training = while_training

    def forward(self, x):
        if self.training == self.while_training:
            torch.empty(TOO_MANY)
        return self.layer(x)


class GreedyLoss(SineWorkload):
    """The loss needs more memory than available."""

    def loss(self, output, y):
        return super().loss(output, y) + torch.empty(TOO_MANY).sum()


class GreedyMetrics(SineWorkload):
    """The metrics need more NumPy memory than available."""

    def metrics(self, output, test, frame):  # noqa: ARG002
        return {"mse": float(np.empty(TOO_MANY).sum())}


def squared(output, y):
    return ((output - y) ** 2).mean()


def squared_each(output, y):
    return ((output - y) ** 2).mean(dim=1)


def fit(examples_of_rows, model, **settings):
    rows = examples_of_rows
    settings = TrainSettings(max_epochs=1, **settings)
    return list(train(model, squared, squared_each, rows, rows, settings, seed=0))


@pytest.fixture
def rows():
    from sluice.workloads.examples import Examples

    x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    return Examples(x=x, y=x[:, :1], rows=np.arange(100))


def test_a_step_names_the_request_the_batch_and_what_to_try_first(rows):
    with pytest.raises(OutOfMemory) as caught:
        fit(rows, Greedy(while_training=True), batch_rows=64)

    said = str(caught.value)
    assert "a training step that computes 64 rows at once (training.batch_rows 64" in said
    assert "One allocation requested 262144.00 GiB; " in said
    assert "GiB of main memory were free" in said
    assert "training.micro_batch_rows: 32, halved until it fits; training.precision: bf16" in said
    assert "training.recompute_activations: true" in said
    assert "sluice doctor batch-size PIPELINE" in said
    assert "in Greedy.forward" in said
    assert "Correct" not in said


def test_a_request_of_unknown_size_is_not_mentioned():
    error = out_of_memory_error(MemoryError(), "a training step")

    assert error.what.startswith("Out of memory in a training step: MemoryError (raised at ")
    assert re.search(r"\)\. \d+\.\d\d GiB of main memory were free\.$", error.what)


def test_only_settings_that_still_save_memory_are_named(rows):
    with pytest.raises(OutOfMemory) as caught:
        fit(
            rows,
            Greedy(while_training=True),
            batch_rows=64,
            micro_batch_rows=1,
            precision="bf16",
            recompute_activations=True,
        )

    assert "Try in this order" not in caught.value.fix
    assert "reduce the width or depth of the network" in caught.value.fix


@pytest.mark.parametrize("predicting", [predict, outputs.predict])
def test_predictions_name_their_rows_and_no_training_setting(rows, predicting):
    with pytest.raises(OutOfMemory, match="predicting 100 rows, 100 at once") as caught:
        predicting(Greedy(while_training=False), rows.x)
    assert "micro_batch_rows" not in str(caught.value)
    assert "gradients" not in str(caught.value)


@pytest.mark.parametrize("workload", [GreedyLoss, GreedyMetrics])
def test_a_fold_run_out_of_memory_does_not_blame_a_line(specs, workload):
    (spec,) = specs(max_epochs=1)
    spec = dataclasses.replace(spec, workload=f"{__name__}:{workload.__name__}")
    with pytest.raises(OutOfMemory, match=r"Seed 0, fold 0: Out of memory in ") as caught:
        fit_fold_run(spec, lambda _: None)
    assert "micro_batch_rows" in caught.value.fix
    assert "Correct the named line" not in str(caught.value)


MESSAGES = {
    "python": MemoryError(),
    "numpy": MemoryError("Unable to allocate 8.00 TiB for an array with shape (1099511627776,)"),
    "cpu": RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes."
    ),
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_every_allocator_error_is_detected_in_the_gate_and_in_user_code(name):
    error = MESSAGES[name]
    assert is_out_of_memory(error)

    finding = outcome_from_error(error)
    assert finding.fault == "out of memory"
    assert "training.micro_batch_rows" in finding.fix
    refused = pytest.raises(OutOfMemory, match="Out of memory in compute_features")
    with refused, wrap_user_errors("compute_features"):
        raise error
    if name in ("cpu", "cuda"):
        assert "requested 4.00 GiB" in finding.summary


def test_an_out_of_memory_of_a_step_keeps_its_advice_in_the_gate(rows):
    with pytest.raises(OutOfMemory) as caught:
        fit(rows, Greedy(while_training=True), batch_rows=64)

    finding = outcome_from_error(caught.value)
    assert finding.fault == "out of memory"
    assert "training.micro_batch_rows: 32" in finding.fix


class GreedyTrial(Toy):
    def train(self, schedule, *, start, report_epochs):  # noqa: ARG002
        raise OutOfMemory("Out of memory in a training step.", fix="Try micro_batch_rows: 32.")
        yield  # a generator, as every objective's


def test_a_trial_out_of_memory_names_its_values_and_what_to_try_first(tmp_path):
    """It is not a result of the trial: nothing is recorded, and the trial is repeated."""
    said = rf"The trial with {LR} .*: Out of memory in a training step"
    with pytest.raises(TrainingFailed, match=said) as caught:
        search(tmp_path, settings(4), toy=GreedyTrial())
    assert caught.value.cause == "Try micro_batch_rows: 32."
    assert "Run again" in caught.value.fix
    assert {trial.state for trial in search(tmp_path, settings(4)).trials} <= {"finished", "pruned"}


def test_other_exceptions_are_still_attributed_to_user_code():
    with pytest.raises(ContractError, match="Correct that line"), wrap_user_errors("loss()"):
        raise KeyError("x")
