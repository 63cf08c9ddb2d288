"""Detects training runs that resume without their optimizer or scheduler state."""

import itertools
import math
from dataclasses import dataclass
from statistics import median
from typing import Any

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.membership import Membership, OptimizerRecord
from sluice.trace.records.trace import SchedulerRecord, Trace
from sluice.trace.rules._helpers.learning_rates import (
    LearningRates,
    count_scheduler_calls,
    learning_rates,
)
from sluice.trace.rules._helpers.loaders import training_loader_indices
from sluice.trace.rules._helpers.optimizer_steps import (
    OptimizerStep,
    count_steps,
    first_step_of,
    last_step_of,
    steps_of,
)


class ResumeStateLostSettings(Settings):
    """Thresholds of the rule ``RESUME_STATE_LOST``."""

    min_steps_before: int = Field(
        5,
        ge=1,
        description="A finding requires at least this number of steps of the first optimizer. "
        "After fewer steps, the state of the optimizer is not worth keeping.",
    )
    num_initial_steps: int = Field(
        5,
        ge=1,
        description="Number n of steps. The initial loss of an optimizer is the first recorded "
        "loss of its first n steps. The late loss is the median over the last 2n steps before the "
        "restart. If the new optimizer's initial loss is closer to the old optimizer's initial "
        "loss than to the late loss, another training run begins, which is not reported.",
    )
    max_rate_ratio: float = Field(
        1.1,
        gt=1,
        description="The learning rate counts as continued if the rates before and after the "
        "restart differ by less than this factor.",
    )
    num_repeated_rates: int = Field(
        8,
        ge=2,
        description="Number n of learning rates. A schedule counts as running a second time only "
        "if the first n rates after the restart equal the rates of the old optimizer's first "
        "steps.",
    )
    min_rate_jump: float = Field(
        1.5,
        gt=1,
        description="A schedule counts as running a second time only if the learning rate at the "
        "restart rises or falls by at least this factor. The largest of the repeated rates must "
        "also be more than this factor times the smallest.",
    )


@dataclass(frozen=True, slots=True)
class _OptimizerUse:
    """An optimizer with its parameters and its steps."""

    optimizer: OptimizerRecord
    membership: Membership
    """First recorded membership that contains the optimizer."""
    steps: tuple[OptimizerStep, ...]

    @property
    def first_step(self) -> int:
        return first_step_of(self.steps)

    @property
    def last_step(self) -> int:
        return last_step_of(self.steps)

    @property
    def trainable_parameters(self) -> frozenset[int]:
        frozen_indices = {p.index for p in self.membership.parameters if not p.is_trainable}
        return frozenset(
            p for g in self.optimizer.groups for p in g.parameters if p not in frozen_indices
        )

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shape of each parameter, group by group."""
        shape_by_index = {p.index: p.shape for p in self.membership.parameters}
        return tuple(shape_by_index[p] for g in self.optimizer.groups for p in g.parameters)

    @property
    def has_state(self) -> bool:
        """Whether the optimizer has a state; SGD without momentum has none."""
        groups = self.optimizer.groups
        return self.optimizer.kind != "SGD" or any(g.options.get("momentum") for g in groups)


def _optimizer_uses(trace: Trace) -> tuple[_OptimizerUse, ...]:
    uses: dict[int, _OptimizerUse] = {}
    for membership in trace.memberships:
        for record in membership.optimizers:
            steps = steps_of(trace, record.index)
            if record.index not in uses and steps:
                uses[record.index] = _OptimizerUse(record, membership, steps)
    return tuple(sorted(uses.values(), key=lambda use: use.first_step))


def _initial_options(use: _OptimizerUse, *, includes_rate: bool) -> list[dict[str, Any]]:
    """Return the options of each group at its creation, before a schedule changed the rate.

    Without ``includes_rate``, the learning rate is omitted.
    """
    group_options = [dict(group.options) for group in use.optimizer.groups]
    for options in group_options:
        rate, initial_rate = options.pop("lr", None), options.pop("initial_lr", None)
        if includes_rate:
            options["lr"] = rate if initial_rate is None else initial_rate
    return group_options


def _is_state_loaded_elsewhere(
    trace: Trace, old_use: _OptimizerUse, new_use: _OptimizerUse
) -> bool:
    """Whether optimizer states were loaded at the restart, but not into the second optimizer."""
    restart_steps = range(old_use.last_step, new_use.first_step)
    loads = [x for x in trace.loads if x.role == "optimizer" and x.step in restart_steps]
    return bool(loads) and all(x.object_id != new_use.optimizer.index for x in loads)


def _old_and_new_rates(
    trace: Trace, old_use: _OptimizerUse, new_use: _OptimizerUse
) -> tuple[LearningRates | None, LearningRates | None]:
    return (
        learning_rates(trace, old_use.optimizer.index),
        learning_rates(trace, new_use.optimizer.index),
    )


def _rate_continues(
    settings: ResumeStateLostSettings, trace: Trace, old_use: _OptimizerUse, new_use: _OptimizerUse
) -> bool:
    """Whether the second optimizer begins with about the last learning rate of the first one."""
    old_rates, new_rates = _old_and_new_rates(trace, old_use, new_use)
    if old_rates is None or new_rates is None:
        return False
    last_rate, first_rate = old_rates.values[-1], new_rates.values[0]
    return (
        last_rate > 0
        and first_rate > 0
        and 1 / settings.max_rate_ratio < first_rate / last_rate < settings.max_rate_ratio
    )


def _loader_settings(trace: Trace, use: _OptimizerUse) -> frozenset[str]:
    """Return the settings of the loaders that the optimizer's steps use, without index and seed."""
    used_loaders = {
        event.related_id
        for s in use.steps
        for event in s.sequence.events
        if event.kind == "forward"
    } & training_loader_indices(trace)
    return frozenset(
        repr(loader.model_copy(update={"index": 0, "seed": 0}))
        for loader in trace.loaders
        if loader.index in used_loaders
    )


