"""Runs a learning-rate schedule without training and compares it with the planned steps."""

import copy
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence

import torch
from pydantic import Field, model_validator
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sluice.base.errors import ContractError
from sluice.base.pluralize import pluralize
from sluice.base.settings import Settings
from sluice.probes.result import ProbeResult, failed, skipped
from sluice.training.schedule import learning_rate_at
from sluice.training.settings import TrainSettings

NAME = "schedule"

_MAX_ROUNDING_SHARE = 1e-9
"""Maximum difference between two learning rates that counts as rounding, as a share of the peak."""


class RatePlan(Settings):
    """The planned learning-rate schedule, in which step 0 is the first step of the optimizer."""

    total_steps: int = Field(ge=2, description="Number of optimizer steps.")
    peak_step: int = Field(
        ge=0, description="First step at the peak rate, which equals the number of warmup steps."
    )
    peak_rate: float = Field(gt=0, description="Peak learning rate.")
    final_rate: float = Field(
        ge=0, description="Final learning rate; equal to the peak rate if there is no decay."
    )

    @model_validator(mode="after")
    def _check_order(self) -> "RatePlan":
        if self.peak_step >= self.total_steps:
            raise ValueError(
                f"peak_step must be before the end: got {self.peak_step} of {self.total_steps}"
            )
        if self.final_rate > self.peak_rate:
            raise ValueError(
                f"final_rate must not be above peak_rate: got {self.final_rate:g} and "
                f"{self.peak_rate:g}"
            )
        return self


def probe_scheduler(scheduler: LRScheduler, plan: RatePlan) -> ProbeResult:
    """Run a copy of a scheduler and its optimizer through all steps and compare with the plan.

    Only the learning rate of the first parameter group is compared.

    Raises:
        ContractError: ``scheduler`` is not a scheduler of torch, or has already made steps together
            with its optimizer.
        ValueError: The scheduler cannot make as many steps as planned.
    """
    if isinstance(scheduler, ReduceLROnPlateau):
        return skipped(NAME, "ReduceLROnPlateau depends on a metric, not on steps.")
    if not isinstance(scheduler, LRScheduler):
        raise ContractError(
            f"A scheduler of torch.optim.lr_scheduler is required, got {type(scheduler).__name__}.",
            fix="Pass a scheduler instance. For a list of learning rates, use compare_rates.",
        )
    scheduler_steps = scheduler.last_epoch
    has_optimizer_stepped = getattr(scheduler.optimizer, "_opt_called", False)
    if scheduler_steps > 0 and not has_optimizer_stepped:
        return failed(
            NAME,
            f"The scheduler was stepped {pluralize(scheduler_steps, 'time')} before the first step "
            "of the optimizer. The optimizer therefore never uses the first "
            f"{'rate' if scheduler_steps == 1 else f'{scheduler_steps} rates'} of the schedule.",
            "scheduler.step() is called before optimizer.step(), or once after construction.",
            "Step the scheduler after the optimizer, once per optimizer step.",
            {"early_steps": scheduler_steps},
        )
    if scheduler_steps > 0:
        raise ContractError(
            f"A schedule must be probed from its beginning, but this scheduler has taken "
            f"{pluralize(scheduler_steps, 'step')}.",
            fix="Create a new optimizer and scheduler for the probe.",
        )
    return compare_rates(_simulate_rates(scheduler, plan.total_steps + 1), plan)


