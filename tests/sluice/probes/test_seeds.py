"""Draws that no base seed decides (TRACE-6)."""

import numpy as np
import pytest
import torch

from sluice.models.settings import ModelSettings
from sluice.probes.seeds import probe_seeds, result_from_report
from sluice.training.generator_sharing import SharedGenerator
from sluice.training.nondeterminism import NondeterministicOperation
from sluice.training.randomness_report import examine_randomness
from sluice.training.settings import TrainSettings
from tests.support.echo import Echo

LINEAR, SHORT = ModelSettings(architecture="linear"), TrainSettings(max_epochs=1)


class Noisy(Echo):
    """Its features hold noise from a generator that anybody may move."""

    def compute_features(self, raw):
        frame = super().compute_features(raw)
        return frame.assign(call=frame["call"] + np.random.normal(size=len(frame)))  # noqa: NPY002


@pytest.fixture(scope="module")
def report():
    return examine_randomness(Echo(), LINEAR, SHORT, seed=0)


def test_a_seeded_workload_passes(report):
    answer = result_from_report(report)

    assert answer.outcome == "pass"
    assert answer.numbers["sources"] >= 8


def test_a_part_that_draws_from_a_global_generator_is_named():
    state = torch.get_rng_state()
    answer = probe_seeds(Noisy(), LINEAR, SHORT, seed=0)

    assert answer.outcome == "fail"
    assert "compute_features draws from NumPy global" in answer.seen
    assert "derive_seed" in answer.fix
    assert torch.equal(torch.get_rng_state(), state)


def test_a_shared_and_an_unseeded_generator_are_named(report):
    shared = SharedGenerator(users=("dropout", "order"), why="both draw the same numbers")
    answer = result_from_report(report.model_copy(update={"shared": (shared,)}))
    assert answer.outcome == "fail"
    assert "dropout and order: both draw the same numbers" in answer.seen

    torch_source = next(s for s in report.audit.sources if s.name == "torch CPU")
    unseeded = torch_source.model_copy(update={"status": "other seed"})
    audit = report.audit.model_copy(update={"sources": (unseeded,)})
    answer = result_from_report(report.model_copy(update={"audit": audit}))
    assert answer.outcome == "fail"
    assert "torch CPU, other seed" in answer.seen
    assert "other code can change" in answer.why


def test_a_nondeterministic_operation_alone_is_not_blamed_on_other_code(report):
    operation = NondeterministicOperation(
        operation="put_", place="at w.py:3 in loss", num_calls=1, ended_the_run=False
    )
    answer = result_from_report(report.model_copy(update={"nondeterministic": (operation,)}))

    assert answer.outcome == "fail"
    assert "an operation is nondeterministic" in answer.why
    assert answer.fix == "Use an operation that has a deterministic form."
