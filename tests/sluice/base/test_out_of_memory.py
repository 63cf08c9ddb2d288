"""Out-of-memory errors name the request, the batch and the first setting to change."""

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

TOO_MANY_FLOATS = 1 << 46
"""Number of floats in 256 TiB, more than the address space of a process."""


class Greedy(nn.Module):
    """Network that requests too much memory, either in training or in evaluation mode."""

    def __init__(self, *, while_training: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.layer.recompute = True
        self.while_training = while_training

    def forward(self, x):
        if self.training == self.while_training:
            torch.empty(TOO_MANY_FLOATS)
        return self.layer(x)


class GreedyLoss(SineWorkload):
    """Workload whose loss requests more memory than available."""

    def loss(self, output, y):
        return super().loss(output, y) + torch.empty(TOO_MANY_FLOATS).sum()


class GreedyMetrics(SineWorkload):
    """Workload whose metrics request more NumPy memory than available."""

    def metrics(self, output, test, frame):  # noqa: ARG002
        return {"mse": float(np.empty(TOO_MANY_FLOATS).sum())}


def mean_squared_error(output, y):
    return ((output - y) ** 2).mean()


def squared_errors(output, y):
    return ((output - y) ** 2).mean(dim=1)


def train_model(rows, model, **settings):
    settings = TrainSettings(max_epochs=1, **settings)
    return list(train(model, mean_squared_error, squared_errors, rows, rows, settings, seed=0))


@pytest.fixture
def rows():
    from sluice.workloads.examples import Examples

    x = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    return Examples(x=x, y=x[:, :1], rows=np.arange(100))


def test_training_step_error_names_request_batch_and_first_fix(rows):
    with pytest.raises(OutOfMemory) as caught:
        train_model(rows, Greedy(while_training=True), batch_rows=64)

    message = str(caught.value)
    assert "a training step that computes 64 rows at once (training.batch_rows 64" in message
    assert "One allocation requested 262144.00 GiB; " in message
    assert "GiB of main memory were free" in message
    assert (
        "training.micro_batch_rows: 32, halved until a step fits; training.precision: bf16"
        in message
    )
    assert "training.recompute_activations: true" in message
    assert "sluice doctor batch-size PIPELINE" in message
    assert "in Greedy.forward" in message
    assert "Correct" not in message


def test_error_without_allocation_size_omits_the_request():
    error = out_of_memory_error(MemoryError(), "a training step")

    assert error.what.startswith("Out of memory in a training step: MemoryError (raised at ")
    assert re.search(r"\)\. \d+\.\d\d GiB of main memory were free\.$", error.what)


def test_fix_omits_memory_settings_already_in_use(rows):
    with pytest.raises(OutOfMemory) as caught:
        train_model(
            rows,
            Greedy(while_training=True),
            batch_rows=64,
            micro_batch_rows=1,
            precision="bf16",
            recompute_activations=True,
        )

    assert "Try in this order" not in caught.value.fix
    assert "reduce the width or depth of the network" in caught.value.fix


@pytest.mark.parametrize("predict_function", [predict, outputs.predict])
def test_prediction_error_names_rows_and_no_training_settings(rows, predict_function):
    with pytest.raises(OutOfMemory, match="predicting 100 rows, 100 at once") as caught:
        predict_function(Greedy(while_training=False), rows.x)
    assert "micro_batch_rows" not in str(caught.value)
    assert "gradients" not in str(caught.value)


@pytest.mark.parametrize("workload", [GreedyLoss, GreedyMetrics])
def test_fold_run_error_names_seed_and_fold_and_no_line_to_correct(specs, workload):
    (spec,) = specs(max_epochs=1)
    spec = dataclasses.replace(spec, workload=f"{__name__}:{workload.__name__}")
    with pytest.raises(OutOfMemory, match=r"Seed 0, fold 0: Out of memory in ") as caught:
        fit_fold_run(spec, lambda _: None)
    assert "micro_batch_rows" in caught.value.fix
    assert "Correct the named line" not in str(caught.value)


ALLOCATOR_ERRORS = {
    "python": MemoryError(),
    "numpy": MemoryError("Unable to allocate 8.00 TiB for an array with shape (1099511627776,)"),
    "cpu": RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes."
    ),
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a"),
}


@pytest.mark.parametrize("name", ALLOCATOR_ERRORS)
def test_every_allocator_error_is_reported_as_out_of_memory(name):
    error = ALLOCATOR_ERRORS[name]
    assert is_out_of_memory(error)

    finding = outcome_from_error(error)
    assert finding.fault == "out of memory"
    assert "training.micro_batch_rows" in finding.fix
    raises_out_of_memory = pytest.raises(OutOfMemory, match="Out of memory in compute_features")
    with raises_out_of_memory, wrap_user_errors("compute_features"):
        raise error
    if name in ("cpu", "cuda"):
        assert "requested 4.00 GiB" in finding.summary


def test_gate_finding_keeps_the_fix_of_a_training_step(rows):
    with pytest.raises(OutOfMemory) as caught:
        train_model(rows, Greedy(while_training=True), batch_rows=64)

    finding = outcome_from_error(caught.value)
    assert finding.fault == "out of memory"
    assert "training.micro_batch_rows: 32" in finding.fix


class GreedyTrial(Toy):
    def train(self, schedule, *, start, report_epochs):  # noqa: ARG002
        raise OutOfMemory("Out of memory in a training step.", fix="Try micro_batch_rows: 32.")
        yield  # makes this method a generator


def test_trial_error_names_its_values_and_the_first_fix(tmp_path):
    """The error is not recorded as a result, and the next search repeats the trial."""
    message = rf"The trial with {LR} .*: Out of memory in a training step"
    with pytest.raises(TrainingFailed, match=message) as caught:
        search(tmp_path, settings(4), toy=GreedyTrial())
    assert caught.value.fix.startswith("Try micro_batch_rows: 32.")
    assert "un again" in caught.value.fix
    assert {trial.state for trial in search(tmp_path, settings(4)).trials} <= {"finished", "pruned"}


def test_other_exceptions_are_attributed_to_user_code():
    with pytest.raises(ContractError, match="Correct the named line"), wrap_user_errors("loss()"):
        raise KeyError("x")
