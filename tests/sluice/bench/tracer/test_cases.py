"""The programs of the fault benchmark: the healthy ones learn and are left alone (TRACE-16)."""

import statistics

import pytest
import torch

from sluice.bench.tracer.case import CaseSetup
from sluice.bench.tracer.faults.library import FAULT_CASES
from sluice.bench.tracer.healthy.library import HEALTHY_CASES
from sluice.bench.tracer.healthy.steps import real_points
from sluice.trace.rules.library import judge
from sluice.trace.rules.modes.training_in_eval_mode import TRAINING_IN_EVAL_MODE
from sluice.trace.rules.optimizers.parameters_not_optimized import PARAMETERS_NOT_OPTIMIZED

LEARNS_LESS = {
    "GAN": 10.0,  # two losses against each other: see below
    "frozen backbone": 1.0,  # begins anew with other classes: see below
    "loss scale that overflows at first": 0.7,
}
FALLS = 0.8
"""A healthy loss ends below this share of what it was at first."""


QUICK = (2, 4, 6, 7, 10, 12, 13, 16, 18)
"""Numbers of healthy programs that are tried in every run of the tests, on one network."""


def programs(*, are_quick):
    return [
        pytest.param(case, net, id=f"{case.name}, {net}")
        for case in HEALTHY_CASES
        for net in case.nets
        if are_quick == (case.number in QUICK and net == case.nets[0])
    ]


def check(trace_of, tmp_path, case, net):
    (tmp_path / "own").mkdir()
    setup = CaseSetup(net=net, seed=0, folder=tmp_path / "own", has_fault=False)
    trace = trace_of(lambda: case.program(setup))

    losses = [loss for scalars in trace.scalars for loss in scalars.losses]
    if case.name == "frozen backbone":
        losses = losses[60:]
    tenth = len(losses) // 10
    before, after = statistics.fmean(losses[:tenth]), statistics.fmean(losses[-tenth:])
    assert after < before - (1 - LEARNS_LESS.get(case.name, FALLS)) * abs(before)
    assert [f for f in judge(trace) if f.severity == "error"] == []
    return trace


@pytest.mark.slow
@pytest.mark.parametrize(("case", "net"), programs(are_quick=True))
def test_a_healthy_program_learns_and_has_no_error(trace_of, tmp_path, case, net):
    check(trace_of, tmp_path, case, net)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("case", "net"), programs(are_quick=False))
def test_the_others_do_on_all_networks(trace_of, tmp_path, case, net):
    check(trace_of, tmp_path, case, net)


def test_all_nineteen_healthy_ones_are_there():
    assert [case.number for case in HEALTHY_CASES] == list(range(1, 20))


def test_faults_are_in_order_and_have_three_networks_or_say_why():
    numbers = [case.number for case in FAULT_CASES]
    assert numbers == sorted(numbers)
    assert len({case.name for case in FAULT_CASES}) == len(numbers)
    assert all(
        case.correct_causes and case.nets and case.max_late_steps >= 1 for case in FAULT_CASES
    )


@pytest.mark.slow
def test_the_gan_comes_nearer_to_the_points_it_is_shown(tmp_path):
    case = next(case for case in HEALTHY_CASES if case.name == "GAN")
    maker, _ = case.program(CaseSetup(net="mlp", seed=0, folder=tmp_path, has_fault=False))
    with torch.no_grad():
        made = maker(torch.randn(500, 4)).mean(0)

    real = real_points(500).mean(0)
    assert (made - real).norm() < 0.5 * real.norm()


@pytest.mark.slow
def test_a_frozen_backbone_in_evaluation_mode_after_a_first_phase_is_no_question(
    trace_of, tmp_path
):
    case = next(case for case in HEALTHY_CASES if case.name == "frozen backbone")
    trace = trace_of(
        lambda: case.program(CaseSetup(net="cnn", seed=0, folder=tmp_path, has_fault=False))
    )

    assert PARAMETERS_NOT_OPTIMIZED(trace) == TRAINING_IN_EVAL_MODE(trace) == ()


@pytest.mark.slow
def test_permuted_labels_that_follow_the_inputs_by_chance_are_told(trace_of, tmp_path):
    """Of these the strongest relation of one feature lies more than 3 deviations above shuffled."""
    case = next(case for case in FAULT_CASES if case.number == 5)
    setup = CaseSetup(net="mlp", seed=111, folder=tmp_path, has_fault=True)

    found = judge(trace_of(lambda: case.program(setup)))

    told = next(f for f in found if f.fault == "shuffled labels")
    assert told.severity == "error"
    assert 3 < told.evidence["deviations"] < 4
