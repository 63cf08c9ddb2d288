"""How many units of a fitted network are never active (RESP-2)."""

from torch import Tensor, nn

from sluice.models.module_activity import RECTIFIERS, watched
from sluice.training.loop import predict


def count_dead_units(model: nn.Module, x: Tensor) -> tuple[int, int]:
    """Return how many units of the rectifiers of ``model`` are 0 on all rows, and how many it has.

    Only activations that are modules of their own are seen, not calls of ``relu``. A network
    without rectifiers has none.

    Args:
        model: A fitted model; its mode is kept.
        x: A few hundred inputs: with fewer, rarely active units look dead.
    """
    rectifiers = {name for name, module in model.named_modules() if isinstance(module, RECTIFIERS)}
    with watched(model) as watch:
        predict(model, x)
    seen = [activity for name, activity in watch.activity.items() if name in rectifiers]
    total = sum(activity.num_units for activity in seen)
    return total - sum(activity.num_active for activity in seen), total
