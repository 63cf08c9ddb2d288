"""The probe that steps a learning-rate schedule without training (TRACE-11)."""

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


def cosine_with_warmup(step, *, warmup=WARMUP, steps=STEPS):
    if step < warmup:
        return step / warmup
    return max(0.0, 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / (steps - warmup)))))


def make_scheduler(factor_at):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    return lr_scheduler.LambdaLR(optimizer, factor_at)


def run_probe(factor_at, plan=PLAN):
    return probe_scheduler(make_scheduler(factor_at), plan)


def test_a_cosine_schedule_with_warmup_passes_and_its_peak_is_reported():
    result = run_probe(cosine_with_warmup)

    assert result.outcome == "pass"
    assert (result.numbers["peak_step"], result.numbers["peak_rate"]) == (10, 0.1)
    assert "the peak 0.1 at step 10 as planned" in result.seen


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
def test_schedulers_of_torch_pass_and_are_not_changed(make, plan):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    scheduler = make(optimizer)
    weights = optimizer.param_groups[0]["params"][0].clone()
    start = optimizer.param_groups[0]["lr"]

    result = probe_scheduler(scheduler, plan)

    assert result.outcome == "pass", result.seen
    assert scheduler.last_epoch == 0
    assert optimizer.param_groups[0]["lr"] == start
    assert not optimizer.state
    assert torch.equal(weights, optimizer.param_groups[0]["params"][0])


@pytest.mark.parametrize(
    ("factor_at", "message"),
    [
        (
            lambda step: cosine_with_warmup(step + 1),
            "ends at step 9, planned is step 10: 1 step early, off by",
        ),
        (lambda step: cosine_with_warmup(max(0, step - 1), steps=99), "0 for the first 2 steps"),
        (
            lambda step: cosine_with_warmup(step, warmup=11),
            "ends at step 11, planned is step 10: 1 step late, off by one",
        ),
        (lambda step: 0 * step, "The learning rate is 0 at all"),
        (
            lambda step: step // 10 if step < 10 else cosine_with_warmup(step),
            "0 for the first 10 steps",
        ),
        (
            lambda step: cosine_with_warmup(step, steps=25),
            "ends early: the final rate is reached at step 25",
        ),
        (lambda step: cosine_with_warmup(step, steps=200), "does not reach its end"),
        (
            lambda step: abs(math.cos(step / 20)) if step > 10 else cosine_with_warmup(step),
            "rises again",
        ),
        (
            lambda step: cosine_with_warmup(step) / 2,
            "The peak learning rate is 0.05, planned is 0.1",
        ),
        (
            lambda step: cosine_with_warmup(step) * 2,
            "The peak learning rate is 0.2, planned is 0.1",
        ),
        (
            lambda step: math.nan if step == 40 else cosine_with_warmup(step),
            "rate of step 40 is nan",
        ),
        (lambda step: cosine_with_warmup(step) - 0.01, "rate of step 0 is -"),
    ],
)
def test_each_fault_is_reported(factor_at, message):
    result = run_probe(factor_at)

    assert result.outcome == "fail"
    assert message in result.seen
    assert result.why
    assert result.fix


def test_an_off_by_one_schedule_has_a_cause_for_each_direction():
    assert (
        "stepped before the optimizer" in run_probe(lambda step: cosine_with_warmup(step + 1)).why
    )
    assert "counted from 1" in run_probe(lambda step: cosine_with_warmup(step, warmup=11)).why


def test_a_scheduler_step_before_the_optimizer_step_is_reported():
    scheduler = make_scheduler(cosine_with_warmup)
    with pytest.warns(UserWarning, match="before"):
        scheduler.step()

    result = probe_scheduler(scheduler, PLAN)

    assert result.outcome == "fail"
    assert "stepped 1 time before the first step of the optimizer" in result.seen


def test_a_schedule_that_follows_a_metric_is_skipped():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)

    assert probe_scheduler(lr_scheduler.ReduceLROnPlateau(optimizer), PLAN).outcome == "skipped"


@pytest.mark.parametrize("warmup_share", [0.0, 0.05, 0.5, 0.999])
@pytest.mark.parametrize("final", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("steps", [2, 7, 40])
def test_the_schedule_of_the_trainer_passes(warmup_share, final, steps):
    settings = TrainSettings(
        max_epochs=5,
        warmup_share=warmup_share,
        final_rate_share=final,
        changes=(TrainingChange(from_epoch=2, learning_rate=0.5),),
    )

    result = probe_train_settings(settings, steps_per_epoch=steps)

    assert result.outcome == "pass", result.seen


def test_an_off_by_one_schedule_of_the_trainer_fails(monkeypatch):
    learning_rate_at = schedule.learning_rate_at
    monkeypatch.setattr(
        schedule,
        "learning_rate_at",
        lambda step, total, now: learning_rate_at(min(step + 1, total - 1), total, now),
    )

    assert probe_train_settings(TrainSettings(), steps_per_epoch=20).outcome == "fail"


def test_invalid_arguments_are_rejected():
    with pytest.raises(ContractError, match=r"scheduler of torch\.optim\.lr_scheduler"):
        probe_scheduler(cosine_with_warmup, PLAN)
    with pytest.raises(ContractError, match="each of 100 steps is required, got 3"):
        compare_rates([0.1, 0.2, 0.3], PLAN)
    with pytest.raises(SettingsError, match="peak_step must be before the end"):
        RatePlan.parse(PLAN.model_dump() | {"peak_step": 100}, where="plan")
    with pytest.raises(SettingsError, match="final_rate must not be above"):
        RatePlan.parse(PLAN.model_dump() | {"final_rate": 1.0}, where="plan")
    with pytest.raises(ContractError, match="at least two steps"):
        probe_train_settings(TrainSettings(max_epochs=1), steps_per_epoch=1)
    started = make_scheduler(cosine_with_warmup)
    started.optimizer.step()
    started.step()
    with pytest.raises(ContractError, match="from its beginning"):
        probe_scheduler(started, PLAN)
