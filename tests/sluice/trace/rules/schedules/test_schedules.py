"""Benchmark faults of scalers and schedules; schedules that end early or stay at zero, and correct
ones (TRACE-10, -11).
"""

import pytest
import torch
from torch.optim import lr_scheduler as schedules

from sluice.bench.tracer.case import CaseSetup
from sluice.bench.tracer.faults.scaling import SCALING_CASES
from sluice.bench.tracer.faults.schedules import SCHEDULE_CASES
from sluice.trace.rules.library import judge
from tests.support.traced import loading_and_resuming as programs


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", [*SCALING_CASES, *SCHEDULE_CASES], ids=lambda case: case.name)
def test_a_fault_is_the_only_finding_and_its_twin_has_none(trace_of, tmp_path, case):
    faulty, twin = (
        judge(
            trace_of(
                lambda has_fault=has_fault: case.program(
                    CaseSetup(net="mlp", seed=1, folder=tmp_path, has_fault=has_fault)
                )
            )
        )
        for has_fault in (True, False)
    )

    assert {f.severity for f in faulty} == {"error"}
    assert {f.fault for f in faulty} <= case.correct_causes
    assert abs(faulty[0].step - case.starts_at) <= case.max_late_steps
    assert twin == ()


@pytest.mark.parametrize(
    "make_schedule",
    [
        lambda o: schedules.StepLR(o, 1, gamma=0.5),
        lambda o: schedules.ExponentialLR(o, 0.9),
        lambda o: schedules.PolynomialLR(o, 4),
        lambda o: schedules.LinearLR(o, 1.0, 0.2, total_iters=4),
        lambda o: schedules.LambdaLR(o, lambda epoch: max(1 - epoch / 4, 0.0)),
    ],
    ids=["step", "exponential", "polynomial", "linear", "lambda"],
)
def test_epoch_schedules_stepped_per_batch_are_reported(trace_of, make_schedule):
    (found,) = judge(trace_of(programs.scheduled(make_schedule)))

    assert (found.fault, found.severity, found.step) == ("schedule ends early", "error", 2)
    assert judge(trace_of(programs.scheduled(make_schedule, per_epoch=True))) == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", programs.CORRECT_SCHEDULES)
def test_schedules_designed_for_batches_are_not_reported(trace_of, name):
    assert judge(trace_of(programs.scheduled(programs.CORRECT_SCHEDULES[name]))) == ()


def test_a_learning_rate_set_to_zero_is_an_error_if_it_stays(trace_of):
    def program():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for step in range(24):
            optimizer.param_groups[0]["lr"] = 0.1 * (step // 100)
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()

    found = [f for f in judge(trace_of(program)) if f.fault == "learning rate stays zero"]

    assert [(f.severity, f.step) for f in found] == [("error", 1)]
    assert "24 steps" in found[0].what


def test_learning_rate_changes_are_recorded_and_thinned(trace_of):
    program = programs.scheduled(lambda o: schedules.StepLR(o, 20, gamma=0.1))
    rates = trace_of(program).rates
    thinned_rates = trace_of(
        programs.scheduled(programs.CORRECT_SCHEDULES["slow exponential"], steps=400)
    ).rates

    assert [r.step for r in rates] == [1, 21, 41, 61]
    assert [r.rates[0] for r in rates] == pytest.approx([0.01, 0.001, 1e-4, 1e-5])
    assert 128 < len(thinned_rates) < 300
    assert thinned_rates[-1].step > 300
    assert thinned_rates[-1].rates[0] == pytest.approx(0.01 * 0.99 ** (thinned_rates[-1].step - 1))


def test_a_scheduler_record_has_its_settings_and_its_last_step(trace_of):
    trace = trace_of(programs.scheduled(programs.CORRECT_SCHEDULES["warmup, then cosine"]))
    (scheduler,) = trace.schedulers
    (milestones,) = trace_of(
        programs.scheduled(programs.CORRECT_SCHEDULES["milestones in batches"])
    ).schedulers

    assert (scheduler.kind, scheduler.end, scheduler.start) == ("SequentialLR", 64, 0)
    assert milestones.end == 48
    assert (milestones.options["milestones"], milestones.options["gamma"]) == ("32, 48", 0.1)
