"""The probe for random numbers that do not depend on the base seed (TRACE-6)."""

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


class NoisyFeatures(Echo):
    """Features with noise from the global generator of NumPy."""

    def compute_features(self, raw):
        frame = super().compute_features(raw)
        return frame.assign(call=frame["call"] + np.random.normal(size=len(frame)))  # noqa: NPY002


@pytest.fixture(scope="module")
def report():
    return examine_randomness(Echo(), LINEAR, SHORT, seed=0)


def test_a_seeded_workload_passes(report):
    result = result_from_report(report)

    assert result.outcome == "pass"
    assert result.numbers["sources"] >= 8


def test_a_method_that_draws_from_a_global_generator_is_reported():
    state = torch.get_rng_state()
    result = probe_seeds(NoisyFeatures(), LINEAR, SHORT, seed=0)

    assert result.outcome == "fail"
    assert "compute_features draws from NumPy global" in result.seen
    assert "derive_seed" in result.fix
    assert torch.equal(torch.get_rng_state(), state)


def test_a_shared_and_an_unseeded_generator_are_reported(report):
    shared = SharedGenerator(users=("dropout", "order"), why="both draw the same numbers")
    result = result_from_report(report.model_copy(update={"shared": (shared,)}))
    assert result.outcome == "fail"
    assert "dropout and order: both draw the same numbers" in result.seen

    torch_source = next(s for s in report.audit.sources if s.name == "torch CPU")
    unseeded = torch_source.model_copy(update={"status": "other seed"})
    audit = report.audit.model_copy(update={"sources": (unseeded,)})
    result = result_from_report(report.model_copy(update={"audit": audit}))
    assert result.outcome == "fail"
    assert "torch CPU, other seed" in result.seen
    assert "other code can change" in result.why


def test_a_nondeterministic_operation_alone_is_not_blamed_on_other_code(report):
    operation = NondeterministicOperation(
        operation="put_", place="at w.py:3 in loss", num_calls=1, ended_the_run=False
    )
    result = result_from_report(report.model_copy(update={"nondeterministic": (operation,)}))

    assert result.outcome == "fail"
    assert "an operation is nondeterministic" in result.why
    assert result.fix == "Use an operation that has a deterministic implementation."