def _starts_over(
    settings: ResumeStateLostSettings, trace: Trace, old_use: _OptimizerUse, new_use: _OptimizerUse
) -> bool:
    """Whether the loss is back at its initial value, so that another training run begins."""

    def losses_from(first_step: int, num_steps: int) -> list[float]:
        steps = range(first_step, first_step + num_steps)
        return [s.losses[-1] for s in trace.scalars if s.losses and s.step in steps]

    num_steps = settings.num_initial_steps
    initial_losses = losses_from(old_use.first_step, num_steps)
    last_losses = losses_from(old_use.last_step - 2 * num_steps + 1, 2 * num_steps)
    restart_losses = losses_from(new_use.first_step, num_steps)
    if not (initial_losses and last_losses and restart_losses):
        return False
    loss_decrease = initial_losses[0] - median(last_losses)
    if loss_decrease <= max(last_losses) - min(last_losses):  # the decrease is too small to decide
        return False
    return restart_losses[0] - median(last_losses) > loss_decrease / 2


def _find_restarted_scheduler(
    trace: Trace, old_use: _OptimizerUse, new_use: _OptimizerUse
) -> SchedulerRecord | None:
    """Return the new scheduler that restarts an unfinished schedule; None without one."""
    loaded_schedulers = {load.object_id for load in trace.loads if load.role == "scheduler"}
    old_schedulers = [s for s in trace.schedulers if s.optimizer == old_use.optimizer.index]
    for new_scheduler in trace.schedulers:
        # A scheduler with a positive ``start`` is skipped: it was created at a later step of its
        # schedule.
        if (
            new_scheduler.optimizer != new_use.optimizer.index
            or new_scheduler.index in loaded_schedulers
            or new_scheduler.start
        ):
            continue
        # A scheduler that is advanced before the first optimizer step continues the schedule.
        if count_scheduler_calls(trace, new_scheduler.index, before_step=new_use.first_step + 1):
            continue
        for old_scheduler in old_schedulers:
            num_calls = count_scheduler_calls(
                trace, old_scheduler.index, before_step=new_use.first_step + 1
            )
            has_same_options = (old_scheduler.kind, old_scheduler.options) == (
                new_scheduler.kind,
                new_scheduler.options,
            )
            has_ended = bool(old_scheduler.end) and num_calls >= old_scheduler.end
            if has_same_options and num_calls >= 2 and not has_ended:
                return new_scheduler
    return None


def _repeats_first_rates(
    settings: ResumeStateLostSettings, trace: Trace, old_use: _OptimizerUse, new_use: _OptimizerUse
) -> bool:
    """Whether learning rates that the program sets itself repeat the rates of the first steps."""
    old_rates, new_rates = _old_and_new_rates(trace, old_use, new_use)
    scheduled_optimizers = {scheduler.optimizer for scheduler in trace.schedulers}
    if (
        old_rates is None
        or new_rates is None
        or scheduled_optimizers & {old_use.optimizer.index, new_use.optimizer.index}
    ):
        return False
    min_jump, num_rates = settings.min_rate_jump, settings.num_repeated_rates
    steps, new_first_rates = new_rates.steps[:num_rates], new_rates.values[:num_rates]
    old_first_rates = [
        old_rates.rate_at(old_use.first_step + step - new_use.first_step) for step in steps
    ]
    is_varying = len(new_first_rates) == num_rates and 0 < min_jump * min(new_first_rates) < max(
        new_first_rates
    )
    old_last_rate = old_rates.values[-1]
    has_jump = (
        old_last_rate > 0 and not 1 / min_jump < new_first_rates[0] / old_last_rate < min_jump
    )
    return is_varying and has_jump and all(map(math.isclose, new_first_rates, old_first_rates))


