"""Benchmark faults of structure, masks and precision, their twins, and unusual healthy programs."""

import pytest

from sluice.bench.tracer.case import CaseSetup
from sluice.bench.tracer.faults.masks import MASK_CASES
from sluice.bench.tracer.faults.numerics import NUMERIC_CASES
from sluice.bench.tracer.faults.structure import STRUCTURE_CASES
from sluice.trace.diagnosis import diagnose
from sluice.trace.rules.library import judge
from tests.support.traced.unusual_models import UNUSUAL

CASES = {case.number: case for case in (*STRUCTURE_CASES, *NUMERIC_CASES, *MASK_CASES)}


def root_cause_list(trace):
    return [(d.fault, d.finding.severity, d.step) for d in diagnose(judge(trace))]


def errors(trace):
    return [f.what for f in judge(trace) if f.severity == "error"]


@pytest.mark.parametrize(
    ("number", "net", "seed", "fault", "severity"),
    [
        (11, "mlp", 0, "inverted padding mask", "error"),
        (11, "transformer", 0, "inverted padding mask", "error"),
        (12, "cnn", 0, "future token leak", "error"),
        (16, "mlp", 0, "detached subgraph", "error"),
        (16, "gru", 0, "detached subgraph", "error"),
        (17, "mlp", 0, "unregistered module", "error"),
        (19, "mlp", 0, "unintended freeze", "confirm"),
        (21, "mlp", 1, "detached loss", "error"),
        (24, "cnn", 0, "tied weights broken", "error"),
        (27, "mlp", 0, "gradient underflow", "error"),
        (28, "mlp", 0, "updates lost to rounding", "error"),
        (32, "mlp", 0, "non-finite gradient", "error"),
        (33, "mlp", 0, "constant initialization", "error"),
        (33, "mlp", 1, "dead units", "error"),
    ],
)
def test_a_fault_is_the_first_cause_from_its_first_step_on(
    trace_of, tmp_path, number, net, seed, fault, severity
):
    setup = CaseSetup(net=net, seed=seed, folder=tmp_path)

    found = root_cause_list(trace_of(lambda: CASES[number].program(setup)))

    assert found[0] == (fault, severity, 1)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("number", CASES)
def test_the_twin_without_the_fault_has_no_error(trace_of, tmp_path, number):
    case = CASES[number]
    setup = CaseSetup(net=case.nets[-1], seed=3, folder=tmp_path, has_fault=False)

    assert errors(trace_of(lambda: case.program(setup))) == []


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_healthy_programs_have_no_error(trace_of, name):
    trace = trace_of(UNUSUAL[name])

    assert errors(trace) == []
    assert trace.notes == ()
