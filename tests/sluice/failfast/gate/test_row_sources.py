"""The gate treats rows that are read when they are needed as it treats tensors."""

import pytest

from sluice.config.poc_settings import PocSettings
from sluice.failfast.gate.inputs import GateInputs
from sluice.failfast.gate.run import run_gate
from sluice.models.settings import ModelSettings
from sluice.training.settings import TrainSettings
from sluice.workloads.digits import DigitsWorkload
from sluice.workloads.examples import Examples
from tests.support.lazy_rows import (
    BrokenRow,
    DependsOnSplit,
    DictDigits,
    DictWithoutWrapper,
    LazyDigits,
    NotFinite,
)


@pytest.fixture
def report(tmp_path, clock):
    def run(workload, *, level="full", served=False):
        inputs = GateInputs(
            workload=workload,
            model_settings=ModelSettings(architecture="mlp", hidden=16),
            train_settings=TrainSettings(learning_rate=1e-2),
            settings=PocSettings(),
            seed=0,
            folder=tmp_path,
            clock=clock,
            is_served=served,
        )
        return {result.name: result for result in run_gate(inputs, level=level).results}

    return run


@pytest.mark.slow
def test_lazy_rows_get_the_same_results_as_a_tensor(report):
    LazyDigits.sources.clear()
    lazy, whole = report(LazyDigits()), report(DigitsWorkload())

    assert {name: found.outcome for name, found in lazy.items()} == {
        name: found.outcome for name, found in whole.items()
    }
    for name in ("mini_training_lowers_loss", "model_overfits_one_batch"):
        assert lazy[name].numbers == pytest.approx(whole[name].numbers)
    requests = [rows for source in LazyDigits.sources for rows in source.requests]
    num_train = lazy["features_are_valid"].numbers["train_examples"]
    assert "256 train examples were read" in lazy["features_are_valid"].summary
    assert requests
    assert max(requests) <= max(PocSettings().signal_rows, PocSettings().mini_rows)
    assert num_train > 256


@pytest.mark.slow
def test_dict_inputs_pass_the_whole_gate(report):
    found = report(DictDigits())

    assert [r.summary for r in found.values() if r.outcome not in ("pass", "warn")] == []
    assert "'mask': (32, 64)" in found["model_runs_on_real_batch"].summary


def test_a_source_with_too_few_rows_is_named(report):
    found = report(BrokenRow(), level="minimum")["features_are_valid"]

    assert found.outcome == "fail"
    assert "Unreadable must return a tensor with 256 entries" in found.summary


def test_a_plain_dict_is_refused_with_the_fix(report):
    found = report(DictWithoutWrapper(), level="minimum")["features_are_valid"]

    assert found.outcome == "fail"
    assert "x must be a tensor or a row source, got a dict; wrap it in DictRows" in found.summary


def test_a_stream_is_refused_with_the_command_that_packs_it(report):
    class Streamed(DigitsWorkload):
        def examples(self, frame, rows):
            found = super().examples(frame, rows)
            return Examples(x=iter(found.x), y=found.y, rows=found.rows)

    found = report(Streamed(), level="minimum")["features_are_valid"]

    assert found.outcome == "fail"
    assert "got the stream" in found.summary
    assert "sluice pack SOURCE DIR" in found.summary


def test_lazy_rows_that_depend_on_their_split_are_found(report):
    found = report(DependsOnSplit())["examples_do_not_depend_on_split"]

    assert found.outcome == "fail"


def test_non_finite_lazy_rows_are_found(report):
    found = report(NotFinite(), level="minimum")["features_are_valid"]

    assert found.outcome == "fail"
    assert "x must be finite" in found.summary
