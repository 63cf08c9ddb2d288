"""The default search space of each architecture."""

from sluice.tuning.conditions import Condition
from sluice.tuning.parameters import (
    Integers,
    LogUniform,
    Parameter,
    PowersOfTwo,
    Uniform,
)
from sluice.tuning.spaces import Space, TrialSettings

_MAX_LAYERS, _MAX_WIDTH = 3, 128


def default_space(base: TrialSettings) -> Space:
    """Return the default space for ``base``, with the most important parameters first.

    The learning rate is first, because no other setting affects the loss as much; then the width,
    whose best value is unknown for new data; then the weight decay, which may be off. Ranges extend
    about a factor of 30 to both sides of usual values. A linear network has no width or depth, and
    dropout acts between layers, so one recurrent layer has none. If the width must be a multiple of
    the attention heads, only such widths are tried.
    """
    kind = base.model.architecture
    space: dict[str, Parameter] = {
        "training.learning_rate": LogUniform(low=1e-4, high=1e-1),
        "training.weight_decay": LogUniform(low=1e-5, high=1e-1, may_be_off=True),
        "training.batch_rows": PowersOfTwo(low=32, high=512),
    }
    if kind != "linear":
        step = base.model.heads if kind == "transformer" else 8
        rate = space.pop("training.learning_rate")
        space = {
            "training.learning_rate": rate,
            "model.hidden": Integers(
                low=2 * step, high=max(4, _MAX_WIDTH // step) * step, multiple_of=step
            ),
            **space,
            "model.layers": Integers(low=1, high=_MAX_LAYERS),
            "model.dropout": Uniform(
                low=0.0,
                high=0.5,
                when=None
                if kind == "transformer"
                else Condition(path="model.layers", one_of=tuple(range(2, _MAX_LAYERS + 1))),
            ),
        }
    return Space(parameters=space)