def probe_train_settings(settings: TrainSettings, *, steps_per_epoch: int) -> ProbeResult:
    """Compare the trainer's schedule with its settings, step by step.

    Every learning rate is divided by the peak rate of the epoch, because settings may change the
    peak rate during the training.

    Raises:
        ContractError: Training has fewer than two steps.
    """
    total_steps = steps_per_epoch * settings.max_epochs
    if total_steps < 2:
        raise ContractError(
            f"A schedule requires at least two steps, got {total_steps}.",
            fix="Increase max_epochs, or provide more rows.",
        )
    relative_rates = []
    for step in range(total_steps):
        epoch_settings = settings.at(step // steps_per_epoch + 1)
        rate = learning_rate_at(step, total_steps, epoch_settings)
        relative_rates.append(rate / epoch_settings.learning_rate)
    plan = RatePlan(
        total_steps=total_steps,
        peak_step=min(round(settings.warmup_share * total_steps), total_steps - 1),
        peak_rate=1.0,
        final_rate=settings.final_rate_share,
    )
    if plan.peak_step == total_steps - 1:  # the warmup takes all steps, so there is no decay
        plan = plan.model_copy(update={"final_rate": 1.0})
    return compare_rates(relative_rates, plan)


def compare_rates(rates: Sequence[float], plan: RatePlan) -> ProbeResult:
    """Compare the learning rate of every step with the plan, and return the first deviation.

    Args:
        rates: Learning rates in the order of the optimizer steps. One more rate may follow the rate
            of the last step, because some schedules reach their end only after it.
        plan: The planned schedule.

    Raises:
        ContractError: ``rates`` has fewer values than the plan has steps.
    """
    if len(rates) < plan.total_steps:
        raise ContractError(
            f"A learning rate for each of {plan.total_steps} steps is required, got {len(rates)}.",
            fix="Run the schedule to the end of the plan.",
        )
    step_rates = list(rates[: plan.total_steps])
    tolerance = _MAX_ROUNDING_SHARE * plan.peak_rate
    numbers: dict[str, float | int | str] = {
        "total_steps": plan.total_steps,
        "first_rate": step_rates[0],
        "planned_peak_step": plan.peak_step,
        "last_rate": step_rates[-1],
    }
    is_invalid = [not (math.isfinite(rate) and rate >= 0) for rate in step_rates]
    if any(is_invalid):
        first_invalid_step = is_invalid.index(True)
        return failed(
            NAME,
            f"The learning rate of step {first_invalid_step} is {step_rates[first_invalid_step]}.",
            "The formula divides by zero, or the steps exceed the range for which the formula is "
            "defined.",
            "Set the schedule's number of steps to the number of optimizer steps.",
            numbers | {"step": first_invalid_step},
        )
    peak_rate = max(step_rates)
    peak_step = next(i for i, rate in enumerate(step_rates) if rate >= peak_rate - tolerance)
    numbers |= {"peak_step": peak_step, "peak_rate": peak_rate}
    deviations = _iter_deviations(
        list(rates), step_rates, plan, peak_step=peak_step, peak_rate=peak_rate, tolerance=tolerance
    )
    deviation = next(deviations, None)
    if deviation is not None:
        return failed(NAME, *deviation, numbers)
    steps_at_peak = sum(rate >= peak_rate - tolerance for rate in step_rates)
    return ProbeResult(
        name=NAME,
        outcome="pass",
        seen=f"{plan.total_steps} steps: {step_rates[0]:.4g} at step 0, the peak {peak_rate:.4g} "
        f"at step {peak_step} as planned ({pluralize(steps_at_peak, 'step')}), "
        f"{step_rates[-1]:.4g} at the last step {plan.total_steps - 1}.",
        numbers=numbers,
    )


def _iter_deviations(
    rates: list[float],
    step_rates: list[float],
    plan: RatePlan,
    *,
    peak_step: int,
    peak_rate: float,
    tolerance: float,
) -> Iterator[tuple[str, str, str]]:
    """Yield observation, cause and fix of each deviation, most specific first.

    ``step_rates`` are the rates of the planned steps, without the rate that may follow them.
    """
    num_zeros = sum(1 for _ in itertools.takewhile(lambda rate: rate == 0, step_rates))
    if num_zeros == len(step_rates):
        yield (
            f"The learning rate is 0 at all {num_zeros} steps.",
            "Integer division in the warmup, or a schedule per epoch that is never stepped.",
            "Use float division, and step the scheduler once per optimizer step.",
        )
    elif num_zeros > 1:
        yield (
            f"The learning rate is 0 for the first {pluralize(num_zeros, 'step')}.",
            "Integer division in the warmup, or a schedule that is stepped once per epoch.",
            "Start the warmup above 0: (step + 1) / (warmup + 1).",
        )
    has_wrong_peak_rate = abs(peak_rate - plan.peak_rate) > tolerance
    if peak_step != plan.peak_step:
        delay = peak_step - plan.peak_step
        direction = "late" if delay > 0 else "early"
        off_by_one = ", off by one" if abs(delay) == 1 else ""
        yield (
            f"The warmup ends at step {peak_step}, planned is step {plan.peak_step}: "
            f"{pluralize(abs(delay), 'step')} {direction}{off_by_one}.",
            "The scheduler is stepped before the optimizer or once too often."
            if delay == -1
            else "The formula assumes that steps are counted from 1 instead of 0, or a scheduler "
            "step is missing."
            if delay == 1
            else "The warmup and the scheduler count different units (steps, epochs).",
            "Step the scheduler after the optimizer, and count steps from 0.",
        )
    if has_wrong_peak_rate:
        yield _peak_deviation(peak_rate, plan)
    fall_step = next(
        (i for i in range(1, peak_step + 1) if step_rates[i] < step_rates[i - 1] - tolerance), None
    )
    if fall_step is not None:
        yield (
            f"The learning rate falls within the warmup, at step {fall_step}: "
            f"{step_rates[fall_step - 1]:.4g} to {step_rates[fall_step]:.4g}.",
            "Two schedules are chained with a gap.",
            "Start the second schedule where the first ends.",
        )
    rise_step = next(
        (
            i
            for i in range(peak_step + 1, len(step_rates))
            if step_rates[i] > step_rates[i - 1] + tolerance
        ),
        None,
    )
    end_deviation = _end_deviation(rates, step_rates, plan, tolerance=tolerance)
    if end_deviation is not None:
        end_step, observation, cause, fix = end_deviation
        # The earlier deviation is reported first if the schedule ends wrongly and rises again.
        if rise_step is None or end_step <= rise_step:
            yield observation, cause, fix
    if rise_step is not None:
        yield (
            f"The learning rate rises again at step {rise_step}: {step_rates[rise_step - 1]:.4g} "
            f"to {step_rates[rise_step]:.4g}.",
            "A cosine continues after half a period, or the schedule restarts.",
            "Set the schedule's number of steps to the number of optimizer steps.",
        )


def _end_deviation(
    rates: list[float], step_rates: list[float], plan: RatePlan, *, tolerance: float
) -> tuple[int, str, str, str] | None:
    """Return step, observation, cause and fix if the schedule ends wrongly; otherwise None."""
    if plan.final_rate >= plan.peak_rate - tolerance:
        return None
    last_step = plan.total_steps - 1
    end_step = next(
        (
            i
            for i in range(plan.peak_step + 1, len(rates))
            if rates[i] <= plan.final_rate + tolerance
        ),
        None,
    )
    if end_step is None:
        return (
            last_step,
            f"The learning rate is {step_rates[-1]:.4g} at the last step {last_step}, planned is "
            f"{plan.final_rate:.4g}: the schedule does not reach its end.",
            "The schedule is defined for more steps than are taken, or is stepped too rarely.",
            "Set the schedule's number of steps to the number of optimizer steps.",
        )
    if end_step < last_step:
        num_early_steps = last_step - end_step
        return (
            end_step,
            f"The schedule ends early: the final rate is reached at step {end_step}, "
            f"{pluralize(num_early_steps, 'step')} before the last step "
            f"{last_step}{', off by one' if num_early_steps == 1 else ''}.",
            "The schedule is defined for fewer steps than are taken, or is stepped before the "
            "optimizer."
            if num_early_steps == 1
            else "The schedule is defined for fewer steps than are taken, for example for one "
            "step per epoch although it is stepped at every batch.",
            "Set the schedule's number of steps to the number of optimizer steps.",
        )
    if step_rates[-1] < plan.final_rate - tolerance:
        return (
            last_step,
            f"The learning rate falls to {step_rates[-1]:.4g}, below the planned final rate of "
            f"{plan.final_rate:.4g}.",
            "The minimum learning rate of the schedule differs from the plan.",
            "Set the minimum learning rate of the schedule.",
        )
    return None


def _simulate_rates(scheduler: LRScheduler, num_rates: int) -> list[float]:
    """Return the learning rate at each step of copies of the optimizer and the scheduler."""
    optimizer_copy, scheduler_copy = copy.deepcopy((scheduler.optimizer, scheduler))
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index in range(num_rates):
            rates.append(float(optimizer_copy.param_groups[0]["lr"]))
            if index == num_rates - 1:
                break
            _step_without_gradients(optimizer_copy)
            try:
                scheduler_copy.step()
            except ValueError:  # OneCycleLR raises an error after its last step
                if index < num_rates - 2:
                    raise
                break
    return rates


def _step_without_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Take a step without gradients, which changes no parameter but counts for the scheduler."""
    optimizer.zero_grad(set_to_none=True)
    optimizer.step()


def _peak_deviation(peak_rate: float, plan: RatePlan) -> tuple[str, str, str]:
    """Return observation, cause and fix of a wrong peak rate."""
    observation = f"The peak learning rate is {peak_rate:.6g}, planned is {plan.peak_rate:.6g}."
    if peak_rate > plan.peak_rate:
        return (
            observation,
            "The optimizer's learning rate, or a factor of the schedule, is larger than planned.",
            "Correct the optimizer's learning rate or the schedule.",
        )
    if plan.peak_step == 0:
        return (
            observation,
            "The optimizer's learning rate is smaller than planned, or the decay begins too early.",
            "Correct the optimizer's learning rate or the schedule.",
        )
    return (
        observation,
        "The optimizer's learning rate is smaller than planned, the warmup ends too early, or the "
        "decay starts within the warmup.",
        "Correct the optimizer's learning rate, or make the decay start where the warmup ends.",
    )
