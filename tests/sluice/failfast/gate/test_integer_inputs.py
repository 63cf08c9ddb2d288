"""Pixels as bytes and token ids as integers pass every check of a pipeline's gate."""

import pytest

from sluice.config.poc_settings import PocSettings
from sluice.failfast.gate.inputs import GateInputs
from sluice.failfast.gate.run import run_gate
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from tests.support.integer_inputs import ByteDigits, ByteWindows, FloatWords, NoisyBytes, Words


@pytest.fixture
def run_all_checks(tmp_path, clock):
    def run(workload, *, is_served=True):
        inputs = GateInputs(
            workload=workload,
            model_settings=ModelSettings(),
            train_settings=TrainSettings(learning_rate=1e-2),
            settings=PocSettings(),
            seed=0,
            folder=tmp_path,
            clock=clock,
            is_served=is_served,
        )
        return {result.name: result for result in run_gate(inputs, level="full").results}

    return run


@pytest.mark.slow
@pytest.mark.parametrize("workload", [ByteWindows, Words, FloatWords])
def test_integer_inputs_pass_the_whole_gate_of_a_pipeline(run_all_checks, workload):
    results = run_all_checks(workload())

    assert [r.summary for r in results.values() if r.outcome not in ("pass", "warn")] == []
    assert results["targets_depend_on_features"].outcome == "pass"
    assert results["inputs_can_be_served"].outcome == "pass"


@pytest.mark.slow
def test_images_of_bytes_pass_the_whole_gate_of_a_script(run_all_checks):
    results = run_all_checks(ByteDigits(), is_served=False)

    assert [r.summary for r in results.values() if r.outcome not in ("pass", "warn")] == []


@pytest.mark.slow
def test_shuffled_labels_of_images_of_bytes_have_no_signal(run_all_checks):
    assert run_all_checks(NoisyBytes())["targets_depend_on_features"].outcome == "fail"
