"""Pixels as bytes and token ids as integers pass every check of a pipeline's gate."""

import pytest

from sluice.config.poc_settings import PocSettings
from sluice.failfast.gate.inputs import GateInputs
from sluice.failfast.gate.run import run_gate
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from tests.support.integer_inputs import ByteDigits, ByteWindows, FloatWords, NoisyBytes, Words


@pytest.fixture
def outcomes(tmp_path, clock):
    def run(workload, *, served=True):
        inputs = GateInputs(
            workload=workload,
            model_settings=ModelSettings(),
            train_settings=TrainSettings(learning_rate=1e-2),
            settings=PocSettings(),
            seed=0,
            folder=tmp_path,
            clock=clock,
            is_served=served,
        )
        return {result.name: result for result in run_gate(inputs, level="full").results}

    return run


@pytest.mark.slow
@pytest.mark.parametrize("workload", [ByteWindows, Words, FloatWords])
def test_integer_inputs_pass_the_whole_gate_of_a_pipeline(outcomes, workload):
    found = outcomes(workload())

    assert [r.summary for r in found.values() if r.outcome not in ("pass", "warn")] == []
    assert found["targets_depend_on_features"].outcome == "pass"
    assert found["inputs_can_be_served"].outcome == "pass"


@pytest.mark.slow
def test_images_of_bytes_pass_the_whole_gate_of_a_script(outcomes):
    found = outcomes(ByteDigits(), served=False)

    assert [r.summary for r in found.values() if r.outcome not in ("pass", "warn")] == []


@pytest.mark.slow
def test_shuffled_labels_of_images_of_bytes_have_no_signal(outcomes):
    assert outcomes(NoisyBytes())["targets_depend_on_features"].outcome == "fail"
