"""Counts neurons of a fitted network that are never active."""

from torch import nn

from sluice.data.rows.protocol import ModelInput, RowSource
from sluice.models.module_activity import RECTIFIERS, record_activity
from sluice.training.loop import predict


def count_dead_units(model: nn.Module, x: ModelInput | RowSource) -> tuple[int, int]:
    """Return how many rectifier neurons of ``model`` are 0 on all rows, and how many there are.

    Only activations that are modules are counted, not calls of ``relu``.

    Args:
        model: A fitted model; its training mode is restored.
        x: A few hundred inputs. With fewer inputs, rarely active neurons seem dead.
    """
    rectifiers = {name for name, module in model.named_modules() if isinstance(module, RECTIFIERS)}
    with record_activity(model) as recorder:
        predict(model, x)
    activities = [activity for name, activity in recorder.activity.items() if name in rectifiers]
    total = sum(activity.num_units for activity in activities)
    return total - sum(activity.num_active_units for activity in activities), total
