"""POC-8: inputs that no client can send are reported before the training."""

import numpy as np
import pytest
import torch

from sluice.base.errors import ContractError
from sluice.failfast.data.served_inputs import check_served_inputs
from sluice.serving.contract import InputContract
from sluice.serving.deployed import DeployedModel, require_finite
from sluice.workloads.examples import Examples
from sluice.workloads.windows import require_windows
from sluice.workloads.workload import Workload
from tests.support.digits_cnn import Digits
from tests.support.failfast_workloads import Signals
from tests.support.integer_inputs import WORDS, ByteWindows, FloatWords, WordNet, Words


def make_changed_workload(change_x=lambda x: x, change_y=lambda y: y):
    class Changed(Signals):
        def examples(self, frame, rows):
            examples = super().examples(frame, rows)
            return Examples(x=change_x(examples.x), y=change_y(examples.y), rows=examples.rows)

    return Changed()


def make_workload_reading(column):
    class Reading(Signals):
        def examples(self, frame, rows):
            assert len(frame[column]) == len(frame)
            return super().examples(frame, rows)

    return Reading()


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    "workload",
    [
        Signals(),
        make_changed_workload(change_y=lambda y: y[:, 0].long()),
        make_workload_reading(Signals.target_column),
    ],
    ids=["default", "other targets", "reads the target"],
)
def test_windows_can_be_served(workload, required):
    finding = check_served_inputs(workload, required=required)

    assert finding.outcome == "pass"
    assert "as clients send them" in finding.summary


@pytest.mark.parametrize(
    ("workload", "expected_text"),
    [
        (
            make_changed_workload(change_x=lambda x: x[:, -1]),
            "returns the shape (2, 3) instead of (2, 4, 3)",
        ),
        (make_changed_workload(change_x=lambda x: 2 * x), "windows with other values"),
        (make_changed_workload(change_x=lambda x: x.flip(-1)), "windows with other values"),
        (make_changed_workload(change_x=lambda x: x.nothing), "AttributeError for a small table"),
        (make_workload_reading("elsewhere"), "KeyError for a small table"),
        (Digits(), "(2, 1, 8, 8) instead of (2, 1, 64)"),
    ],
)
def test_non_window_inputs_fail_in_a_pipeline_but_not_in_a_script(workload, expected_text):
    with pytest.raises(ContractError) as caught:
        check_served_inputs(workload, required=True)
    assert expected_text in caught.value.what
    assert type(workload).__name__ in caught.value.what
    assert "super().examples()" in caught.value.fix

    finding = check_served_inputs(workload, required=False)
    assert finding.outcome == "pass"
    assert expected_text in finding.summary


@pytest.mark.parametrize(
    ("workload", "line"),
    [
        (Digits(), "x = x.reshape(len(x), 1, 8, 8)"),
        (make_changed_workload(change_x=lambda x: x[:, -1]), "x = x[:, -1]"),
        (make_changed_workload(change_x=lambda x: x.transpose(1, 2)), "x = x.transpose(1, 2)"),
        (make_changed_workload(change_x=lambda x: x.flatten(1)), "x = x.reshape(len(x), 12)"),
    ],
    ids=["images", "last row", "channels first", "flat"],
)
def test_reshaped_inputs_are_reported_with_the_line_for_forward(workload, line):
    with pytest.raises(ContractError) as caught:
        check_served_inputs(workload, required=True)
    assert caught.value.fix.endswith(f"begin the network's forward(self, x) with: {line}")


def test_changed_input_values_are_reported_with_alternatives():
    with pytest.raises(ContractError) as caught:
        check_served_inputs(make_changed_workload(change_x=lambda x: 2 * x), required=True)
    assert "compute_features, or in the network's forward()" in caught.value.fix


def test_windows_of_undeclared_features_can_be_served():
    class Undeclared(Signals):
        feature_schema = Signals.feature_schema.model_copy(update={"columns": ()})

        def examples(self, frame, rows):
            return super().examples(frame, rows)

    assert Undeclared.examples is not Workload.examples
    assert check_served_inputs(Undeclared(), required=True).outcome == "pass"


@pytest.mark.parametrize(
    ("workload", "dtype"),
    [
        (Words(), torch.int64),
        (ByteWindows(), torch.uint8),
        (FloatWords(), torch.float32),
        (Signals(), torch.float32),
        (make_changed_workload(change_y=lambda y: y.long()), torch.float32),
    ],
)
def test_integer_windows_can_be_served_in_the_dtype_of_the_examples(workload, dtype):
    assert check_served_inputs(workload, required=True).outcome == "pass"
    assert require_windows(workload, "it") is dtype


def test_integers_other_than_the_window_values_are_rejected():
    with pytest.raises(ContractError, match="windows with other values"):
        check_served_inputs(make_changed_workload(change_x=lambda x: x.long() + 1), required=True)


def test_a_clients_token_ids_reach_the_network_as_integers():
    deployed = DeployedModel(
        version=1,
        candidate="0" * 64,
        contract=InputContract(columns=WORDS, seq_len=1),
        target="target",
        networks=(WordNet(),),
        input_dtype=torch.int64,
    )

    require_finite(deployed)
    assert deployed.predict(np.full((3, 1, 6), 7, np.float32), None).shape == (1, 3, 1)
