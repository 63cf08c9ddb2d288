"""The programs of the fault benchmark: healthy ones learn and have no errors (TRACE-16)."""

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

MAX_LOSS_RATIOS = {
    "GAN": 10.0,  # two opposed losses; another test checks the generated points
    "frozen backbone": 1.0,  # starts again with other classes, see assert_learns_without_error
    "loss scale that overflows at first": 0.7,
}
MAX_LOSS_RATIO = 0.8
"""Maximum ratio of the final loss of a healthy program to its initial loss."""

QUICK = (2, 4, 6, 7, 10, 12, 13, 16, 18)
"""Numbers of the healthy programs that slow tests run on one network; exhaustive tests run all."""


def programs(*, are_quick):
    return [
        pytest.param(case, net, id=f"{case.name}, {net}")
        for case in HEALTHY_CASES
        for net in case.nets
        if are_quick == (case.number in QUICK and net == case.nets[0])
    ]


def assert_learns_without_error(trace_of, tmp_path, case, net):
    (tmp_path / "own").mkdir()
    setup = CaseSetup(net=net, seed=0, folder=tmp_path / "own", has_fault=False)
    trace = trace_of(lambda: case.program(setup))

    losses = [loss for scalars in trace.scalars for loss in scalars.losses]
    if case.name == "frozen backbone":
        losses = losses[60:]
    tenth = len(losses) // 10
    before, after = statistics.fmean(losses[:tenth]), statistics.fmean(losses[-tenth:])
    assert after < before - (1 - MAX_LOSS_RATIOS.get(case.name, MAX_LOSS_RATIO)) * abs(before)
    assert [f for f in judge(trace) if f.severity == "error"] == []
    return trace


@pytest.mark.slow
@pytest.mark.parametrize(("case", "net"), programs(are_quick=True))
def test_healthy_program_learns_and_has_no_error(trace_of, tmp_path, case, net):
    assert_learns_without_error(trace_of, tmp_path, case, net)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("case", "net"), programs(are_quick=False))
def test_other_healthy_programs_learn_and_have_no_error(trace_of, tmp_path, case, net):
    assert_learns_without_error(trace_of, tmp_path, case, net)


def test_healthy_programs_are_numbered_from_1_to_19():
    assert [case.number for case in HEALTHY_CASES] == list(range(1, 20))


def test_fault_cases_are_sorted_unique_and_complete():
    numbers = [case.number for case in FAULT_CASES]
    assert numbers == sorted(numbers)
    assert len({case.name for case in FAULT_CASES}) == len(numbers)
    assert all(
        case.correct_causes and case.nets and case.max_late_steps >= 1 for case in FAULT_CASES
    )


@pytest.mark.slow
def test_gan_generates_points_near_the_real_mean(tmp_path):
    case = next(case for case in HEALTHY_CASES if case.name == "GAN")
    generator, _ = case.program(CaseSetup(net="mlp", seed=0, folder=tmp_path, has_fault=False))
    with torch.no_grad():
        generated = generator(torch.randn(500, 4)).mean(0)

    real = real_points(500).mean(0)
    assert (generated - real).norm() < 0.5 * real.norm()


@pytest.mark.slow
def test_frozen_backbone_in_evaluation_mode_is_not_reported(trace_of, tmp_path):
    case = next(case for case in HEALTHY_CASES if case.name == "frozen backbone")
    trace = trace_of(
        lambda: case.program(CaseSetup(net="cnn", seed=0, folder=tmp_path, has_fault=False))
    )

    assert PARAMETERS_NOT_OPTIMIZED(trace) == TRAINING_IN_EVAL_MODE(trace) == ()


@pytest.mark.slow
def test_shuffled_labels_with_a_chance_correlation_are_reported(trace_of, tmp_path):
    """The strongest relation of a feature is more than 3 deviations above that of shuffles."""
    case = next(case for case in FAULT_CASES if case.number == 5)
    setup = CaseSetup(net="mlp", seed=111, folder=tmp_path, has_fault=True)

    found = judge(trace_of(lambda: case.program(setup)))

    finding = next(f for f in found if f.fault == "shuffled labels")
    assert finding.severity == "error"
    assert 3 < finding.evidence["z_score"] < 4
