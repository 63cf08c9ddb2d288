"""Detects checkpoints whose optimizer or scheduler state is never loaded."""

import os.path

from pydantic import Field

from sluice.base.settings import Settings
from sluice.trace.finding import Rule, TraceFinding
from sluice.trace.records.environment import FileReadRecord
from sluice.trace.records.trace import Trace
from sluice.trace.rules._helpers.learning_rates import learning_rates
from sluice.trace.rules._helpers.optimizer_steps import (
    first_step_of,
    last_step_of,
    stepping_optimizers,
    steps_of,
)


class CheckpointPartiallyLoadedSettings(Settings):
    """Thresholds of the rule ``CHECKPOINT_PARTIALLY_LOADED``."""

    max_rate_change: float = Field(
        0.1,
        gt=0,
        description="A new optimizer counts as the continuation of an old optimizer only if its "
        "first learning rate differs from the last rate of the old optimizer by at most this "
        "share of the last rate.",
    )


def _judge(rule: Rule[CheckpointPartiallyLoadedSettings], trace: Trace) -> tuple[TraceFinding, ...]:
    findings = []
    for file_read in trace.reads:
        loaded_roles = {load.role for load in trace.loads if load.step >= file_read.step}
        trains_later = any(not s.is_open and s.last_step > file_read.step for s in trace.sequences)
        # With the argument last_epoch, a scheduler continues without a load. Its ``start`` is then
        # the number of its earlier steps.
        has_fresh_scheduler = any(not s.start for s in trace.schedulers)
        unloaded_states = [
            f"the {role}"
            for role in ("optimizer", "scheduler")
            if role in file_read.states
            and role not in loaded_roles
            and (role == "optimizer" or has_fresh_scheduler)
        ]
        if not unloaded_states or "network" not in loaded_roles or not trains_later:
            continue
        # A program that loads only weights may be fine-tuning. A program that also loads the
        # optimizer state resumes a run.
        is_resume = "optimizer" in loaded_roles or _is_resume(rule.settings, trace, file_read)
        findings.append(
            rule.finding(
                severity="error" if is_resume else "confirm",
                step=file_read.step + 1,
                what=f"The file that was read after step {file_read.step} contains the state of "
                f"{' and of '.join(unloaded_states)}, which was never loaded, although the weights "
                "were loaded.",
                cause="Training continues without the optimizer moments, the step count or the "
                "previous learning rate.",
                fix="Load every state that the checkpoint contains.",
                num_unloaded=len(unloaded_states),
            )
        )
    return tuple(findings[:1])


def _is_resume(
    settings: CheckpointPartiallyLoadedSettings, trace: Trace, file_read: FileReadRecord
) -> bool:
    """Whether the file is read to resume the training.

    The evidence is that this run wrote into the file's folder and that a new optimizer continues an
    old one. In a second phase of training, the optimizer usually has another class, other
    parameters or another learning rate.
    """
    # Only folders are compared, because the file may have been renamed after it was written.
    written_folders = {
        os.path.dirname(s.path) for s in trace.saves if s.path and s.step <= file_read.step
    }
    if not file_read.path or os.path.dirname(file_read.path) not in written_folders:
        return False
    classes_and_group_sizes = {
        o.index: (o.kind, [len(group.parameters) for group in o.groups])
        for m in trace.memberships
        for o in m.optimizers
    }
    step_ranges = {
        o: (first_step_of(steps), last_step_of(steps))
        for o in stepping_optimizers(trace)
        if (steps := steps_of(trace, o))
    }
    for old_optimizer, (_, last_old_step) in step_ranges.items():
        for new_optimizer, (first_new_step, _) in step_ranges.items():
            if (
                last_old_step > file_read.step
                or first_new_step <= file_read.step
                or classes_and_group_sizes.get(old_optimizer)
                != classes_and_group_sizes.get(new_optimizer)
            ):
                continue
            old_rates = learning_rates(trace, old_optimizer)
            new_rates = learning_rates(trace, new_optimizer)
            if old_rates is None or new_rates is None:
                continue
            last_rate = old_rates.rate_at(last_old_step)
            first_rate = new_rates.rate_at(first_new_step)
            if abs(first_rate - last_rate) <= settings.max_rate_change * last_rate:
                return True
    return False


CHECKPOINT_PARTIALLY_LOADED = Rule(
    name="the optimizer and scheduler state of a checkpoint is loaded",
    fault="resume state lost",
    priority=370,
    requires="A file with an optimizer or scheduler state that the program reads with torch.load, "
    "and weights that a network loads after this.",
    contradicted_by="Fine-tuning that intentionally starts from the weights alone.",
    abstains="No step follows the read; or only the scheduler state is not loaded, and all "
    "schedulers were created with last_epoch, so that they continue without their state.",
    settings=CheckpointPartiallyLoadedSettings(),
    judge=_judge,
)
