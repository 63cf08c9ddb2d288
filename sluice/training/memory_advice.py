"""Describes a training step that ran out of memory, and suggests settings that need less."""

from sluice.base.out_of_memory import memory_advice
from sluice.base.pluralize import pluralize
from sluice.training.settings import TrainSettings


def describe_step(training: TrainSettings, num_rows: int) -> str:
    """Return the text that describes a training step of at most ``num_rows`` rows in a message."""
    micro_rows = training.micro_batch_rows
    rows_at_once = num_rows if micro_rows is None else min(micro_rows, num_rows)
    return (
        f"a training step that computes {pluralize(rows_at_once, 'row')} at once "
        f"(training.batch_rows {training.batch_rows}, training.micro_batch_rows "
        f"{micro_rows or 'not set'})"
    )


def suggest_settings(training: TrainSettings, num_rows: int | None = None) -> str:
    """Return the settings that reduce the memory of a step, in the recommended order.

    Args:
        training: Settings in effect.
        num_rows: Rows of the largest batch; ``training.batch_rows`` if None.
    """
    batch_rows = min(training.batch_rows, num_rows or training.batch_rows)
    rows_at_once = min(training.micro_batch_rows or batch_rows, batch_rows)
    changes = []
    if rows_at_once > 1:
        changes.append(f"training.micro_batch_rows: {rows_at_once // 2}, halved until a step fits")
    if training.precision == "fp32":
        changes.append("training.precision: bf16")
    if not training.recompute_activations:
        changes.append("training.recompute_activations: true")
    return memory_advice(changes)
