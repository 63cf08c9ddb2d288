"""Settings that reduce the memory of a training step, in the order in which to try them."""

from sluice.base.out_of_memory import memory_advice
from sluice.training.settings import TrainSettings


def describe_step(training: TrainSettings, num_rows: int) -> str:
    """Return the description of a training step with at most ``num_rows`` rows, for a message."""
    micro = training.micro_batch_rows
    at_once = num_rows if micro is None else min(micro, num_rows)
    return (
        f"a training step that computes {at_once} rows at once (training.batch_rows "
        f"{training.batch_rows}, training.micro_batch_rows {micro or 'not set'})"
    )


def suggest_settings(training: TrainSettings, num_rows: int | None = None) -> str:
    """Return the settings to change, in the order in which to try them.

    Args:
        training: Settings in effect.
        num_rows: Largest batch in effect; that of ``training`` if None.
    """
    rows = min(training.batch_rows, num_rows or training.batch_rows)
    at_once = min(training.micro_batch_rows or rows, rows)
    steps = []
    if at_once > 1:
        steps.append(f"training.micro_batch_rows: {at_once // 2}, halved until it fits")
    if training.precision == "fp32":
        steps.append("training.precision: bf16")
    if not training.recompute_activations:
        steps.append("training.recompute_activations: true")
    return memory_advice(steps)
