"""Benchmark faults of data, texts and losses, and their twins (TRACE-2, 3, 14)."""

import pytest

from sluice.bench.tracer.case import CaseSetup
from sluice.bench.tracer.faults import data, losses, tokens
from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge
from sluice.trace.trace_reader import find_traces, read_trace

CASES = {case.name: case for case in (*data.CASES, *losses.CASES, *tokens.CASES)}

QUICK = (
    "labels permuted",
    "validation rows are not scaled",
    "train-validation leakage",
    "an input value is NaN or infinite",
    "a column is filled with zeros",
    "truncation cuts the answers",
    "a token outside the vocabulary",
    "targets broadcast against outputs",
)
"""Cases of the slow suite; the others run in the exhaustive suite only."""

pytestmark = pytest.mark.filterwarnings("ignore:Using a target size")


def mark_by_cost(name):
    mark = pytest.mark.slow if name in QUICK else pytest.mark.exhaustive
    return pytest.param(name, marks=mark)


def error_diagnoses(trace):
    return [d for d in diagnose(judge(trace)) if d.finding.severity == "error"]


@pytest.fixture
def run(trace_of, tmp_path):
    def run_case(case, net, *, has_fault, seed=3):
        setup = CaseSetup(net=net, seed=seed, folder=tmp_path, has_fault=has_fault)
        try:
            return trace_of(lambda: case.program(setup))
        except IndexError:
            assert case.raises
            assert has_fault
            return read_trace(find_traces(tmp_path / "traces")[0])

    return run_case


@pytest.mark.parametrize("name", [mark_by_cost(name) for name in CASES])
def test_a_fault_is_reported_first_and_from_its_first_step_on(run, name):
    case = CASES[name]

    first, *others = error_diagnoses(run(case, case.nets[0], has_fault=True))

    assert first.fault in case.correct_causes
    assert abs(first.step - case.starts_at) <= case.max_late_steps
    assert others == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_the_same_program_without_its_fault_has_no_error(run, name):
    case = CASES[name]

    assert error_diagnoses(run(case, case.nets[-1], has_fault=False)) == []
