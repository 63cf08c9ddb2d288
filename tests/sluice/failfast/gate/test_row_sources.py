"""The gate checks row sources, which are read on demand, in the same way as tensors."""

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
def run_all_checks(tmp_path, clock):
    def run(workload, *, level="full"):
        inputs = GateInputs(
            workload=workload,
            model_settings=ModelSettings(architecture="mlp", hidden=16),
            train_settings=TrainSettings(learning_rate=1e-2),
            settings=PocSettings(),
            seed=0,
            folder=tmp_path,
            clock=clock,
            is_served=False,
        )
        return {result.name: result for result in run_gate(inputs, level=level).results}

    return run


@pytest.mark.slow
def test_lazy_rows_get_the_same_results_as_a_tensor(run_all_checks):
    LazyDigits.sources.clear()
    lazy, eager = run_all_checks(LazyDigits()), run_all_checks(DigitsWorkload())

    assert {name: result.outcome for name, result in lazy.items()} == {
        name: result.outcome for name, result in eager.items()
    }
    for name in ("mini_training_lowers_loss", "model_overfits_one_batch"):
        assert lazy[name].numbers == pytest.approx(eager[name].numbers)
    requests = [rows for source in LazyDigits.sources for rows in source.requests]
    num_train = lazy["features_are_valid"].numbers["train_examples"]
    assert "256 train examples were read" in lazy["features_are_valid"].summary
    assert requests
    assert max(requests) <= max(PocSettings().signal_rows, PocSettings().mini_rows)
    assert num_train > 256


@pytest.mark.slow
def test_dict_inputs_pass_the_whole_gate(run_all_checks):
    results = run_all_checks(DictDigits())

    assert [r.summary for r in results.values() if r.outcome not in ("pass", "warn")] == []
    assert "'mask': (32, 64)" in results["model_runs_on_real_batch"].summary


def test_a_source_that_returns_too_few_rows_is_named(run_all_checks):
    result = run_all_checks(BrokenRow(), level="minimum")["features_are_valid"]

    assert result.outcome == "fail"
    assert "ShortRows must return a tensor with 256 entries" in result.summary


def test_a_plain_dict_is_refused_with_the_fix(run_all_checks):
    result = run_all_checks(DictWithoutWrapper(), level="minimum")["features_are_valid"]

    assert result.outcome == "fail"
    assert "x must be a tensor or a row source, got a dict; wrap it in DictRows" in result.summary


def test_a_stream_is_refused_with_the_command_that_packs_it(run_all_checks):
    class Streamed(DigitsWorkload):
        def examples(self, frame, rows):
            examples = super().examples(frame, rows)
            return Examples(x=iter(examples.x), y=examples.y, rows=examples.rows)

    result = run_all_checks(Streamed(), level="minimum")["features_are_valid"]

    assert result.outcome == "fail"
    assert "got the stream" in result.summary
    assert "sluice pack SOURCE DIR" in result.summary


def test_lazy_rows_that_depend_on_their_split_are_found(run_all_checks):
    result = run_all_checks(DependsOnSplit())["examples_do_not_depend_on_split"]

    assert result.outcome == "fail"


def test_non_finite_lazy_rows_are_found(run_all_checks):
    result = run_all_checks(NotFinite(), level="minimum")["features_are_valid"]

    assert result.outcome == "fail"
    assert "x must be finite" in result.summary
