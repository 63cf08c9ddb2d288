"""TRACE-6, REPRO-2: the report lists random and non-deterministic operations of a workload."""

import random

import numpy as np
import pytest
import torch

from sluice.models.settings import ModelSettings
from sluice.training.randomness_report import examine_randomness
from sluice.training.settings import TrainSettings
from tests.support.synthetic import SineWorkload


class Careless(SineWorkload):
    """Rows and metrics draw from global generators; the loss is non-deterministic."""

    def load_rows(self):
        frame = super().load_rows()
        return frame + np.random.normal(size=frame.shape) / 100  # noqa: NPY002

    def loss(self, output, y):
        moved = output.put(torch.arange(2), torch.zeros(2))
        return super().loss(output, y) + 0 * moved.sum()

    def metrics(self, output, examples, frame):  # noqa: ARG002
        return {"loss": random.random() + float(np.random.rand())}  # noqa: NPY002


@pytest.fixture(scope="module")
def careful():
    return examine(SineWorkload())


@pytest.fixture(scope="module")
def careless():
    return examine(Careless())


def examine(workload, seed=4):
    training = TrainSettings(batch_rows=16)
    return examine_randomness(workload, ModelSettings(hidden=4), training, seed=seed)


def test_careful_workload_draws_from_no_global_generator(careful):
    assert [d.operation for d in careful.draws] == [
        "load_rows", "compute_features", "examples", "build_model", "loss and training", "metrics",
    ]  # fmt: skip
    assert {d.moved for d in careful.draws} == {()}
    assert careful.shared == careful.nondeterministic == ()
    assert all("PYTHONHASHSEED" in finding for finding in careful.findings)


def test_every_source_of_randomness_has_its_own_seed(careful):
    sources = {source.name: source for source in careful.audit.sources}

    assert {"Python random", "NumPy global", "torch CPU", "PYTHONHASHSEED"} <= sources.keys()
    derived = [source for name, source in sources.items() if name.startswith("generator of ")]
    assert len({source.detail for source in derived}) == len(derived) == 4
    assert all(s.status == "seeded" for n, s in sources.items() if n != "PYTHONHASHSEED")
    assert all(switch.repeats for switch in careful.audit.switches)


def test_operations_that_draw_from_global_generators_are_named(careless):
    moved = {draw.operation: draw.moved for draw in careless.draws if draw.moved}

    assert moved == {
        "load_rows": ("NumPy global",),
        "metrics": ("Python random", "NumPy global"),
    }
    assert [shared.users for shared in careless.shared] == [("load_rows", "metrics")]
    assert any("metrics uses Python random and NumPy" in f for f in careless.findings)


def test_nondeterministic_operation_is_reported_with_its_line(careless):
    (operation, *_) = careless.nondeterministic

    assert "put" in operation.operation
    assert "test_randomness_report.py" in operation.place
    assert any(operation.place in finding for finding in careless.findings)


def test_report_does_not_advance_the_callers_generators():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    examine(SineWorkload())

    assert torch.equal(torch.rand(1), expected)
    assert not torch.are_deterministic_algorithms_enabled()
