"""Schedules driven dry (TRACE-11)."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

from sluice.base.errors import ContractError, SettingsError
from sluice.probes import schedule
from sluice.probes.schedule import RatePlan, compare_rates, probe_scheduler, probe_train_settings
from sluice.training.settings import TrainingChange, TrainSettings

WARMUP, STEPS = 10, 100
PLAN = RatePlan(total_steps=STEPS, peak_step=WARMUP, peak_rate=0.1, final_rate=0.0)


def share(step, *, warmup=WARMUP, steps=STEPS):
    if step < warmup:
        return step / warmup
    return max(0.0, 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / (steps - warmup)))))


def scheduler_of(function):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    return lr_scheduler.LambdaLR(optimizer, function)


def ask(function, plan=PLAN):
    return probe_scheduler(scheduler_of(function), plan)


def test_warmup_from_zero_and_a_cosine_pass_and_show_their_boundaries():
    answer = ask(share)

    assert answer.outcome == "pass"
    assert (answer.numbers["peak_step"], answer.numbers["peak_rate"]) == (10, 0.1)
    assert "the peak 0.1 at step 10 as planned" in answer.seen


@pytest.mark.parametrize(
    ("make", "plan"),
    [
        (
            lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=100, pct_start=0.11),
            PLAN.model_copy(update={"final_rate": 0.1 / 25 / 1e4}),
        ),
        (
            lambda o: lr_scheduler.CosineAnnealingLR(o, 100),
            PLAN.model_copy(update={"peak_step": 0}),
        ),
        (
            lambda o: lr_scheduler.StepLR(o, 50, gamma=0.5),
            PLAN.model_copy(update={"peak_step": 0, "final_rate": 0.1}),
        ),
        (
            lambda o: lr_scheduler.SequentialLR(
                o,
                [
                    lr_scheduler.LinearLR(o, 0.1, total_iters=10),
                    lr_scheduler.CosineAnnealingLR(o, 90),
                ],
                [10],
            ),
            PLAN,
        ),
    ],
)
def test_torchs_own_schedules_pass(make, plan):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    scheduler = make(optimizer)
    weights = optimizer.param_groups[0]["params"][0].clone()
    start = optimizer.param_groups[0]["lr"]

    answer = probe_scheduler(scheduler, plan)

    assert answer.outcome == "pass", answer.seen
    assert scheduler.last_epoch == 0
    assert optimizer.param_groups[0]["lr"] == start
    assert not optimizer.state
    assert torch.equal(weights, optimizer.param_groups[0]["params"][0])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda step: share(step + 1), "ends at step 9, planned is step 10: 1 step early, off by"),
        (lambda step: share(max(0, step - 1), steps=99), "0 for the first 2 steps"),
        (
            lambda step: share(step, warmup=11),
            "ends at step 11, planned is step 10: 1 step late, off by one",
        ),
        (lambda step: 0 * step, "The rate is 0 at all"),
        (lambda step: step // 10 if step < 10 else share(step), "0 for the first 10 steps"),
        (lambda step: share(step, steps=25), "ends early: the final rate is reached at step 25"),
        (lambda step: share(step, steps=200), "does not reach its end"),
        (lambda step: abs(math.cos(step / 20)) if step > 10 else share(step), "rises again"),
        (lambda step: share(step) / 2, "The largest rate is 0.05, planned is 0.1"),
        (lambda step: share(step) * 2, "The largest rate is 0.2, planned is 0.1"),
        (lambda step: math.nan if step == 40 else share(step), "rate of step 40 is nan"),
        (lambda step: share(step) - 0.01, "rate of step 0 is -"),
    ],
)
def test_each_fault_is_named(function, said):
    answer = ask(function)

    assert answer.outcome == "fail"
    assert said in answer.seen
    assert answer.why
    assert answer.fix


def test_the_side_of_an_off_by_one_has_its_cause():
    assert "stepped before the optimizer" in ask(lambda step: share(step + 1)).why
    assert "counted from 1" in ask(lambda step: share(step, warmup=11)).why


def test_a_step_before_the_optimizers_is_named():
    scheduler = scheduler_of(share)
    with pytest.warns(UserWarning, match="before"):
        scheduler.step()

    answer = probe_scheduler(scheduler, PLAN)

    assert answer.outcome == "fail"
    assert "stepped 1 time before the first step of the optimizer" in answer.seen


def test_a_schedule_that_follows_a_metric_is_skipped():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)

    assert probe_scheduler(lr_scheduler.ReduceLROnPlateau(optimizer), PLAN).outcome == "skipped"


@pytest.mark.parametrize("warmup_share", [0.0, 0.05, 0.5, 0.999])
@pytest.mark.parametrize("final", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("steps", [2, 7, 40])
def test_the_trainers_own_schedule_passes(warmup_share, final, steps):
    settings = TrainSettings(
        max_epochs=5,
        warmup_share=warmup_share,
        final_rate_share=final,
        changes=(TrainingChange(from_epoch=2, learning_rate=0.5),),
    )

    answer = probe_train_settings(settings, steps_per_epoch=steps)

    assert answer.outcome == "pass", answer.seen


def test_a_trainers_schedule_that_is_off_by_one_fails(monkeypatch):
    right = schedule.learning_rate_at
    monkeypatch.setattr(
        schedule,
        "learning_rate_at",
        lambda step, total, now: right(min(step + 1, total - 1), total, now),
    )

    assert probe_train_settings(TrainSettings(), steps_per_epoch=20).outcome == "fail"


def test_bad_input_is_refused():
    with pytest.raises(ContractError, match=r"scheduler of torch\.optim\.lr_scheduler"):
        probe_scheduler(share, PLAN)
    with pytest.raises(ContractError, match="each of 100 steps is required, got 3"):
        compare_rates([0.1, 0.2, 0.3], PLAN)
    with pytest.raises(SettingsError, match="peak_step must be before the end"):
        RatePlan.parse(PLAN.model_dump() | {"peak_step": 100}, where="plan")
    with pytest.raises(SettingsError, match="final_rate must not be above"):
        RatePlan.parse(PLAN.model_dump() | {"final_rate": 1.0}, where="plan")
    with pytest.raises(ContractError, match="at least two steps"):
        probe_train_settings(TrainSettings(max_epochs=1), steps_per_epoch=1)
    begun = scheduler_of(share)
    begun.optimizer.step()
    begun.step()
    with pytest.raises(ContractError, match="from its beginning"):
        probe_scheduler(begun, PLAN)