def _is_same_training(
    settings: ResumeStateLostSettings, trace: Trace, old_use: _OptimizerUse, new_use: _OptimizerUse
) -> bool:
    """Whether the second optimizer continues the training of the first one.

    There are two cases:

    - The optimizers have the same parameters, and the loaders are the same or weights were loaded.
    - The second optimizer has the parameters of a new network with the same shapes, into which
      weights were loaded.

    In both cases, the loss must not be back at its initial value.
    """
    restart_steps = range(old_use.last_step, new_use.first_step)
    were_weights_loaded = any(x.role == "network" and x.step in restart_steps for x in trace.loads)
    if old_use.trainable_parameters == new_use.trainable_parameters:
        is_continuation = were_weights_loaded or _loader_settings(trace, old_use) == (
            _loader_settings(trace, new_use)
        )
    else:
        is_new_network = not old_use.trainable_parameters & new_use.trainable_parameters
        is_continuation = (
            were_weights_loaded and is_new_network and old_use.shapes == new_use.shapes
        )
    return is_continuation and not _starts_over(settings, trace, old_use, new_use)


def _judge(rule: Rule[ResumeStateLostSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    uses = _optimizer_uses(trace)
    findings = []
    for old_use, new_use in itertools.pairwise(uses):
        if (
            old_use.optimizer.kind != new_use.optimizer.kind
            or new_use.first_step <= old_use.last_step
        ):
            continue
        if count_steps(old_use.steps) < rule.settings.min_steps_before:
            continue
        is_state_loaded = any(
            x.role == "optimizer" and x.object_id == new_use.optimizer.index for x in trace.loads
        )
        is_loaded_elsewhere = _is_state_loaded_elsewhere(trace, old_use, new_use)
        # The rate is not compared if the program may have created the new optimizer with the last
        # rate before the restart.
        includes_rate = not (
            is_loaded_elsewhere and _rate_continues(rule.settings, trace, old_use, new_use)
        )
        has_same_options = _initial_options(old_use, includes_rate=includes_rate) == (
            _initial_options(new_use, includes_rate=includes_rate)
        )
        scheduler = (
            _find_restarted_scheduler(trace, old_use, new_use)
            if is_state_loaded or has_same_options
            else None
        )
        is_state_lost = has_same_options and not is_state_loaded and old_use.has_state
        repeats_rates = is_state_loaded and _repeats_first_rates(
            rule.settings, trace, old_use, new_use
        )
        if not (is_state_lost or scheduler or repeats_rates) or not _is_same_training(
            rule.settings, trace, old_use, new_use
        ):
            continue
        old_rates, new_rates = _old_and_new_rates(trace, old_use, new_use)
        rate_text = (
            f"; the learning rate changed from {old_rates.values[-1]:.3g} to "
            f"{new_rates.values[0]:.3g}"
            if old_rates and new_rates
            else ""
        )
        lost_states = []
        if is_state_lost:
            lost_states.append(f"the state of {new_use.optimizer.kind}, such as its moments")
        if scheduler:
            lost_states.append(f"the position in {scheduler.kind}")
        if repeats_rates:
            lost_states.append("the position in the custom schedule")
        # More than two optimizers of a class suggest that the program intentionally creates a new
        # optimizer for each part of the training. The finding then needs confirmation, unless a
        # saved optimizer state was loaded at the restart, but not into the new optimizer.
        may_be_intended = (
            len([x for x in uses if x.optimizer.kind == new_use.optimizer.kind]) > 2
            and not is_loaded_elsewhere
        )
        findings.append(
            rule.finding(
                severity="confirm" if may_be_intended else "error",
                step=new_use.first_step,
                what=f"After {count_steps(old_use.steps)} steps of {old_use.optimizer.kind}, a new "
                f"{new_use.optimizer.kind} continued with the same weights. Lost state: "
                f"{' and '.join(lost_states)}{rate_text}.",
                cause="Training continues as if it had just begun: the first steps after the "
                "restart are too large, or the schedule runs a second time.",
                fix="Save and load the state_dict() of the optimizer and of the scheduler "
                "together with the state_dict() of the network.",
                num_steps_before=count_steps(old_use.steps),
                num_steps_after=count_steps(new_use.steps),
            )
        )
    return tuple(findings[:1])


RESUME_STATE_LOST = Rule(
    name="training resumes with its previous state",
    fault="resume state lost",
    priority=360,
    requires="Two consecutive optimizers of one class. Both have the same weights, or weights are "
    "loaded into the network of the second optimizer.",
    contradicted_by="A second phase that intentionally starts with a fresh state.",
    abstains="The new optimizer has other options, parameters or data; its state was loaded and "
    "its schedule continues; or the loss is back at its initial value.",
    settings=ResumeStateLostSettings(),
    judge=_judge,
)
